"""The doctor on made-up machines: its findings, and what it says to do next."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import install
from hotshoe_loader.doctor import Diagnosis, examine
from hotshoe_loader.machine import Machine
from hotshoe_loader.misspelt import unknown_variables
from hotshoe_loader.verdict import Outcome, Verdict

CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx avx2 avx512f\n\nprocessor\t: 1\n"
MEMINFO = "MemTotal:       33554432 kB\nMemFree:  1 kB\nMemAvailable:   16777216 kB\n"
NVRM = "NVRM version: NVIDIA UNIX {kind}  {version}  Thu Feb 22 01:44:30 UTC 2026\nGCC version: 13\n"

CPU = Device("cpu", DeviceType.CPU, "ggml-cpu", "ggml", properties={"variant": "zen4", "features": "AVX2, AVX512"})
REFERENCE = Device("reference", DeviceType.CPU, "reference", "reference")
CUDA = Device("cuda:0", DeviceType.GPU, "ggml-cuda", "ggml", pci_id="0000:01:00.0")


class Box:
    """A machine of files: ``Box(tmp_path).gpu("0x10de", driver="nvidia").driver("550.54")``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.options: dict[str, object] = {"platform": "linux", "machine": "x86_64", "environ": {}, "bits": 64}
        self.forbidden: set[str] = set()
        self.groups: dict[str, str] = {}
        self.absent: set[str] = set()
        self.file("/proc/cpuinfo", CPUINFO).file("/proc/meminfo", MEMINFO)

    def file(self, path: str, text: str = "") -> Box:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return self

    def gpu(self, vendor: str, place: str = "0000:01:00.0", driver: str | None = None, kind: str = "0x030000") -> Box:
        folder = f"/sys/bus/pci/devices/{place}"
        self.file(f"{folder}/class", f"{kind}\n").file(f"{folder}/vendor", f"{vendor}\n")
        if driver:
            (self.root / folder.lstrip("/") / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        return self

    def driver(self, version: str, kind: str = "x86_64 Kernel Module") -> Box:
        return self.file("/proc/driver/nvidia/version", NVRM.format(kind=kind, version=version))

    def node(self, path: str, allowed: bool = True, group: str = "root") -> Box:
        self.groups[path] = group
        if not allowed:
            self.forbidden.add(path)
        return self.file(path)

    def nvidia(self, version: str = "590.10.01") -> Box:
        """A machine on which CUDA would work."""
        return self.gpu("0x10de", driver="nvidia").driver(version).node("/dev/nvidiactl").node("/dev/nvidia0")

    def machine(self, **options: object) -> Machine:
        def name(path: Path) -> str:
            return f"/{path.relative_to(self.root)}"

        return Machine(
            self.root,
            has_module=lambda module: module not in self.absent,
            may_use=lambda path: name(path) not in self.forbidden,
            group_of=lambda path: self.groups.get(name(path)),
            **{**self.options, **options},  # type: ignore[arg-type]
        )


def verdict(name: str, outcome: Outcome, reason: str = "", hint: str | None = None, **details: str) -> Verdict:
    return Verdict(name, "plugin", outcome, reason, hint, f"{name} 1.0", details={"provider": name, **details})


LOADED = verdict("ggml-cpu", Outcome.LOADED, "offers cpu", backend="cpu")


def check(box: Box, *verdicts: Verdict, devices=(CPU, REFERENCE), **options: object) -> Diagnosis:
    return examine(box.machine(**options), devices, verdicts or (LOADED,))


def text(diagnosis: Diagnosis, about: str) -> str:
    return " / ".join(finding.text for finding in diagnosis.findings if finding.about == about)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_nothing_special_is_healthy(box):
    found = check(box)
    assert found.healthy
    assert found.next is None
    assert text(found, "cpu") == "AMD EPYC, with AVX-512"
    assert text(found, "cpu library") == "the zen4 variant uses AVX-512"
    assert text(found, "memory") == "16.0 of 32.0 GiB free"
    assert "no GPU on the PCI bus" in text(found, "gpu")


# what, how the machine is made, words of the GPU's finding, the one thing to do (None: nothing)
GPUS = [
    ("no plugin", lambda b: b.nvidia(), "hotshoe-ggml-cuda is not installed", "pip install hotshoe-ggml-cuda"),
    ("datacentre", lambda b: b.nvidia().gpu("0x10de", "0000:02:00.0", "nvidia", "0x030200"), "2 NVIDIA GPUs", "pip"),
    ("old driver", lambda b: b.nvidia("550.54.14"), "its driver is 550.54.14", "install NVIDIA's driver 580 or later"),
    (
        "open driver",
        lambda b: b.nvidia().driver("470.1", "Open Kernel Module for x86_64"),
        "its driver is 470.1",
        "install NVIDIA's driver 580 or later",
    ),
    (
        "no driver",
        lambda b: b.gpu("0x10de"),
        "no kernel driver is bound to it",
        "install NVIDIA's driver, then restart",
    ),
    ("nouveau", lambda b: b.gpu("0x10de", driver="nouveau"), "the kernel driver nouveau", "install NVIDIA's driver"),
    (
        "no node",
        lambda b: b.gpu("0x10de", driver="nvidia").driver("590.1"),
        "its device file in /dev is missing",
        "nvidia-modprobe",
    ),
    (
        "docker",
        lambda b: b.gpu("0x10de", driver="nvidia").file("/.dockerenv"),
        "it is not passed to this",
        "docker run --gpus",
    ),
    (
        "podman",
        lambda b: b.gpu("0x10de").file("/run/.containerenv"),
        "it is not passed to this",
        "podman run --device nvidia",
    ),
    (
        "set aside",
        lambda b: b.gpu("0x10de", driver="vfio-pci"),
        "virtual machine (vfio-pci)",
        "unbind it from vfio-pci",
    ),
    (
        "no permission",
        lambda b: b.gpu("0x1002", driver="amdgpu").node("/dev/dri/renderD128", False, "render"),
        "you have no permission for /dev/dri/renderD128, which belongs to the group render",
        "sudo usermod -aG render $USER, then log in again",
    ),
    (
        "no permission for nvidia",
        lambda b: b.gpu("0x10de", driver="nvidia").driver("590.1").node("/dev/nvidia0", False),
        "you have no permission for /dev/nvidia0",
        "sudo chmod a+rw /dev/nvidia0",
    ),
    (
        "amd",
        lambda b: b.gpu("0x1002", driver="amdgpu").node("/dev/dri/renderD128", group="render"),
        "AMD GPU at 0000:01:00.0 is not used: hotshoe-ggml-vulkan is not installed",
        "pip install hotshoe-ggml-vulkan",
    ),
    (
        "amd accelerator",
        lambda b: b.gpu("0x1002", driver="amdgpu", kind="0x120000").node("/dev/dri/renderD128"),
        "AMD GPU",
        "pip install hotshoe-ggml-vulkan",
    ),
    (
        "amd in docker",
        lambda b: b.gpu("0x1002", driver="amdgpu").file("/.dockerenv"),
        "not passed",
        "--device /dev/dri",
    ),
    ("amd without driver", lambda b: b.gpu("0x1002"), "no kernel driver is bound to it", "sudo modprobe amdgpu"),
    (
        "intel",
        lambda b: b.gpu("0x8086", "0000:00:02.0", "i915").node("/dev/dri/renderD128"),
        "Intel GPU at 0000:00:02.0 is not used",
        "pip install hotshoe-ggml-vulkan",
    ),
    ("hidden bus", lambda b: b.driver("590.1").node("/dev/nvidiactl"), "NVIDIA GPU is not used", "pip install"),
    ("wsl", lambda b: b.node("/dev/dxg").file("/usr/lib/wsl/lib/libcuda.so.1"), "NVIDIA GPU is not", "pip install"),
    ("a console", lambda b: b.gpu("0x1a03", driver="ast"), "no GPU on the PCI bus", None),
    (
        "empty container",
        lambda b: b.file("/.dockerenv"),
        "a container (docker): it sees only the devices that are passed to it",
        None,
    ),
]


@pytest.mark.parametrize(("make", "words", "step"), [row[1:] for row in GPUS], ids=[row[0] for row in GPUS])
def test_gpus(box, make, words, step):
    found = check(make(box))
    assert words in text(found, "gpu")
    assert found.healthy == (step is None)
    if step is not None:
        assert step in found.next.fix


def test_apple(box):
    found = check(box, platform="darwin", machine="arm64")
    assert "Apple GPU is not used: hotshoe-ggml-metal is not installed" in text(found, "gpu")
    assert found.next.fix == "pip install hotshoe-ggml-metal"
    assert check(box, platform="darwin", machine="x86_64").healthy


def test_a_translated_python(box):
    box.file("/Library/Apple/usr/libexec/oah/libRosettaRuntime")
    found = check(box, platform="darwin", machine="x86_64")
    assert found.next.fix == "install a Python for arm64, then hotshoe in it"


def test_a_gpu_that_is_used_is_healthy(box):
    found = check(box.nvidia(), devices=(CUDA, CPU, REFERENCE))
    assert found.healthy
    assert text(found, "gpu") == "NVIDIA GPU at 0000:01:00.0: used as cuda:0"


def test_one_vendor_is_used_and_the_other_is_not(box):
    box.nvidia().gpu("0x1002", "0000:0a:00.0", "amdgpu").node("/dev/dri/renderD128", group="render")
    found = check(box, devices=(CUDA, CPU, REFERENCE))
    assert "used as cuda:0" in text(found, "gpu")
    assert found.next.text.startswith("AMD GPU at 0000:0a:00.0 is not used")


def test_an_idle_gpu_beside_one_that_is_used_is_not_healthy(box):
    box.nvidia().gpu("0x10de", "0000:02:00.0", "nvidia")
    found = check(box, devices=(CUDA, CPU, REFERENCE))
    assert found.next.text == "NVIDIA GPU at 0000:02:00.0 is not used, cuda:0 is: no plugin lists it"
    found = check(box, devices=(CUDA, CPU, REFERENCE), environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert found.next.fix == "unset CUDA_VISIBLE_DEVICES"
    both = (CUDA, replace(CUDA, name="cuda:1", pci_id="0000:02:00.0"), CPU)
    assert check(box, devices=both).healthy


def test_a_device_that_failed_its_test_is_not_healthy(box):
    box.nvidia().gpu("0x10de", "0000:02:00.0", "nvidia")
    cuda = Verdict(
        "ggml-cuda", "plugin", Outcome.AVAILABLE, "offers cuda:0; not used: it did not finish", "name it, and wait",
        "ggml-cuda 1.0", details={"backend": "cuda", "dropped": ["it did not finish"]},
    )  # fmt: skip
    found = check(box, LOADED, cuda, devices=(CUDA, CPU, REFERENCE))
    assert [finding.fix for finding in found.todo] == ["name it, and wait"], "once"
    rpc = replace(cuda, candidate="ggml-rpc", details={"backend": "rpc", "dropped": ["no server answers at …"]})
    both = (CUDA, replace(CUDA, name="cuda:1", pci_id="0000:02:00.0"), CPU)
    assert [finding.about for finding in check(box, LOADED, rpc, devices=both).todo] == ["ggml-rpc"]


@pytest.mark.parametrize(
    ("make", "vendor"),
    [
        (lambda b: b.node("/dev/dri/renderD128").file("/sys/class/drm/renderD128/device/vendor", "0x8086\n"), "Intel"),
        (lambda b: b.node("/dev/dri/renderD128").node("/dev/kfd"), "AMD"),
    ],
)
def test_a_gpu_whose_bus_is_hidden_is_known_by_its_device_files(box, make, vendor):
    found = check(make(box))
    assert text(found, "gpu") == f"{vendor} GPU is not used: hotshoe-ggml-vulkan is not installed"
    assert not found.healthy


@pytest.mark.parametrize(
    "make", [lambda b: b.nvidia(), lambda b: b.gpu("0x1002", driver="amdgpu").node("/dev/dri/renderD128")]
)
def test_from_a_checkout_the_way_without_a_compiler_comes_first(box, make, monkeypatch):
    monkeypatch.setattr(install, "_checkout", lambda: "/home/me/hotshoe")
    fix = check(make(box)).next.fix
    assert fix.startswith("without a compiler: npm pack @node-llama-cpp/linux-x64-vulkan@")
    assert "or compile the plugin: " in fix
    command = fix.partition(": ")[2].partition("; or")[0]
    documented = (Path(__file__).parents[2] / "docs" / "loader.md").read_text()
    assert all(part in documented for part in command.split(" && ")), "the document has the same commands"


BROKEN_CUDA = verdict("ggml-cuda", Outcome.CRASHED, "it died of SIGSEGV", "update the driver", backend="cuda")


def test_a_plugin_that_is_broken_is_the_reason(box):
    found = check(box.nvidia(), LOADED, BROKEN_CUDA)
    assert "is not used: ggml-cuda is crashed: it died of SIGSEGV" in text(found, "gpu")
    assert found.next.fix == "update the driver"
    assert len(found.todo) == 1, "named once"


def test_the_driver_comes_before_what_it_breaks(box):
    found = check(box.nvidia("550.1"), LOADED, BROKEN_CUDA)
    assert [finding.fix for finding in found.todo] == ["install NVIDIA's driver 580 or later"]


def test_a_machine_with_a_blocked_gpu_is_not_healthy(box):
    """The user wanted that, perhaps for one program. The best device is not used, and the doctor says how it can be."""
    blocked = verdict("ggml-cuda", Outcome.BLOCKED, "'cuda' is blocked", "take 'cuda' out of block=", backend="cuda")
    found = check(box.nvidia(), LOADED, blocked)
    assert not found.healthy
    assert "ggml-cuda is blocked" in text(found, "gpu")
    assert found.next.fix == "take 'cuda' out of block="


@pytest.mark.parametrize("outcome", [Outcome.NO_DEVICE, Outcome.MISSING_DEPENDENCY])
def test_a_gpu_plugin_without_a_gpu(box, outcome):
    idle = verdict("ggml-cuda", outcome, "libcuda.so.1 is missing", "install what brings it", backend="cuda")
    found = check(box, LOADED, idle)
    assert found.healthy
    assert "This machine has no GPU that it drives" in text(found, "ggml-cuda")


# -- the rest of the machine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({"bits": 32}, "install a 64-bit Python"),
        ({"python": (3, 10, 14)}, "install Python 3.11 or later"),
    ],
)
def test_python_comes_first(box, options, step):
    found = check(box.nvidia(), devices=(REFERENCE,), **options)
    assert step in found.next.fix
    assert len(found.todo) > 2


def test_an_installation_that_is_not_complete(box):
    box.absent |= {"pluggy", "gguf"}
    found = check(box)
    assert found.next.fix == "pip install pluggy gguf"


def test_no_plugin(box):
    found = check(box, verdict("reference", Outcome.AVAILABLE), devices=(REFERENCE,))
    assert found.next.fix == "pip install hotshoe-ggml-cpu"
    assert "only the reference backend" in found.next.text


def test_the_only_plugin_is_broken(box):
    broken = verdict("ggml-cpu", Outcome.MISSING_DEPENDENCY, "needs cffi", "pip install cffi", backend="cpu")
    found = check(box, broken, devices=(REFERENCE,))
    assert found.next.fix == "pip install cffi"
    assert len(found.todo) == 1


def test_a_broken_plugin_of_others_is_something_to_do(box):
    other = verdict("acme", Outcome.TIMED_OUT, "no answer in 30 s", "report it to the authors of acme")
    found = check(box, LOADED, other)
    assert not found.healthy
    assert found.next.about == "acme"


def test_a_variant_below_the_cpu(box):
    slow = replace(CPU, properties={"variant": "x64", "features": "SSE3"})
    found = check(box, devices=(slow, REFERENCE))
    assert "this CPU has AVX-512, but the x64 variant in use was built without it" in found.next.text
    assert "--no-binary hotshoe-ggml-cpu" in found.next.fix


@pytest.mark.parametrize("features", ["AVX2, AVX512", "AVX2"])
def test_a_feature_that_the_system_does_not_enable_is_not_reported(box, features):
    box.file("/proc/cpuinfo", CPUINFO.replace(" avx512f", ""))
    used = replace(CPU, properties={"variant": "haswell", "features": features})
    assert check(box, devices=(used, REFERENCE)).healthy


@pytest.mark.parametrize("path", ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"])
def test_the_memory_of_a_container_is_what_it_may_use(box, path):
    used = path.replace("limit_in_bytes", "usage_in_bytes").replace("max", "current")
    box.file(path, f"{4 << 30}\n").file(used, f"{1 << 30}\n").file("/.dockerenv")
    assert text(check(box), "memory") == "3.0 of 4.0 GiB free in this container (docker)"


@pytest.mark.parametrize("limit", ["max", str(1 << 63)])
def test_no_limit_is_no_limit(box, limit):
    box.file("/sys/fs/cgroup/memory.max", limit)
    assert box.machine().memory == (32 << 30, 16 << 30)


def test_a_machine_that_tells_nothing(tmp_path):
    machine = Machine(tmp_path / "nothing", platform="linux", environ={})
    assert machine.memory is None
    assert machine.gpus == ()
    assert examine(machine, (CPU, REFERENCE), (LOADED,)).healthy


def test_settings_are_shown(box):
    found = check(box, environ={"HOTSHOE_BLOCK": "vulkan", "HOME": "/", "HOTSHOE_PATH": ""})
    assert [finding.about for finding in found.findings if finding.about.startswith("HOTSHOE")] == ["HOTSHOE_BLOCK"]


def test_a_setting_that_nothing_reads(box):
    machine = box.machine(environ={"HOTSHOE_REQUIER": "gpu"})
    notes = tuple(unknown_variables((), machine.environ))
    found = examine(machine, (CPU,), (LOADED,), notes=notes)
    assert found.next.text == "the environment variable HOTSHOE_REQUIER has no effect"
    assert found.next.fix == "did you mean 'HOTSHOE_REQUIRE'?"


def test_a_requirement_that_is_not_met(box):
    machine = box.machine(environ={"HOTSHOE_REQUIRE": "cuda"})
    found = examine(machine, (), (LOADED,), "require='cuda' matches no device\nand more")
    assert found.next.text == "require='cuda' matches no device"
    assert "unset HOTSHOE_REQUIRE" in found.next.fix


def test_json(box):
    report = json.loads(json.dumps(check(box.nvidia()).to_json()))
    assert set(report) == {"healthy", "next", "findings"}
    assert report["healthy"] is False
    assert report["next"] in report["findings"]
    assert all(set(row) == {"about", "level", "text", "fix"} for row in report["findings"])
    assert {row["level"] for row in report["findings"]} <= {"ok", "note", "todo"}
