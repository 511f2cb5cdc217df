"""Doctor: what is well on this machine, what is not, and the one thing to do next. Returns findings, prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hotshoe_core.device import Device, DeviceType
from hotshoe_loader.catalog import CATALOG, Known
from hotshoe_loader.machine import Cpu, Gpu, Machine
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["Diagnosis", "Finding", "examine"]

Level = Literal["ok", "note", "todo"]
_GPUS = (DeviceType.GPU, DeviceType.IGPU)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ok: as it should be; note: worth knowing; todo: ``fix`` makes it better."""

    about: str
    level: Level
    text: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings; those that leave something to do in the order in which to do it."""

    findings: tuple[Finding, ...]
    todo: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """The best device of this machine for which there is a plugin is used, and nothing installed is broken."""
        return not self.todo

    @property
    def next(self) -> Finding | None:
        """The one thing to do first."""
        return self.todo[0] if self.todo else None

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as what ``json.dumps`` takes."""
        fields = ("about", "level", "text", "fix")
        rows = [{name: getattr(finding, name) for name in fields} for finding in (*self.findings, *self.todo[:1])]
        return {
            "healthy": self.healthy,
            "next": rows.pop() if self.todo else None,
            "findings": rows,
        }


def examine(
    machine: Machine,
    devices: Sequence[Device],
    verdicts: Sequence[Verdict],
    unmet: str | None = None,
    catalog: Sequence[Known] = CATALOG,
) -> Diagnosis:
    """What a registry found, set against what the machine has.

    Args:
        devices, verdicts: the registry's.
        unmet: the message of HOTSHOE_REQUIRE's error, where load_all raised it; then there are no devices.
    """
    ward = _Ward(machine, devices, verdicts, catalog)
    if unmet is not None:
        names = ", ".join(name.strip() for name in machine.environ.get("HOTSHOE_REQUIRE", "").split(","))
        text = "; ".join(line.strip() for line in unmet.splitlines())
        ward.require = Finding("HOTSHOE_REQUIRE", "todo", text, f"unset HOTSHOE_REQUIRE, or make {names} available")
    # The order of what to do: nothing else helps before Python is right; then the CPU, then better devices.
    stages = (ward.python(), ward.cpu(), ward.gpus(), ward.plugins(), ward.variant(), ward.memory(), ward.settings())
    findings = [finding for stage in stages for finding in stage]
    return Diagnosis(tuple(findings), tuple(finding for finding in findings if finding.level == "todo"))


class _Ward:
    def __init__(
        self, machine: Machine, devices: Sequence[Device], verdicts: Sequence[Verdict], catalog: Sequence[Known]
    ) -> None:
        self._machine = machine
        self._devices = devices
        self._verdicts = verdicts
        self._catalog = [entry for entry in catalog if machine.platform.startswith(entry.platforms)]
        self._plugins = [verdict for verdict in verdicts if verdict.kind == "plugin"]
        self._said: set[int] = set()  # verdicts whose fix a GPU's finding has given already, by identity
        self.require: Finding | None = None

    # -- Python --

    def python(self) -> Iterator[Finding]:
        machine = self._machine
        version = ".".join(map(str, machine.python))
        text = f"{version}, {machine.bits} bits, for {machine.platform} on {machine.machine}"
        if machine.python < (3, 10, 0):
            yield Finding("python", "todo", text, "install Python 3.10 or later, and hotshoe in it")
        elif machine.bits < 64:
            why = "its programs may use 4 GiB at most, and no plugin is built for it"
            yield Finding("python", "todo", f"{text}: {why}", "install a 64-bit Python, and hotshoe in it")
        elif machine.rosetta:
            text += ": it runs translated, on an Apple processor whose GPU it cannot use"
            yield Finding("python", "todo", text, "install a Python for arm64, and hotshoe in it")
        else:
            yield Finding("python", "ok", text)
        missing = [name for name in _MODULES_NEEDED if not machine.has_module(name)]
        if missing:
            text = f"{', '.join(missing)} cannot be found, which hotshoe needs: its installation is not complete"
            yield Finding("hotshoe", "todo", text, f"pip install {' '.join(missing)}")

    # -- CPU --

    def cpu(self) -> Iterator[Finding]:
        """Whether anything but the reference computes."""
        if self.require is not None:
            yield self.require
            return
        used = [device for device in self._devices if device.provider != REFERENCE]
        if used:
            level = _level(self._machine.cpu)
            yield Finding("cpu", "ok", self._machine.cpu.name + (f", with {level}" if level else ""))
            return
        what = "only the reference backend, which is NumPy and slow" if self._devices else "no device"
        yield Finding("cpu", "todo", f"there is {what}", self._first_plugin())

    def _first_plugin(self) -> str:
        """The way from nothing to a device: mend what is installed, let in what is blocked, else install the CPU's."""
        mended = [verdict for verdict in self._plugins if verdict.outcome.broken and verdict.hint]
        mended += [verdict for verdict in self._plugins if verdict.outcome is Outcome.BLOCKED and verdict.hint]
        for verdict in mended:
            if verdict.details.get("backend") == "cpu" or len(mended) == 1:
                self._said.add(id(verdict))
                return verdict.hint or ""
        entry = next((entry for entry in self._catalog if entry.name == "cpu"), None)
        return entry.install if entry else "install a plugin"

    def variant(self) -> Iterator[Finding]:
        """Whether the CPU library in use was built for what this CPU can do."""
        device = next((device for device in self._devices if device.name == "cpu"), None)
        features = str(device.properties.get("features", "")) if device else ""
        wanted = _level(self._machine.cpu)
        if device is None or not features or not wanted:
            return
        native = {name.strip() for name in features.split(",")}
        variant = str(device.properties.get("variant", "")) or "only"
        if any(words == wanted and name in native for words, _, name in _LEVELS):
            yield Finding("cpu library", "ok", f"the {variant} variant uses {wanted}")
        else:
            yield Finding(
                "cpu library",
                "todo",
                f"this CPU has {wanted}, which the {variant} variant in use was built without",
                f"pip install --force-reinstall --no-binary {_OURS} {_OURS}",
            )

    # -- GPUs --

    def gpus(self) -> Iterator[Finding]:
        machine = self._machine
        if not machine.gpus:
            text = "no GPU on the PCI bus, and no driver of one"
            if machine.container:
                text += f". This is a container ({machine.container}), which sees only what it is given"
            yield Finding("gpu", "note", text)
        vendors: dict[str, list[Gpu]] = {}
        for gpu in machine.gpus:
            vendors.setdefault(gpu.vendor, []).append(gpu)
        for vendor, gpus in vendors.items():
            yield self._gpu(vendor, gpus)

    def _gpu(self, vendor: str, gpus: Sequence[Gpu]) -> Finding:
        about = "gpu"
        what = str(gpus[0]) if len(gpus) == 1 else f"{len(gpus)} {vendor} GPUs"
        entries = [entry for entry in self._catalog if vendor in entry.vendors]
        used = self._used(gpus, entries)
        if used:
            return Finding(about, "ok", f"{what}: used as {', '.join(device.name for device in used)}")
        installed = [verdict for verdict in self._about(entries) if verdict.outcome is not Outcome.NOT_INSTALLED]
        published = [entry for entry in entries if entry.published]
        obstacle = self._obstacle(vendor, gpus, entries)
        if not installed and not published:
            names = " and ".join(entry.distribution for entry in entries) or "none"
            text = f"{what}: no plugin for it is published yet ({names}: planned), so models run on the CPU"
            return Finding(about, "note", f"{text}. Also, {obstacle[0]}" if obstacle else text)
        if obstacle:
            self._said.update(id(verdict) for verdict in installed)
            return Finding(about, "todo", f"{what} is not used: {obstacle[0]}", obstacle[1])
        if not installed:
            best = published[0]
            return Finding(about, "todo", f"{what} is not used: {best.distribution} is not installed", best.install)
        worst = next((verdict for verdict in installed if verdict.outcome is not Outcome.BLOCKED), installed[0])
        self._said.add(id(worst))
        # A block is the user's wish; anything else stands between a GPU and its plugin.
        level: Level = "note" if worst.outcome is Outcome.BLOCKED else "todo"
        return Finding(about, level, f"{what} is not used: {_say(worst)}", worst.hint)

    def _used(self, gpus: Sequence[Gpu], entries: Sequence[Known]) -> list[Device]:
        """The devices through which GPUs of one vendor are used: by PCI id, or by the backend's name."""
        ids = {gpu.pci_id.lower() for gpu in gpus if gpu.pci_id}
        own = {entry.name for entry in entries if len(entry.vendors) == 1}
        found = []
        for device in self._devices:
            if device.type in _GPUS:
                same = device.pci_id.lower() in ids if device.pci_id and ids else False
                alone = len({gpu.vendor for gpu in self._machine.gpus}) == 1 and not device.pci_id
                if same or alone or device.name.partition(":")[0] in own:
                    found.append(device)
        return found

    def _about(self, entries: Iterable[Known]) -> list[Verdict]:
        names = {entry.name for entry in entries}
        return [verdict for verdict in self._plugins if verdict.details.get("backend") in names]

    def _obstacle(self, vendor: str, gpus: Sequence[Gpu], entries: Sequence[Known]) -> tuple[str, str] | None:
        """What stands between programs and the GPUs, whatever plugin there is; and the way to remove it."""
        machine, driver = self._machine, gpus[0].driver
        if vendor == "Apple" or driver == "dxg":
            return None
        if all(gpu.driver == "vfio-pci" for gpu in gpus):
            return "it is set aside for a virtual machine (vfio-pci)", "give it back to the host"
        nodes = machine.nodes(vendor)
        if not nodes and machine.container:
            return f"this {machine.container} container was not given it", _GIVE[machine.container, vendor == "NVIDIA"]
        if not nodes:
            bound = f"the kernel driver {driver} is bound to it" if driver else "no kernel driver is bound to it"
            if vendor == "NVIDIA" and driver != "nvidia":
                return f"{bound}, not NVIDIA's", "install NVIDIA's driver, then restart: https://www.nvidia.com/drivers"
            make = "sudo nvidia-modprobe -u -c=0" if vendor == "NVIDIA" else f"sudo modprobe {_MODULES[vendor]}"
            return f"{bound}, and there is no device file for it in /dev", make
        if not any(node.allowed for node in nodes):
            node = nodes[-1]
            if node.group in (None, "root"):
                return f"you may not use {node.path}", f"sudo chmod a+rw {' '.join(node.path for node in nodes)}"
            join = f"sudo usermod -aG {node.group} $USER, then log in again"
            return f"you may not use {node.path}, which belongs to the group {node.group}", join
        least = min((entry.least_driver for entry in entries if entry.least_driver), default=0)
        if vendor == "NVIDIA" and machine.nvidia_driver and machine.nvidia_driver.major < least:
            has = machine.nvidia_driver.version
            return (
                f"its driver is {has}, expected {least} or later",
                f"install NVIDIA's driver {least} or later",
            )
        return None

    # -- what is installed --

    def plugins(self) -> Iterator[Finding]:
        """The verdicts on what is installed; those about GPUs that were explained above are notes here."""
        for verdict in self._plugins:
            if verdict.outcome is Outcome.NOT_INSTALLED or verdict.candidate == REFERENCE:
                continue
            text = f"{verdict.outcome.value}: {verdict.reason}"
            broken = verdict.outcome.broken or verdict.outcome is Outcome.SHADOWED
            if verdict.outcome.usable:
                yield Finding(verdict.candidate, "note" if verdict.details.get("dropped") else "ok", text)
            elif self._pointless(verdict):
                yield Finding(verdict.candidate, "note", f"{text}. This machine has no GPU that it drives")
            else:
                level: Level = "todo" if broken and id(verdict) not in self._said else "note"
                yield Finding(verdict.candidate, level, text, verdict.hint)
        # A library's verdict counts where its plugin works with another one all the same.
        for verdict in self._verdicts:
            if verdict.kind == "library" and verdict.outcome.broken and not self._explained(verdict):
                yield Finding(verdict.candidate, "todo", f"{verdict.outcome.value}: {verdict.reason}", verdict.hint)

    def _pointless(self, verdict: Verdict) -> bool:
        """Whether a plugin lacks what comes with the driver of a GPU that this machine does not have."""
        entry = next((entry for entry in self._catalog if entry.name == verdict.details.get("backend")), None)
        here = {gpu.vendor for gpu in self._machine.gpus}
        lacking = verdict.outcome in (Outcome.NO_DEVICE, Outcome.MISSING_DEPENDENCY)
        return entry is not None and bool(entry.vendors) and lacking and here.isdisjoint(entry.vendors)

    def _explained(self, library: Verdict) -> bool:
        provider = library.details.get("provider")
        return any(not v.outcome.usable and v.details.get("provider") == provider for v in self._plugins)

    # -- the rest --

    def memory(self) -> Iterator[Finding]:
        if self._machine.memory is not None:
            total, free = self._machine.memory
            where = f" in this container ({self._machine.container})" if self._machine.container else ""
            yield Finding("memory", "ok", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free{where}")

    def settings(self) -> Iterator[Finding]:
        """Environment variables that change what is found: forgotten ones explain much."""
        for name in sorted(self._machine.environ):
            if name.startswith("HOTSHOE_") and self._machine.environ[name]:
                yield Finding(name, "note", f"is set to {self._machine.environ[name]!r}")


_OURS = "hotshoe-ggml-cpu"

_MODULES_NEEDED = ("numpy", "pluggy", "gguf", "jinja2", "tokenizers")  # called as their distributions are

_MODULES: Mapping[str, str] = {"AMD": "amdgpu", "Intel": "i915"}

# How a container is given GPUs: by its kind, and whether they are NVIDIA's.
_GIVE: Mapping[tuple[str, bool], str] = {
    ("docker", True): "start it with: docker run --gpus all",
    ("docker", False): "start it with: docker run --device /dev/dri --device /dev/kfd",
    ("podman", True): "start it with: podman run --device nvidia.com/gpu=all",
    ("podman", False): "start it with: podman run --device /dev/dri",
    ("kubernetes", True): "ask for it in the pod: resources: {limits: {nvidia.com/gpu: 1}}",
    ("kubernetes", False): "ask for it in the pod, by the resource name of its device plugin",
}

# Words, the operating system's name and ggml's, best first. Each is a step that CPU libraries are built for.
_LEVELS = (
    ("AMX", "amx_int8", "AMX_INT8"),
    ("AVX-512", "avx512f", "AVX512"),
    ("AVX2", "avx2", "AVX2"),
    ("AVX", "avx", "AVX"),
    ("SVE", "sve", "SVE"),
    ("I8MM", "i8mm", "MATMUL_INT8"),
    ("dot products", "asimddp", "DOTPROD"),
)


def _level(cpu: Cpu) -> str:
    """The best instruction set the operating system enables, in words; "" where it does not say."""
    return next((words for words, feature, _ in _LEVELS if feature in cpu.features), "")


def _say(verdict: Verdict) -> str:
    return f"{verdict.candidate} is {verdict.outcome.value}: {verdict.reason}"
