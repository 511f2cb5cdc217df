"""The registry: which device comes first, what a name means, why, and what to do if it matches no device."""

from __future__ import annotations

import logging
import platform
import sys

import pytest

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.errors import BackendError, DeviceNotFoundError, HotshoeError, PluginError
from hotshoe_loader import Outcome, Verdict, load_all
from hotshoe_loader.rank import rank
from hotshoe_loader.texts import not_found
from tests.support.fake_plugins import GOOD

GIB = 1 << 30


def device(name: str, type: DeviceType = DeviceType.GPU, total: int = 0, free: int = 0, **more: str) -> Device:
    more = {"provider": f"ggml-{name.partition(':')[0]}", "family": "ggml", **more}
    return Device(name, type, memory_total=total * GIB, memory_free=free * GIB, **more)


def names(devices) -> list[str]:
    return [item.name for item in devices]


REFERENCE = device("reference", DeviceType.CPU, provider="reference", family="reference")


def test_devices_by_type_memory_and_name():
    devices = [
        REFERENCE,
        device("cpu", DeviceType.CPU, 512),
        device("blas", DeviceType.ACCEL),
        device("vulkan:1", DeviceType.IGPU, 64),
        device("cuda:10", total=8),
        device("cuda:2", total=8),
        device("cuda:3", total=8, free=7),
        device("cuda:0", total=24),
    ]
    expected = ["cuda:0", "cuda:3", "cuda:2", "cuda:10", "vulkan:1", "cpu", "blas", "reference"]
    assert names(rank(devices)) == expected
    assert names(rank(devices[::-1])) == expected


def test_one_gpu_seen_twice_is_not_two():
    devices = [
        device("vulkan:0", total=25, pci_id="0000:01:00.0"),
        device("cuda:0", total=24, pci_id="0000:01:00.0"),
        device("cuda:1", total=8, pci_id="0000:02:00.0"),
    ]
    assert names(rank(devices)) == ["cuda:0", "cuda:1", "vulkan:0"]


def test_required_then_preferred_come_first():
    devices = [REFERENCE, device("cpu", DeviceType.CPU), device("cuda:0", total=9), device("cuda:1", total=8)]
    assert names(rank(devices, ["cpu"]))[0] == "cpu"
    assert names(rank(devices, ["reference"]))[0] == "reference"
    assert names(rank(devices, ["nothing", "cuda:1", "cpu"]))[:3] == ["cuda:1", "cpu", "cuda:0"]
    assert names(rank(devices, ["cpu", "cuda:1"], ["gpu"]))[:3] == ["cuda:1", "cuda:0", "cpu"]


@pytest.fixture
def registry(site):
    """Two CUDA devices, a Vulkan view of one of them, a CPU, and a device of another family."""
    site.good("hotshoe-ggml-cuda", "'ggml-cuda', 'ggml', ('cuda:0', 'cuda:1'), DeviceType.GPU, memory_total=8 << 30")
    site.good("hotshoe-ggml-vulkan", "'ggml-vulkan', 'ggml', ('vulkan:0',), DeviceType.GPU, memory_total=4 << 30")
    site.good("hotshoe-ggml-cpu", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU, description='AMD EPYC'")
    site.good("npu-plugin", "'npu', 'npu', ('npu:0',)")
    return load_all()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ["cuda:0"]),
        ("cuda:1", ["cuda:1"]),
        ("CUDA:1", ["cuda:1"]),
        ("cuda", ["cuda:0", "cuda:1"]),
        ("gpu", ["cuda:0", "cuda:1"]),
        ("vulkan", ["vulkan:0"]),
        ("cpu", ["cpu"]),
        ("accel", ["npu:0"]),
        ("ggml-cpu", ["cpu"]),
        ("ggml", ["cuda:0", "cuda:1"]),
        ("reference", ["reference"]),
        (["cuda:1", "cpu"], ["cuda:1", "cpu"]),
        (["cuda:1", "gpu"], ["cuda:1", "cuda:0"]),
        ("cuda:1, cpu", ["cuda:1", "cpu"]),
        (["cuda:1,vulkan:0", "cpu"], ["cuda:1", "vulkan:0", "cpu"]),
    ],
)
def test_select(registry, asked, expected):
    assert names(registry.select(asked)) == expected


def test_a_backend_that_has_gpus_and_the_cpu_means_its_gpus(site):
    """As plugins of array libraries do. With layers on both devices, a model would run at the CPU's speed."""
    by_name = "DeviceType.ACCEL if name == 'both:cpu' else DeviceType.GPU, self.name"
    code = GOOD.replace("self.type, self.name", by_name)
    site.install("both", code.replace("{arguments}", "'both', 'both', ('both:cpu', 'both:0', 'both:1')"))
    registry = load_all()
    assert names(registry.select("both")) == ["both:0", "both:1"]
    assert names(registry.select("both:cpu")) == ["both:cpu"]
    assert names(registry.select(["both", "both:cpu"])) == ["both:0", "both:1", "both:cpu"]


@pytest.mark.parametrize("text", ["cuda:0,", ",", ""])
def test_nothing_between_commas_is_no_device(registry, text):
    with pytest.raises(DeviceNotFoundError):
        registry.select(text)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("cuda:0", ["cuda:0", "cpu"]),
        (None, ["cuda:0", "cpu"]),
        ("cpu", ["cpu"]),
        ("cpu,cuda:1", ["cpu", "cuda:1"]),
        ("npu", ["npu:0"]),  # no CPU of its family
    ],
)
def test_the_cpu_of_the_same_family_may_join(registry, asked, expected):
    with registry.open(asked, with_cpu=True) as backend:
        assert names(backend.devices) == expected


def test_a_device_that_was_lost_is_not_the_default_until_it_is_back(registry):
    with registry.open("cuda:0") as backend:
        backend.on_lost("cuda:0", "cuda:0 fell off the bus")
        assert names(registry.select()) == ["cuda:1"]
        assert "cuda:0 fell off the bus" in registry.explain("ggml-cuda")
        (verdict,) = [v for v in registry.verdicts if v.candidate == "ggml-cuda" and v.kind == "plugin"]
        assert (verdict.outcome, verdict.reason) == (Outcome.LOADED, "cuda:0 fell off the bus")
        backend.on_lost("cuda:1", "so did cuda:1")
        assert names(registry.select()) == ["vulkan:0"]
        (verdict,) = [v for v in registry.verdicts if v.candidate == "ggml-cuda" and v.kind == "plugin"]
        assert verdict.outcome is Outcome.NO_DEVICE
        assert "on another" in verdict.hint
    assert names(registry.select("cuda:0")) == ["cuda:0"]  # who names it may try
    registry.open("cuda:0").close()
    assert names(registry.select()) == ["cuda:0"]


@pytest.mark.parametrize("wrong", [[], 3, [3], [None]])
def test_select_takes_names(registry, wrong):
    with pytest.raises(TypeError):
        registry.select(wrong)


def test_an_unknown_device_names_the_nearest(registry):
    with pytest.raises(DeviceNotFoundError) as caught:
        registry.select("cudo:1")
    assert caught.value.hint == "did you mean 'cuda:1'?"
    assert "device='cudo:1'" in caught.value.message
    assert "cpu (ggml-cpu)" in caught.value.message
    assert caught.value.verdicts == registry.verdicts


def test_a_device_number_too_high_names_those_that_are_there(registry):
    with pytest.raises(DeviceNotFoundError) as caught:
        registry.select("cuda:7")
    assert caught.value.hint == "use one of: cuda:0, cuda:1"


@pytest.mark.parametrize("name", ["cuda", "vulkan", "mlx", "cpu", "cuda:0", "hotshoe-ggml-cuda"])
def test_a_backend_that_is_not_installed_names_its_command(site, name):
    with pytest.raises(DeviceNotFoundError) as caught:
        load_all().select(name)
    distribution = f"hotshoe-{'' if name == 'mlx' else 'ggml-'}{name.partition(':')[0].removeprefix('hotshoe-ggml-')}"
    assert f"pip install {distribution}" in caught.value.hint


def test_a_published_backend_that_is_broken_names_its_remedy(site):
    site.install("hotshoe-ggml-cuda", "import nowhere")
    with pytest.raises(DeviceNotFoundError) as caught:
        load_all().select("gpu")
    assert caught.value.hint.startswith("pip install nowhere")
    assert "hotshoe-ggml-cuda: missing-dependency" in caught.value.message


def test_only_plugins_for_this_platform_are_missed(site, monkeypatch):
    def missed():
        verdicts = load_all(refresh=True).verdicts
        return [v.details["backend"] for v in verdicts if v.outcome is Outcome.NOT_INSTALLED]

    monkeypatch.setattr("sys.platform", "linux")
    assert missed() == ["cuda", "vulkan", "cpu"]
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert missed() == ["metal", "mlx", "cpu"]


def test_hardware_without_its_plugin_is_pointed_out(site, monkeypatch, tmp_path):
    from dataclasses import replace

    from hotshoe_loader import catalog, other_verdicts

    (tmp_path / "nvidiactl").touch()
    seen = replace(catalog.CATALOG[0], signs=(str(tmp_path / "nvidiactl"),), platforms=("",))
    monkeypatch.setattr(other_verdicts, "CATALOG", (seen,))
    why = load_all().why()
    assert f"but {tmp_path / 'nvidiactl'} shows that this machine has one (pip install hotshoe-ggml-cuda)" in why


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_require_raises_and_never_falls_back(site, monkeypatch, way):
    site.good("hotshoe-ggml-cpu", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU")
    if way == "environment":
        monkeypatch.setenv("HOTSHOE_REQUIRE", "gpu")
    with pytest.raises(DeviceNotFoundError) as caught:
        load_all(require="gpu" if way == "argument" else None)
    said = "require='gpu'" if way == "argument" else "HOTSHOE_REQUIRE=gpu"
    assert caught.value.message.startswith(f"{said} matches no device")
    assert "pip install hotshoe-ggml-cuda" in caught.value.hint
    assert caught.value.hint.endswith("; or unset HOTSHOE_REQUIRE") == (way == "environment")
    assert any(verdict.outcome is Outcome.AVAILABLE for verdict in caught.value.verdicts)


def test_require_cpu_is_not_met_by_the_reference(site):
    with pytest.raises(DeviceNotFoundError, match="pip install hotshoe-ggml-cpu"):
        load_all(require="cpu")
    assert names(load_all(require="reference").devices) == ["reference"]


def test_require_ranks(registry):
    assert load_all(require=["cpu"]).why().endswith("first by require='cpu'")
    assert names(load_all(require=["vulkan", "cpu"]).devices)[:2] == ["vulkan:0", "cpu"]


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_prefer(registry, monkeypatch, way):
    if way == "environment":
        monkeypatch.setenv("HOTSHOE_PREFER", "vulkan,cpu")
    preferring = load_all(prefer=["vulkan", "cpu"] if way == "argument" else None)
    assert names(preferring.devices)[:2] == ["vulkan:0", "cpu"]
    said = "prefer='vulkan'" if way == "argument" else "HOTSHOE_PREFER=vulkan"
    assert preferring.why().endswith(f"first by {said}")


def test_no_device_is_left(site):
    site.good("hotshoe-ggml-cpu", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU", entry="ggml-cpu")
    with pytest.raises(DeviceNotFoundError, match="no device is left") as caught:
        load_all(block=["cpu", "reference"]).select()
    for name in ("cpu", "reference"):
        assert f"{name!r} is blocked by block= or HOTSHOE_BLOCK" in caught.value.message
        assert f"remove {name!r} from block= or HOTSHOE_BLOCK" in caught.value.hint


def test_an_unmet_preference_is_reported(registry, caplog):
    preferring = load_all(prefer=["metal", "cpu"])
    assert names(preferring.select()) == ["cpu"]
    assert "prefer='metal' matches no device" in preferring.why()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_why(registry):
    assert registry.why() == "cuda:0 (ggml-cuda): best of 6 devices"
    assert registry.why("cpu") == "cpu (ggml-cpu, AMD EPYC): requested; the best of 6 devices is cuda:0"
    assert registry.why("cuda").endswith("best of 6 devices; together with cuda:1")
    assert registry.why(registry.devices[-1]).startswith("reference (NumPy")


def test_why_of_an_integrated_gpu(site):
    site.good("hotshoe-ggml-vulkan", "'ggml-vulkan', 'ggml', ('vulkan:0',), DeviceType.IGPU")
    site.good("hotshoe-ggml-cpu", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU")
    registry = load_all()
    assert registry.why().startswith("vulkan:0")
    assert "device='cpu' may be as fast" in registry.why()
    assert names(registry.select("gpu")) == ["vulkan:0"]


def test_explain_everything(registry):
    text = registry.explain()
    for line in (
        "chosen: cuda:0 (ggml-cuda): best of 6",
        "devices, best first:",
        "verdicts:",
        "ggml-vulkan: available",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cuda", "cuda:0 (ggml-cuda): best of 6 devices (rank 1 of 6)"),
        ("cpu", "rank 4 of 6"),
        ("gpu", "vulkan:0 (ggml-vulkan): requested"),
        ("ggml-vulkan", "ggml-vulkan: available: offers vulkan:0  [hotshoe-ggml-vulkan 1.0]"),
        ("npu-plugin", "npu: available: offers npu:0"),
        ("metal", "metal: no device has this name, type or provider\nhotshoe-ggml-metal is for darwin; this is"),
        ("vulcan", "did you mean"),
    ],
)
def test_explain_one(registry, name, expected):
    assert expected in registry.explain(name)


def test_explain_what_is_broken(site):
    site.install("hotshoe-ggml-cuda", "raise RuntimeError('driver too old')")
    text = load_all().explain("cuda")
    assert "hotshoe-ggml-cuda: import-error: importing 'hotshoe_ggml_cuda' raised RuntimeError: driver too old" in text
    assert "hotshoe-ggml-cuda is import-error" in load_all().why()


def hint_for(token: str) -> str:
    with pytest.raises(DeviceNotFoundError) as caught:
        load_all(require=token)
    return str(caught.value.hint)


def test_hints_name_one_command_for_each_kind_of_hardware(site):
    nvidia, any_vendor = hint_for("gpu").split("; ")
    assert nvidia.startswith("for NVIDIA GPUs: ")
    assert nvidia.count("pip install") == any_vendor.count("pip install") == 1
    assert any_vendor.startswith("for GPUs of any vendor (Vulkan): ")


def test_a_backend_without_a_plugin_of_ours_is_known(site):
    for token in ("opencl", "opencl:0", "ggml-sycl"):
        assert "HOTSHOE_PATH" in hint_for(token)
        assert "hotshoe-ggml-cpu drives" in hint_for(token)


def test_mlx_is_not_for_macos_only(site):
    assert "mlx" in hint_for("mlx")
    assert "pip install" in hint_for("mlx")
    if sys.platform != "darwin":
        assert hint_for("metal") == f"hotshoe-ggml-metal is for darwin; this is {sys.platform} on {platform.machine()}"


def test_mlx_is_not_proposed_on_an_intel_mac(site, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    hints = [verdict.hint for verdict in load_all(refresh=True).verdicts if "mlx" in verdict.candidate]
    assert not hints
    assert "darwin on arm64" in hint_for("mlx")
    assert "this is darwin on x86_64" in hint_for("mlx")


def test_a_reason_that_two_plugins_share_is_said_once():
    shared = [
        Verdict(name, "plugin", Outcome.NO_DEVICE, "no driver", details={"family": "acme"}) for name in ("a", "b")
    ]
    longer = Verdict("c", "plugin", Outcome.NO_DEVICE, "all fail: no driver", details={"family": "acme"})
    assert not_found("device='acme'", "acme", [], shared).message.count("no driver") == 1
    assert not_found("device='acme'", "acme", [], [*shared, longer]).message.endswith(
        "\n  c: no-device: all fail: no driver"
    )


def test_messages_say_how_a_name_was_given_when_the_registry_was_made(site, monkeypatch):
    """Not by the variable's value at the time of the message."""
    site.good("acme", "'acme', 'acme', ('acme:0', 'acme:1')")
    by_argument = load_all(prefer="acme:1")
    monkeypatch.setenv("HOTSHOE_PREFER", "acme:0")
    by_variable = load_all(prefer=iter(["cpu"]))
    monkeypatch.setenv("HOTSHOE_PREFER", "acme:1")
    assert "first by prefer='acme:1'" in by_argument.why()
    assert "prefer='cpu' matches no device" in by_variable.why()
    monkeypatch.delenv("HOTSHOE_PREFER")
    assert "first by HOTSHOE_PREFER=acme:0" in by_variable.why()


def test_a_preferred_gpu_that_is_missing_is_said_once(site, caplog):
    site.good("hotshoe-ggml-cpu", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU", entry="ggml-cpu")
    assert load_all(prefer="gpu").why() == "cpu (ggml-cpu): best of 2 devices; no GPU backend is installed"
    assert [record.getMessage() for record in caplog.records] == [
        "prefer='gpu' matches no device; using cpu (ggml-cpu)"
    ]


# -- opening ----------------------------------------------------------------------------------------------


def test_open_the_reference_backend(site):
    registry = load_all()
    assert registry.verdicts[-1].outcome is Outcome.AVAILABLE
    with registry.open() as backend:
        assert names(backend.devices) == ["reference"]
        assert backend.params == BackendParams()
    assert registry.verdicts[-1].outcome is Outcome.LOADED


def test_open_hands_the_devices_of_a_family_to_the_first_ones_provider(site):
    site.good("fast", "'f', 'ggml', ('fast:0',)")
    site.good("slow", "'s', 'ggml', ('slow',)")
    backend = load_all().open(["fast:0", "slow"], BackendParams(n_threads=3))
    assert names(backend.devices) == ["fast:0", "slow"]
    assert backend.opened_by == "f"
    assert backend.params.n_threads == 3


def test_open_over_two_families_is_refused(registry):
    with pytest.raises(BackendError, match="families ggml, npu") as caught:
        registry.open(["cuda:0", "npu:0"])
    assert "name devices of one family" in caught.value.hint


def later(site, monkeypatch, failure: str, where: str = "from hotshoe_core.eager.reference"):
    """A registry of one plugin that passes its probe, but fails when it is opened."""
    code = GOOD.replace("{arguments}", "").replace(
        where, f'import os\n        if "FAIL" in os.environ: {failure}\n        {where}'
    )
    site.install("a", code)
    registry = load_all()
    assert names(registry.devices) == ["npu:0", "reference"]
    monkeypatch.setenv("FAIL", "1")
    return registry


def test_open_checks_what_it_gets(site, monkeypatch):
    registry = later(site, monkeypatch, "return ()")
    with pytest.raises(PluginError, match="'acme' returned tuple; expected a hotshoe_core Backend"):
        registry.open()


def test_open_wraps_what_a_provider_raises(site, monkeypatch):
    registry = later(site, monkeypatch, "raise OSError('gone')")
    with pytest.raises(BackendError, match="could not open npu:0: OSError: gone") as caught:
        registry.open()
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("raised", ["SystemExit(3)", "SystemExit"])
def test_a_plugin_cannot_end_the_program(site, monkeypatch, raised):
    registry = later(site, monkeypatch, f"raise {raised}")
    with pytest.raises(BackendError, match="could not open npu:0: SystemExit"):
        registry.open()


@pytest.mark.parametrize("kind", ["RuntimeError", "errors.BackendError", "errors.HotshoeError"])
def test_no_escape_of_an_error_reaches_the_terminal(site, monkeypatch, kind):
    raises = f"from hotshoe_core import errors; raise {kind}('\\x1b[2J first')"
    registry = later(site, monkeypatch, raises)
    with pytest.raises(HotshoeError, match="first") as caught:
        registry.open()
    assert "\x1b" not in str(caught.value)


def test_a_plugin_that_fails_only_in_this_process_is_a_verdict(site, monkeypatch):
    code = "import os\nif 'FAIL' in os.environ: import nowhere\n" + GOOD.replace("{arguments}", "")
    site.install("a", code)
    registry, requiring = load_all(), load_all(require="npu:0")
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(PluginError, match="passed its test in a child process, but failed in this process") as caught:
        registry.open("npu:0")
    assert "pip install nowhere" in caught.value.hint
    assert registry.verdicts[0].outcome is Outcome.MISSING_DEPENDENCY
    assert names(registry.devices) == ["reference"]
    with pytest.raises(DeviceNotFoundError):
        registry.open("npu:0")
    with pytest.raises(PluginError):
        requiring.open("npu:0")


def test_a_plugin_that_fails_only_in_this_process_is_replaced_with_a_warning(site, monkeypatch, caplog):
    site.install("a", "import os\nif 'FAIL' in os.environ: import nowhere\n" + GOOD.replace("{arguments}", ""))
    registry = load_all()
    monkeypatch.setenv("FAIL", "1")
    with registry.open() as backend:
        assert names(backend.devices) == ["reference"]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "npu:0 passed its test in a child process, but failed in this process" in warning
    assert "using reference" in warning


def test_a_required_device_is_not_replaced(site, monkeypatch):
    site.install("a", "import os\nif 'FAIL' in os.environ: import nowhere\n" + GOOD.replace("{arguments}", ""))
    registry = load_all(require="npu:0")
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(PluginError, match="failed in this process"):
        registry.open()


def test_open_a_device_that_is_not_in_the_registry(registry):
    with pytest.raises(BackendError, match="not in this registry"):
        registry.open(device("cuda:9", provider="elsewhere"))


def test_open_an_unknown_device(registry):
    with pytest.raises(DeviceNotFoundError):
        registry.open("metal")


def test_a_gpu_backend_without_a_gpu():
    from hotshoe_loader.texts import _no_gpu

    mlx = Verdict("mlx", "plugin", Outcome.AVAILABLE, "offers mlx:cpu", details={"backend": "mlx"})
    assert _no_gpu([mlx]) == "no GPU was found"
    crashed = Verdict("ggml-cuda", "plugin", Outcome.CRASHED, "…", details={"backend": "cuda"})
    assert _no_gpu([mlx, crashed]) == "no GPU: ggml-cuda is crashed"
