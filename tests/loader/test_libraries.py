"""Native libraries: every variant has its own verdict, the best one is used, and the others say why not."""

from __future__ import annotations

import os
import shutil

from hotshoe_loader import Outcome, load_all
from hotshoe_loader.ggml import score


def libraries(registry):
    return {verdict.candidate: verdict for verdict in registry.verdicts if verdict.kind == "library"}


def outcomes(registry):
    return {name: verdict.outcome.value for name, verdict in libraries(registry).items()}


def test_the_highest_score_is_chosen(native_plugin, natives):
    natives.variant("cpu-x64", 1)
    best = natives.variant("cpu-zen4", 1984)
    natives.variant("cpu-haswell", 64)
    natives.variant("cpu-sapphirerapids", 0)
    native_plugin()
    registry = load_all()
    assert outcomes(registry) == {
        "ggml-cpu-haswell": "outscored",
        "ggml-cpu-sapphirerapids": "no-device",
        "ggml-cpu-x64": "outscored",
        "ggml-cpu-zen4": "available",
    }
    found = libraries(registry)
    assert found["ggml-cpu-haswell"].reason == "its score is 64; ggml-cpu-zen4 has 1984"
    assert "lacks a feature" in found["ggml-cpu-sapphirerapids"].reason
    assert found["ggml-cpu-zen4"].details["score"] == 1984
    assert found["ggml-cpu-zen4"].origin == str(best)
    device = registry.devices[0]
    assert (device.name, device.library) == ("cpu", best)
    why = "cpu (ggml-cpu, zen4 variant, AMD EPYC): best of 2 devices; no GPU backend is installed"
    assert registry.why() == why


def test_a_library_that_was_exchanged_is_a_warning(native_plugin, natives, site, caplog):
    """Another variant is used, which may be several times slower."""
    import base64
    import hashlib

    natives.variant("cpu-x64", 1)
    best = natives.variant("cpu-zen4", 1984)
    native_plugin()
    digest = base64.urlsafe_b64encode(hashlib.sha256(best.read_bytes()).digest()).rstrip(b"=").decode()
    record = site.path / "hotshoe_ggml_cpu-1.0.dist-info" / "RECORD"
    next(site.path.glob("*.dist-info")).rename(record.parent)
    record.write_text(f"{os.path.relpath(best, site.path)},sha256={digest},{best.stat().st_size}\n")
    assert load_all().devices[0].library == best
    assert "pip installed" not in caplog.text
    exchanged = best.read_bytes() + b"\0"
    best.unlink()  # this process has opened it
    best.write_bytes(exchanged)
    assert load_all(refresh=True).devices[0].library == natives.folder / "libggml-cpu-x64.so"
    assert "ggml-cpu-zen4: untrusted" in caplog.text
    assert "is not the file that pip installed" in caplog.text


def test_a_library_without_hardware_is_not_to_be_built_again(native_plugin, natives, site):
    """It opens and finds no device: a driver is missing, so another build would find no device either."""
    natives.variant("vulkan", None)
    native_plugin("vulkan")
    code = (site.path / "hotshoe_ggml_vulkan.py").read_text()
    (site.path / "hotshoe_ggml_vulkan.py").write_text(code.replace("for name in self.names", "for name in ()"))
    found = next(verdict for verdict in load_all().verdicts if verdict.candidate == "ggml-vulkan")
    assert found.outcome is Outcome.NO_DEVICE
    assert "driver" in found.hint
    assert "build" not in found.hint


def test_a_feature_that_the_system_does_not_enable(native_plugin, natives, monkeypatch):
    natives.variant("cpu-zen4", 1984)
    best = natives.variant("cpu-haswell", 64)
    native_plugin()
    monkeypatch.setattr(score, "_processor_flags", lambda: frozenset({"avx", "avx2"}))
    registry = load_all()
    assert registry.devices[0].library == best
    found = libraries(registry)["ggml-cpu-zen4"]
    assert found.outcome is Outcome.NO_DEVICE
    assert "the operating system does not enable avx512f" in found.reason


def test_an_unscored_library_counts_only_if_none_has_a_score(native_plugin, natives):
    natives.variant("cpu", None)
    natives.variant("cpu-x64", 1)
    native_plugin()
    registry = load_all()
    assert outcomes(registry) == {"ggml-cpu": "outscored", "ggml-cpu-x64": "available"}
    assert "no score" in libraries(registry)["ggml-cpu"].reason


def test_without_any_score_the_plain_name_is_used(native_plugin, natives):
    natives.variant("cuda-12", None)
    plain = natives.variant("cuda", None)
    native_plugin("cuda")
    registry = load_all()
    assert outcomes(registry) == {"ggml-cuda-12": "outscored", "ggml-cuda": "available"}
    assert registry.devices[0].library == plain


def test_no_variant_for_this_machine(native_plugin, natives, verdicts):
    natives.variant("cpu-x64", 0)
    natives.variant("cpu-zen4", 0)
    native_plugin()
    registry = load_all()
    assert verdicts(registry)["ggml-cpu"] == "no-device"
    assert "ggml-cpu-zen4: its score is 0" in registry.explain("cpu")
    assert [device.name for device in registry.devices] == ["reference"]


def test_no_library_at_all(native_plugin, natives):
    native_plugin()
    verdict = load_all().verdicts[0]
    assert verdict.outcome is Outcome.MISSING_DEPENDENCY
    assert "libggml-cpu is missing in" in verdict.reason
    assert verdict.hint == "pip install --force-reinstall hotshoe-ggml-cpu"


def test_no_library_in_a_plugin_that_is_being_written(native_plugin, natives):
    native_plugin("acme")
    verdict = load_all().verdicts[0]
    assert verdict.hint.startswith(f"copy libggml-acme into {natives.folder}, or pip install --force-reinstall ")


def test_no_core(native_plugin, natives):
    natives.variant("cpu-x64", 1)
    (natives.folder / "libggml-base.so").unlink()
    native_plugin()
    verdict = load_all().verdicts[0]
    assert verdict.outcome is Outcome.MISSING_DEPENDENCY
    assert "core library" in verdict.reason


def test_a_file_that_is_not_a_library(native_plugin, natives):
    natives.variant("cpu-x64", 1)
    (natives.folder / "libggml-cpu-text.so").write_text("version https://git-lfs.github.com/spec/v1")
    (natives.folder / "libggml-cpu-empty.so").touch()
    (natives.folder / "libggml-cpu-folder.so").mkdir()
    os.mkfifo(natives.folder / "libggml-cpu-fifo.so")
    elf = bytearray((natives.folder / "libggml-cpu-x64.so").read_bytes())
    (natives.folder / "libggml-cpu-short.so").write_bytes(elf[:200])
    elf[18:20] = (21).to_bytes(2, "little")
    (natives.folder / "libggml-cpu-ppc.so").write_bytes(elf)
    (natives.folder / "libggml-cpu-mac.so").write_bytes(b"\xcf\xfa\xed\xfe\x0c\0\0\x01\0\0\0\0\6" + bytes(64))
    natives.library("libggml-cpu-plain.so", "int x;")
    natives.library(
        "libggml-cpu-symbol.so", "void nowhere(void); void *ggml_backend_init(void) { nowhere(); return 0; }"
    )
    native_plugin()
    registry = load_all()
    assert outcomes(registry) == {
        "ggml-cpu-empty": "import-error",
        "ggml-cpu-fifo": "import-error",
        "ggml-cpu-folder": "import-error",
        "ggml-cpu-mac": "abi-mismatch",
        "ggml-cpu-plain": "incompatible-api",
        "ggml-cpu-ppc": "abi-mismatch",
        "ggml-cpu-short": "import-error",
        "ggml-cpu-symbol": "abi-mismatch",
        "ggml-cpu-text": "import-error",
        "ggml-cpu-x64": "available",
    }
    found = libraries(registry)
    assert "not a shared library: it starts with b'version '" in found["ggml-cpu-text"].reason
    assert "ggml_backend_init" in found["ggml-cpu-plain"].reason
    assert "ppc64" in found["ggml-cpu-ppc"].reason


def test_a_library_that_needs_another_one(native_plugin, natives):
    needed = natives.library("libdriver_nowhere.so", "int driver;")
    folder = str(natives.folder)
    code = "extern int driver; void *ggml_backend_init(void) { return &driver; }"
    natives.library("libggml-cuda.so", code, f"-L{folder}", "-Wl,--no-as-needed", "-ldriver_nowhere")
    needed.unlink()
    native_plugin("cuda")
    registry = load_all()
    plugin, library = (next(v for v in registry.verdicts if v.kind == kind) for kind in ("plugin", "library"))
    assert library.outcome is plugin.outcome is Outcome.MISSING_DEPENDENCY
    assert "libdriver_nowhere.so" in library.reason
    assert "libdriver_nowhere.so" in plugin.reason
    assert "ggml-cuda is missing-dependency" in registry.why()


def test_blocked_libraries(native_plugin, natives, verdicts):
    natives.variant("cpu-x64", 1)
    natives.variant("cpu-zen4", 1984)
    native_plugin()
    assert outcomes(load_all(block="cpu-zen4")) == {"ggml-cpu-zen4": "blocked", "ggml-cpu-x64": "available"}
    assert outcomes(load_all(block="libggml-cpu-zen4.so"))["ggml-cpu-zen4"] == "blocked"
    registry = load_all(block=["cpu-zen4", "ggml-cpu-x64"])
    assert verdicts(registry)["ggml-cpu"] == "blocked"


def test_the_users_folders_join_the_plugins(native_plugin, natives, tmp_path, monkeypatch):
    natives.variant("cpu-x64", 1)
    native_plugin()
    mine = tmp_path / "mine"
    same = natives.variant("cpu-x64", 1, folder=mine)
    assert load_all().devices[0].library == natives.folder / "libggml-cpu-x64.so"
    registry = load_all(paths=mine)
    assert registry.devices[0].library == same, "before the plugin's own at an equal score"
    better = natives.variant("cpu-zen4", 64, folder=tmp_path / "env")
    monkeypatch.setenv("HOTSHOE_PATH", str(tmp_path / "env"))
    assert load_all(paths=[mine]).devices[0].library == better


def test_a_library_no_plugin_drives(site, natives, tmp_path):
    natives.variant("vulkan", None)
    natives.variant("strange-x", None)
    found = libraries(load_all(paths=natives.folder))
    assert {name: verdict.outcome for name, verdict in found.items()} == {
        "ggml-strange-x": Outcome.NOT_INSTALLED,
        "ggml-vulkan": Outcome.NOT_INSTALLED,
    }
    assert "pip install hotshoe-ggml-cpu" in found["ggml-vulkan"].hint


def test_a_provider_gets_the_chosen_library(native_plugin, natives, tmp_path):
    """A second plugin of the family has its own libraries and uses the same core."""
    natives.variant("cpu-x64", 1)
    native_plugin()
    other = tmp_path / "other"
    shutil.copytree(natives.folder, other)
    cuda = natives.variant("cuda", None, folder=other)
    native_plugin("cuda", other)
    found = {device.name: device.library for device in load_all().devices if device.library}
    assert found == {"cpu": natives.folder / "libggml-cpu-x64.so", "cuda": cuda}
