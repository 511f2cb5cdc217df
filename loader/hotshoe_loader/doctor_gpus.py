"""The doctor's checks of GPUs: whether each one is used, and if not, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors.install import has_wheels
from hotshoe_loader.catalog import CatalogEntry
from hotshoe_loader.diagnosis import Finding
from hotshoe_loader.machine import Gpu, Machine
from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["GpuExaminer"]

_GPUS = (DeviceType.GPU, DeviceType.IGPU)

_MODULES: Mapping[str, str] = {"AMD": "amdgpu", "Intel": "i915"}

# How to pass GPUs to a container, by its kind and whether the GPU is NVIDIA's.
_PASS_GPU: Mapping[tuple[str, bool], str] = {
    ("docker", True): "start it with: docker run --gpus all",
    ("docker", False): "start it with: docker run --device /dev/dri --device /dev/kfd",
    ("podman", True): "start it with: podman run --device nvidia.com/gpu=all",
    ("podman", False): "start it with: podman run --device /dev/dri",
    ("kubernetes", True): "request it in the pod: resources: {limits: {nvidia.com/gpu: 1}}",
    ("kubernetes", False): "request it in the pod, by the resource name of its device plugin",
}


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that hide GPUs from programs."""

_READY_SET = (
    "npm pack @node-llama-cpp/linux-x64-vulkan@3.22.1 && tar xzf node-llama-cpp-linux-x64-vulkan-3.22.1.tgz && "
    "export HOTSHOE_GGML=$PWD/package/bins/linux-x64-vulkan"
)
"""How to get ggml's libraries for GPUs of any vendor, ready to use: see docs/loader.md."""


def _names(devices: Iterable[Device]) -> str:
    return ", ".join(device.name for device in devices)


class GpuExaminer:
    """Compares a machine's GPUs with the devices and plugins. ``plugins``: the verdicts on plugins."""

    def __init__(
        self, machine: Machine, devices: Sequence[Device], plugins: Sequence[Verdict], catalog: Sequence[CatalogEntry]
    ) -> None:
        self._machine = machine
        self._devices = devices
        self._plugins = plugins
        self._catalog = catalog
        self.explained: set[int] = set()
        """The ids of the verdicts that a finding has explained: their hints are not repeated."""

    def findings(self) -> Iterator[Finding]:
        machine = self._machine
        if not machine.gpus:
            text = "found no GPU on the PCI bus and no GPU driver"
            if machine.container:
                text += f". This is a container ({machine.container}): it sees only the devices that are passed to it"
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
            return self._idle(gpus, used, entries) or Finding(about, "ok", f"{what}: used as {_names(used)}")
        installed = [verdict for verdict in self._about(entries) if verdict.outcome is not Outcome.NOT_INSTALLED]
        if not entries:
            return Finding(about, "note", f"{what}: there is no plugin for it, so models run on the CPU")
        obstacle = self._obstacle(vendor, gpus, entries)
        if obstacle:
            self.explained.update(id(verdict) for verdict in installed)
            return Finding(about, "todo", f"{what} is not used: {obstacle[0]}", obstacle[1])
        if not installed:
            best = entries[0]
            fix = self._install(best, entries)
            return Finding(about, "todo", f"{what} is not used: {best.distribution} is not installed", fix)
        worst = next((verdict for verdict in installed if verdict.outcome is not Outcome.BLOCKED), installed[0])
        self.explained.add(id(worst))
        reason = f"{worst.candidate} is {worst.outcome.value}: {worst.reason}"
        return Finding(about, "todo", f"{what} is not used: {reason}", worst.hint)

    def _idle(self, gpus: Sequence[Gpu], used: Sequence[Device], entries: Sequence[CatalogEntry]) -> Finding | None:
        """The finding about GPUs that are not used, while others of their vendor are."""
        ids = {device.pci_id.lower() for device in used if device.pci_id}
        idle = [gpu for gpu in gpus if gpu.pci_id and gpu.pci_id.lower() not in ids]
        if not idle or len(used) >= len(gpus):
            return None
        variable = next((name for name in _VISIBLE if self._machine.environ.get(name)), None)
        dropped = next((verdict for verdict in self._about(entries) if verdict.details.get("dropped")), None)
        reason, fix = "no plugin lists it", "hotshoe devices -v shows what each plugin found"
        if dropped is not None:
            self.explained.add(id(dropped))
            reason, fix = "; ".join(map(str, dropped.details["dropped"])), dropped.hint or fix
        elif variable is not None:
            reason, fix = f"{variable} is set to {self._machine.environ[variable]!r}", f"unset {variable}"
        which = ", ".join(map(str, idle)) if ids else f"of {len(gpus)} GPUs, {len(gpus) - len(used)}"
        return Finding("gpu", "todo", f"{which} is not used, {_names(used)} is: {reason}", fix)

    def _install(self, best: CatalogEntry, entries: Sequence[CatalogEntry]) -> str:
        """How to get a plugin: the way without a compiler first."""
        machine = self._machine
        has_set = (machine.platform, machine.machine) == ("linux", "x86_64") and "vulkan" in [e.name for e in entries]
        if has_wheels() or not has_set:
            return best.install
        return f"without a compiler: {_READY_SET}; or compile the plugin: {best.install}"

    def _used(self, gpus: Sequence[Gpu], entries: Sequence[CatalogEntry]) -> list[Device]:
        """The devices that use the GPUs of one vendor, found by PCI id or by the backend's name."""
        ids = {gpu.pci_id.lower() for gpu in gpus if gpu.pci_id}
        backends = {entry.name for entry in entries if len(entry.vendors) == 1}
        found = []
        for device in self._devices:
            if device.type in _GPUS:
                same = device.pci_id.lower() in ids if device.pci_id and ids else False
                alone = len({gpu.vendor for gpu in self._machine.gpus}) == 1 and not device.pci_id
                if same or alone or device.name.partition(":")[0] in backends:
                    found.append(device)
        return found

    def _about(self, entries: Iterable[CatalogEntry]) -> list[Verdict]:
        names = {entry.name for entry in entries}
        return [verdict for verdict in self._plugins if verdict.details.get("backend") in names]

    def _obstacle(self, vendor: str, gpus: Sequence[Gpu], entries: Sequence[CatalogEntry]) -> tuple[str, str] | None:
        """Why no plugin can use the GPUs, and what to do about it; None if nothing prevents it."""
        machine, driver = self._machine, gpus[0].driver
        if vendor == "Apple" or driver == "dxg":
            return None
        if all(gpu.driver == "vfio-pci" for gpu in gpus):
            return "it is reserved for a virtual machine (vfio-pci)", "unbind it from vfio-pci and bind its own driver"
        nodes = machine.nodes(vendor)
        if not nodes and machine.container:
            return f"it is not passed to this {machine.container} container", _PASS_GPU[
                machine.container, vendor == "NVIDIA"
            ]
        if not nodes:
            bound = f"the kernel driver {driver} is bound to it" if driver else "no kernel driver is bound to it"
            if vendor == "NVIDIA" and driver != "nvidia":
                return f"{bound}, not NVIDIA's", "install NVIDIA's driver, then restart: https://www.nvidia.com/drivers"
            make = "sudo nvidia-modprobe -u -c=0" if vendor == "NVIDIA" else f"sudo modprobe {_MODULES[vendor]}"
            return f"{bound}, but its device file in /dev is missing", make
        if not any(node.allowed for node in nodes):
            node = nodes[-1]
            if node.group in (None, "root"):
                return (
                    f"you have no permission for {node.path}",
                    f"sudo chmod a+rw {' '.join(node.path for node in nodes)}",
                )
            join = f"sudo usermod -aG {node.group} $USER, then log in again"
            return f"you have no permission for {node.path}, which belongs to the group {node.group}", join
        minimum = min((entry.min_driver for entry in entries if entry.min_driver), default=0)
        if vendor == "NVIDIA" and machine.nvidia_driver and machine.nvidia_driver.major < minimum:
            has = machine.nvidia_driver.version
            return (
                f"its driver is {has}, expected {minimum} or later",
                f"install NVIDIA's driver {minimum} or later",
            )
        return None
