"""Texts about a registry: why a device is used, what happened to a plugin, what to do next. Prints nothing."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterable, Sequence

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import DeviceNotFoundError, did_you_mean
from hotshoe_core.errors.text import printable
from hotshoe_loader.catalog import CPU, find_entry
from hotshoe_loader.ggml.file_names import BACKENDS_WITHOUT_PLUGIN, variant_of
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.rank import REFERENCE, find_devices
from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["describe", "explain", "none_left", "not_found", "only_reference", "related", "unmatched", "warnings", "why"]

_GPUS = (DeviceType.GPU, DeviceType.IGPU)


def describe(device: Device) -> str:
    """A device with its provider and hardware: "cpu (ggml-cpu, zen4 variant, AMD EPYC)"."""
    facts = [device.provider] if device.provider != device.name else []
    if device.library is not None:
        variant = printable(variant_of(device.library))
        facts += [f"{variant} variant"] if variant else []
    facts += [device.description] if device.description else []
    return f"{device.name} ({', '.join(facts)})"


def why(
    device: Device, devices: Sequence[Device], verdicts: Sequence[Verdict], options: Options, complete: bool = True
) -> str:
    """One line: a device, and why it is used. complete: whether every plugin was tested."""
    if not complete:
        return f"{describe(device)}: {'; '.join(['requested', *_other_copies(device, verdicts)])}"
    missing = unmatched(options.prefer, devices)
    reasons = [_cause(device, devices, options)]
    no_gpu = device.type not in _GPUS and not any(other.type in _GPUS for other in devices)
    if missing and not (no_gpu and missing == ["gpu"]):  # else it would be said twice
        reasons.append(f"{', '.join(options.written('prefer', token) for token in missing)} matches no device")
    if no_gpu:
        reasons.append(_no_gpu(verdicts))
    if device.type is DeviceType.IGPU:
        reasons.append("it shares the CPU's memory, so device='cpu' may be as fast")
    reasons += _other_copies(device, verdicts)
    return f"{describe(device)}: {'; '.join(reasons)}"


def _other_copies(device: Device, verdicts: Sequence[Verdict]) -> list[str]:
    """The copies of the device's plugin that Python does not import, because another one comes first in sys.path."""
    plugins = {verdict.details.get("distribution") for verdict in verdicts if _provides(verdict, device)}
    return [
        f"another copy of {verdict.origin}, in {verdict.details['copy']}, is not used"
        for verdict in verdicts
        if "copy" in verdict.details and verdict.details.get("distribution") in plugins
    ]


def _provides(verdict: Verdict, device: Device) -> bool:
    return verdict.kind == "plugin" and verdict.details.get("provider") == device.provider


def _cause(device: Device, devices: Sequence[Device], options: Options) -> str:
    if device.name != devices[0].name:
        return f"requested; the best of {len(devices)} devices is {devices[0].name}"
    for option, tokens in (("require", options.require), ("prefer", options.prefer)):
        token = next((token for token in tokens if device in find_devices(token, devices)), None)
        if token is not None:
            return f"first by {options.written(option, token)}"
    if device.provider == REFERENCE:
        return "slow, and used only because no plugin offers a device"
    if len(devices) == 1:
        return "the only device"
    lower = [other.name for other in devices if other.type is DeviceType.ACCEL and device.type is DeviceType.CPU]
    more = f"; {', '.join(lower)} {'rank' if lower[1:] else 'ranks'} below the CPU; name it to use it" if lower else ""
    return f"best of {len(devices)} devices{more}"


def _no_gpu(verdicts: Sequence[Verdict]) -> str:
    gpu = [verdict for verdict in verdicts if verdict.kind == "plugin" and _backend_type(verdict) is DeviceType.GPU]
    installed = [verdict for verdict in gpu if verdict.outcome is not Outcome.NOT_INSTALLED]
    if installed:
        failed = [
            f"{verdict.candidate} is {verdict.outcome.value}" for verdict in installed if not verdict.outcome.usable
        ]
        return f"no GPU: {', '.join(failed)}" if failed else "no GPU was found"
    signs = [verdict for verdict in gpu if verdict.details.get("sign")]
    if signs:
        return f"no GPU backend is installed: {signs[0].reason} ({signs[0].hint})"
    return "no GPU backend is installed"


def _backend_type(verdict: Verdict) -> DeviceType | None:
    entry = find_entry(str(verdict.details.get("backend", "")))
    return entry.type if entry else None


def unmatched(tokens: Iterable[str], devices: Sequence[Device]) -> list[str]:
    """The names of ``prefer`` or ``require`` that match no device."""
    return [token for token in tokens if not find_devices(token, devices)]


def related(token: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on what a name may mean: a plugin, its distribution, a provider, a library, or a device type."""
    wanted = normalise(token.partition(":")[0])
    found = []
    for verdict in verdicts:
        kind = _backend_type(verdict)
        names = {verdict.candidate, verdict.details.get("distribution", "")}
        names |= {verdict.details.get(key, "") for key in ("provider", "family", "backend", "plugin")}
        names |= {kind.value} if kind else set()
        if any(normalise(str(name)) in (wanted, f"ggml-{wanted}") for name in names if name):
            found.append(verdict)
    return found


def _lines(verdict: Verdict) -> list[str]:
    lines = [str(verdict) + (f"  [{verdict.origin}]" if verdict.origin else "")]
    return lines + ([f"  -> {verdict.hint}"] if verdict.hint else [])


def explain(
    name: str, devices: Sequence[Device], verdicts: Sequence[Verdict], options: Options, notes: Sequence[str]
) -> str:
    """The text of ``Registry.explain``: about everything, or about one device, provider, plugin, library or type."""
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


def warnings(verdicts: Sequence[Verdict], providers: Collection[str]) -> list[str]:
    """The lines of the warning that ``load_all`` logs: about broken plugins, names that are used twice, and libraries
    that were exchanged, so that another one is used. ``providers``: the names of the usable ones."""
    plugins = [verdict for verdict in verdicts if verdict.kind == "plugin"]
    # Users expect a missing device and what they blocked themselves. They do not expect a broken plugin or a conflict.
    lines = [
        f"{verdict}{f' ({verdict.hint})' if verdict.hint else ''}"
        for verdict in verdicts
        if (verdict.kind == "plugin" and verdict.outcome.broken)
        or "conflict" in verdict.details
        or (verdict.details.get("damaged") and verdict.details.get("provider") in providers)
    ]
    for verdict in plugins:
        dropped = verdict.details.get("dropped", ()) if verdict.outcome.usable else ()
        lines += [
            f"{verdict.candidate} ({verdict.origin}): {reason}" for reason in dropped if " is taken by " in reason
        ]
    return lines


def only_reference(verdicts: Sequence[Verdict]) -> str:
    """The line of the warning if no plugin offers a device."""
    return (
        "no plugin offers a device, so models run on the reference backend, which is NumPy and slow. To do next: "
        f"{' or '.join(_first_steps(verdicts)) or 'install a plugin'}; details: hotshoe doctor, or load_all().explain()"
    )


def _first_steps(verdicts: Sequence[Verdict]) -> list[str]:
    """What to do if nothing works: repair broken plugins, unblock blocked ones, install the CPU plugin. At most two."""
    hints = [
        verdict.hint for verdict in verdicts if verdict.kind == "plugin" and verdict.outcome.broken and verdict.hint
    ]
    hints += [verdict.hint for verdict in verdicts if verdict.outcome is Outcome.BLOCKED and verdict.hint]
    absent = [verdict for verdict in verdicts if verdict.outcome is Outcome.NOT_INSTALLED]
    hints += [verdict.hint for verdict in absent if verdict.hint and verdict.details.get("backend") == "cpu"]
    return list(dict.fromkeys(hints))[:2]


def _explain_one(name: str, devices: Sequence[Device], verdicts: Sequence[Verdict], options: Options) -> str:
    found = find_devices(name, devices)
    lines = []
    if found:
        for device in found:
            position = [other.name for other in devices].index(device.name) + 1
            lines.append(f"{why(device, devices, verdicts, options)} (rank {position} of {len(devices)})")
    else:
        lines.append(f"{name}: no device has this name, type or provider")
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


def not_found(argument: str, token: str, devices: Sequence[Device], verdicts: Sequence[Verdict]) -> DeviceNotFoundError:
    """The error for a name that matches no device. ``argument``: what the user gave, such as "device='cuda'"."""
    found = ", ".join(f"{device.name} ({device.provider})" for device in devices) or "none"
    message = f"{argument} matches no device; found: {found}"
    about = [verdict for verdict in related(token, verdicts) if not verdict.outcome.usable]
    about = [verdict for verdict in about if verdict.outcome is not Outcome.OUTSCORED]  # its backend is used
    reasons = [verdict.reason for verdict in about]
    for i, verdict in enumerate(about):
        others = reasons[:i] + [reason for reason in reasons[i:] if reason != verdict.reason]
        if not any(verdict.reason in other for other in others):  # said once
            message += f"\n  {verdict}"
    hint = _remedy(about) or _next_step(token, devices, verdicts)
    return DeviceNotFoundError(message, verdicts=verdicts, hint=hint)


def none_left(verdicts: Sequence[Verdict]) -> DeviceNotFoundError:
    """The error if every device is blocked, unloaded or broken, the reference backend included."""
    unused = [
        verdict
        for verdict in verdicts
        if verdict.kind == "plugin" and not verdict.outcome.usable and verdict.outcome is not Outcome.NOT_INSTALLED
    ]
    lines = ["no device is left to compute on", *(f"  {verdict}" for verdict in unused)]
    return DeviceNotFoundError("\n".join(lines), verdicts=verdicts, hint="; or ".join(_first_steps(verdicts)) or None)


def _remedy(verdicts: Sequence[Verdict]) -> str | None:
    """The next step: repair what is installed and broken, else install a plugin, first one for hardware found here."""
    absent = [verdict for verdict in verdicts if verdict.outcome is Outcome.NOT_INSTALLED]
    broken = [verdict for verdict in verdicts if verdict not in absent]
    for group in (broken, [verdict for verdict in absent if verdict.details.get("sign")], absent):
        hints = {verdict.hint: find_entry(str(verdict.details.get("backend"))) for verdict in group if verdict.hint}
        if len(hints) == 1:
            return next(iter(hints))
        if hints:
            return "; ".join(f"for {entry.offers}: {hint}" if entry else hint for hint, entry in hints.items())
    return None


def _next_step(token: str, devices: Sequence[Device], verdicts: Sequence[Verdict]) -> str:
    name = token.strip().lower()
    same = [device.name for device in devices if device.name.partition(":")[0] == name.partition(":")[0]]
    if same:
        return f"use one of: {', '.join(same)}"
    entry = find_entry(normalise(name.partition(":")[0]))
    if entry is not None:
        if entry.relevant:
            return entry.install
        places = [" on ".join(pair) for pair in entry.machines] or entry.platforms
        return f"{entry.distribution} is for {' or '.join(places)}; this is {sys.platform} on {platform.machine()}"
    backend = name.partition(":")[0].removeprefix("ggml-")
    if backend in BACKENDS_WITHOUT_PLUGIN:
        return (
            f"{CPU.distribution} drives ggml's {backend!r}: name the folder of its library in paths= or HOTSHOE_PATH, "
            "or set HOTSHOE_SYSTEM=1 to search those of the system's packages"
        )
    names = {device.name for device in devices} | {device.provider for device in devices}
    names |= {verdict.candidate for verdict in verdicts if verdict.kind == "plugin" and verdict.outcome.usable}
    return did_you_mean(name, names)
