"""A registry's story in words: why a device, what became of a plugin, what to do. Returns text, prints nothing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import DeviceNotFoundError, did_you_mean
from hotshoe_core.errors.text import printable
from hotshoe_loader.catalog import known
from hotshoe_loader.ggml.names import variant_of
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.rank import REFERENCE, matching
from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["describe", "explain", "not_found", "related", "unmet", "warning", "why"]

_GPUS = (DeviceType.GPU, DeviceType.IGPU)


def describe(device: Device) -> str:
    """A device in a phrase: "cpu (ggml-cpu, zen4 variant, AMD EPYC)"."""
    facts = [device.provider] if device.provider != device.name else []
    if device.library is not None:
        variant = printable(variant_of(device.library))
        facts += [f"{variant} variant"] if variant else []
    facts += [device.description] if device.description else []
    return f"{device.name} ({', '.join(facts)})"


def why(device: Device, devices: Sequence[Device], verdicts: Sequence[Verdict], options: Options) -> str:
    """One line: which device this is, and why it is the one."""
    words = [_cause(device, devices, options)]
    words += [f"prefer={token!r} met no device" for token in unmet(options.prefer, devices)]
    if device.type not in _GPUS and not any(other.type in _GPUS for other in devices):
        words.append(_no_gpu(verdicts))
    if device.type is DeviceType.IGPU:
        words.append("it shares the CPU's memory, so device='cpu' may be as fast")
    return f"{describe(device)}: {'; '.join(words)}"


def _cause(device: Device, devices: Sequence[Device], options: Options) -> str:
    if device.name != devices[0].name:
        return f"asked for by name; the best of {len(devices)} devices is {devices[0].name}"
    for option, tokens in (("require", options.require), ("prefer", options.prefer)):
        token = next((token for token in tokens if device in matching(token, devices)), None)
        if token is not None:
            return f"first by {option}={token!r}"
    if device.provider == REFERENCE:
        return "the last resort, and slow: no plugin offers a device"
    if len(devices) == 1:
        return "the only device"
    waiting = [other.name for other in devices if other.type is DeviceType.ACCEL and device.type is DeviceType.CPU]
    more = f"; {', '.join(waiting)} {'are' if waiting[1:] else 'is'} used if asked for" if waiting else ""
    return f"best of {len(devices)} devices{more}"


def _no_gpu(verdicts: Sequence[Verdict]) -> str:
    gpu = [verdict for verdict in verdicts if verdict.kind == "plugin" and _backend_type(verdict) is DeviceType.GPU]
    installed = [verdict for verdict in gpu if verdict.outcome is not Outcome.NOT_INSTALLED]
    if installed:
        return "no GPU: " + ", ".join(map(_without_gpu, installed))
    signs = [verdict for verdict in gpu if verdict.details.get("sign")]
    if signs:
        return f"no GPU backend is installed: {signs[0].reason} ({signs[0].hint})"
    return "no GPU backend is installed"


def _without_gpu(verdict: Verdict) -> str:
    if verdict.outcome in (Outcome.AVAILABLE, Outcome.LOADED):  # an engine for GPUs, on a machine that has none
        return f"{verdict.candidate} offers none here"
    return f"{verdict.candidate} is {verdict.outcome.value}"


def _backend_type(verdict: Verdict) -> DeviceType | None:
    published = known(str(verdict.details.get("backend", "")))
    return published.type if published else None


def unmet(tokens: Iterable[str], devices: Sequence[Device]) -> list[str]:
    """The words of ``prefer`` or ``require`` that mean no device here."""
    return [token for token in tokens if not matching(token, devices)]


def related(token: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on what a word may mean: a plugin, its distribution, a provider, a library, a type."""
    word = normalise(token.partition(":")[0])
    found = []
    for verdict in verdicts:
        kind = _backend_type(verdict)
        names = {verdict.candidate, verdict.details.get("distribution", "")}
        names |= {verdict.details.get(key, "") for key in ("provider", "family", "backend", "plugin")}
        names |= {kind.value} if kind else set()
        if any(normalise(str(name)) in (word, f"ggml-{word}") for name in names if name):
            found.append(verdict)
    return found


def _lines(verdict: Verdict) -> list[str]:
    lines = [str(verdict) + (f"  [{verdict.origin}]" if verdict.origin else "")]
    return lines + ([f"  -> {verdict.hint}"] if verdict.hint and not verdict.outcome.usable else [])


def explain(
    name: str, devices: Sequence[Device], verdicts: Sequence[Verdict], options: Options, notes: Sequence[str]
) -> str:
    """The whole story, or that of one device, provider, plugin, library or type."""
    if name.strip():
        return _explain_one(name, devices, verdicts, options)
    lines = [f"chosen: {why(devices[0], devices, verdicts, options)}" if devices else "no device can be used"]
    for option in ("require", "prefer", "block", "allow"):
        value = getattr(options, option)
        lines += [f"{option}: {', '.join(value)}"] if value else []
    lines += [f"ggml: {options.ggml}"] if options.ggml else []
    lines += [f"note: {note}" for note in notes]
    lines += ["", "devices, best first:", *(f"  {describe(device)}, {device.type.value}" for device in devices)]
    lines += ["", "verdicts:", *(f"  {line}" for verdict in verdicts for line in _lines(verdict))]
    return "\n".join(lines)


def warning(verdicts: Sequence[Verdict], offers: Collection[str]) -> str:
    """What a user should be told unasked: what was installed to be used and is not, and names that two claim; or ""."""
    plugins = [verdict for verdict in verdicts if verdict.kind == "plugin"]
    # An absent device or a block is nobody's surprise; a broken plugin is, and so is what is not who it says.
    told = [each for each in verdicts if (each.kind == "plugin" and each.outcome.broken) or "conflict" in each.details]
    words = [f"{verdict}{f' ({verdict.hint})' if verdict.hint else ''}" for verdict in told]
    taken = [(each, why) for each in plugins if each.outcome.usable for why in each.details.get("dropped", ())]
    words += [f"{each.candidate} ({each.origin}): {why}" for each, why in taken if " is taken by " in why]
    if set(offers) == {REFERENCE}:
        words.append(
            "no plugin offers a device, so models run on the reference backend, which is NumPy and slow; "
            f"{' or '.join(_first_steps(verdicts)) or 'install a plugin'}, or see load_all().explain()"
        )
    return "\n".join(words)


def _first_steps(verdicts: Sequence[Verdict]) -> list[str]:
    """What to do where nothing works: mend the broken, let in the blocked, install what runs everywhere."""
    hints = [
        verdict.hint for verdict in verdicts if verdict.kind == "plugin" and verdict.outcome.broken and verdict.hint
    ]
    hints += [verdict.hint for verdict in verdicts if verdict.outcome is Outcome.BLOCKED and verdict.hint]
    absent = [verdict for verdict in verdicts if verdict.outcome is Outcome.NOT_INSTALLED]
    hints += [verdict.hint for verdict in absent if verdict.hint and verdict.details.get("backend") == "cpu"]
    return list(dict.fromkeys(hints))[:2]


def _explain_one(name: str, devices: Sequence[Device], verdicts: Sequence[Verdict], options: Options) -> str:
    found = matching(name, devices)
    lines = []
    if found:
        for device in found:
            place = [other.name for other in devices].index(device.name) + 1
            lines.append(f"{why(device, devices, verdicts, options)} (place {place} of {len(devices)})")
    else:
        lines.append(f"{name}: no device answers to it")
    about = related(name, verdicts)
    about += [
        verdict
        for device in found
        for verdict in verdicts
        if verdict not in about and verdict.details.get("provider") == device.provider
    ]
    for verdict in dict.fromkeys(about):
        lines += _lines(verdict)
        lines += [f"    {line}" for line in verdict.details.get("traceback", ())]
    if not found and not about:
        lines.append(_next_step(name, devices, verdicts))
    return "\n".join(lines)


def not_found(asked: str, token: str, devices: Sequence[Device], verdicts: Sequence[Verdict]) -> DeviceNotFoundError:
    """The error for a word that means no device. ``asked``: how it came, as "device='cuda'"."""
    there = ", ".join(f"{device.name} ({device.provider})" for device in devices) or "none"
    message = f"{asked} asks for a device that is not there; found: {there}"
    about = [verdict for verdict in related(token, verdicts) if not verdict.outcome.usable]
    for verdict in about:
        message += f"\n  {verdict}"
    hint = _remedy(about) or _next_step(token, devices, verdicts)
    return DeviceNotFoundError(message, verdicts=verdicts, hint=hint)


def _remedy(verdicts: Sequence[Verdict]) -> str | None:
    """The next step: mend what is installed and broken, else install a plugin, that of hardware seen here first."""
    absent = [verdict for verdict in verdicts if verdict.outcome is Outcome.NOT_INSTALLED]
    broken = [verdict for verdict in verdicts if verdict not in absent]
    for group in (broken, [verdict for verdict in absent if verdict.details.get("sign")], absent):
        hints = [verdict.hint for verdict in group if verdict.hint]
        if hints:
            return ", or ".join(dict.fromkeys(hints))
    return None


def _next_step(token: str, devices: Sequence[Device], verdicts: Sequence[Verdict]) -> str:
    word = token.strip().lower()
    same = [device.name for device in devices if device.name.partition(":")[0] == word.partition(":")[0]]
    if same:
        return f"there is {', '.join(same)}"
    published = known(normalise(word.partition(":")[0]))
    if published is not None:
        if published.relevant:
            return published.install
        return f"{published.install}, on {' or '.join(published.platforms)}; this is {sys.platform}"
    words = {device.name for device in devices} | {device.provider for device in devices}
    words |= {verdict.candidate for verdict in verdicts if verdict.kind == "plugin" and verdict.outcome.usable}
    return did_you_mean(word, words)
