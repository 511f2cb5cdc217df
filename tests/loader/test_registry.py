"""What a registry answers: which device comes first, what a word means, why, and what to do when it means nothing."""

from __future__ import annotations

import logging

import pytest

from hotshoe_core.device import BackendParams, Device, DeviceType
from hotshoe_core.errors import BackendError, DeviceNotFoundError, PluginError
from hotshoe_loader import Outcome, load_all
from hotshoe_loader.rank import rank
from tests.support.fake_plugins import GOOD

GIB = 1 << 30


def device(name: str, type: DeviceType = DeviceType.GPU, total: int = 0, free: int = 0, **more: str) -> Device:
    more = {"provider": name.partition(":")[0], "family": "ggml", **more}
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
    expected = ["cuda:0", "cuda:3", "cuda:2", "cuda:10", "vulkan:1", "blas", "cpu", "reference"]
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
    site.good("cuda-plugin", "'ggml-cuda', 'ggml', ('cuda:0', 'cuda:1'), DeviceType.GPU, memory_total=8 << 30")
    site.good("vulkan-plugin", "'ggml-vulkan', 'ggml', ('vulkan:0',), DeviceType.GPU, memory_total=4 << 30")
    site.good("cpu-plugin", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU, description='AMD EPYC'")
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
    ],
)
def test_select(registry, asked, expected):
    assert names(registry.select(asked)) == expected


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
    assert caught.value.hint == "there is cuda:0, cuda:1"


@pytest.mark.parametrize("name", ["cuda", "vulkan", "metal", "mlx", "cpu", "cuda:0", "hotshoe-ggml-cuda"])
def test_a_published_backend_that_is_not_installed_names_its_command(site, name):
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

    from hotshoe_loader import catalog, survey

    (tmp_path / "nvidiactl").touch()
    seen = replace(catalog.CATALOG[0], signs=(str(tmp_path / "nvidiactl"),), platforms=("",))
    monkeypatch.setattr(survey, "CATALOG", (seen,))
    why = load_all().why()
    assert f"though {tmp_path / 'nvidiactl'} says that there is one (pip install hotshoe-ggml-cuda)" in why


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_require_raises_and_never_falls_back(site, monkeypatch, way):
    site.good("cpu-plugin", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU")
    if way == "environment":
        monkeypatch.setenv("HOTSHOE_REQUIRE", "gpu")
    with pytest.raises(DeviceNotFoundError) as caught:
        load_all(require="gpu" if way == "argument" else None)
    assert "require='gpu'" in caught.value.message
    assert "pip install hotshoe-ggml-" in caught.value.hint
    assert any(verdict.outcome is Outcome.LOADED for verdict in caught.value.verdicts)


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
    assert preferring.why().endswith("first by prefer='vulkan'")


def test_an_unmet_preference_is_reported(registry, caplog):
    preferring = load_all(prefer=["metal", "cpu"])
    assert names(preferring.select()) == ["cpu"]
    assert "prefer='metal' met no device" in preferring.why()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_why(registry):
    assert registry.why() == "cuda:0 (ggml-cuda): best of 6 devices"
    assert registry.why("cpu") == "cpu (ggml-cpu, AMD EPYC): asked for by name; the best of 6 devices is cuda:0"
    assert registry.why("cuda").endswith("best of 6 devices; together with cuda:1")
    assert registry.why(registry.devices[-1]).startswith("reference (NumPy")


def test_why_of_an_integrated_gpu(site):
    site.good("v", "'ggml-vulkan', 'ggml', ('vulkan:0',), DeviceType.IGPU")
    site.good("c", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU")
    registry = load_all()
    assert registry.why().startswith("vulkan:0")
    assert "device='cpu' may be as fast" in registry.why()
    assert names(registry.select("gpu")) == ["vulkan:0"]


def test_explain_everything(registry):
    text = registry.explain()
    for line in ("chosen: cuda:0 (ggml-cuda): best of 6", "devices, best first:", "verdicts:", "ggml-vulkan: loaded"):
        assert line in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cuda", "cuda:0 (ggml-cuda): best of 6 devices (place 1 of 6)"),
        ("cpu", "place 5 of 6"),
        ("gpu", "vulkan:0 (ggml-vulkan): asked for by name"),
        ("ggml-vulkan", "ggml-vulkan: loaded: offers vulkan:0  [vulkan-plugin 1.0]"),
        ("npu-plugin", "npu: loaded: offers npu:0"),
        ("metal", "metal: no device answers to it\npip install hotshoe-ggml-metal"),
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


# -- opening ----------------------------------------------------------------------------------------------


def test_open_the_reference_backend(site):
    registry = load_all()
    assert registry.verdicts[-1].outcome is Outcome.AVAILABLE
    with registry.open() as backend:
        assert names(backend.devices) == ["reference"]
        assert backend.params == BackendParams()
    assert registry.verdicts[-1].outcome is Outcome.LOADED


OPENS = """
        from hotshoe_core.reference import open_reference
        backend = open_reference(params)
        backend.devices = tuple(devices)
        backend.opened_by = self.name
        return backend
"""


def test_open_hands_the_devices_of_a_family_to_the_first_ones_provider(site):
    for name, arguments in (("gpu", "'g', 'ggml', ('gpu:0',)"), ("cpu", "'c', 'ggml', ('cpu',)")):
        code = GOOD.replace("{arguments}", arguments)
        site.install(
            name, code.replace('return "opened", tuple(device.name for device in devices), params', OPENS.strip())
        )
    backend = load_all().open(["gpu:0", "cpu"], BackendParams(n_threads=3))
    assert names(backend.devices) == ["gpu:0", "cpu"]
    assert backend.opened_by == "g"
    assert backend.params.n_threads == 3


def test_open_over_two_families_is_refused(registry):
    with pytest.raises(BackendError, match="families ggml, npu") as caught:
        registry.open(["cuda:0", "npu:0"])
    assert "a backend for each family" in caught.value.hint


def test_open_checks_what_it_gets(registry):
    with pytest.raises(PluginError, match="'ggml-cuda' opened tuple; expected a hotshoe_core Backend"):
        registry.open()


def test_open_wraps_what_a_provider_raises(site):
    site.install("a", GOOD.replace("{arguments}", "").replace('return "opened"', 'raise OSError("gone")  # '))
    with pytest.raises(BackendError, match="could not open npu:0: OSError: gone") as caught:
        load_all().open()
    assert isinstance(caught.value.__cause__, OSError)


def test_open_a_device_of_elsewhere(registry):
    with pytest.raises(BackendError, match="not in this registry"):
        registry.open(device("cuda:9", provider="elsewhere"))


def test_open_what_is_not_there(registry):
    with pytest.raises(DeviceNotFoundError):
        registry.open("metal")
