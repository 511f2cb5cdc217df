"""Hostile values in plugins and files: each rejects one plugin, with a reason."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import BackendError, HotshoeError, PluginError
from hotshoe_core.errors.text import shown
from hotshoe_loader import Outcome, load_all
from hotshoe_loader.binary import BadLibrary, read_binary
from hotshoe_loader.find import GROUP
from hotshoe_loader.report import Report
from tests.loader.conftest import _forget
from tests.support.fake_plugins import GOOD

GOOD_CODE = GOOD.replace("{arguments}", "")
HUGE = 10**5000  # Python writes no int of more than 4,300 digits


def outcomes(registry):
    return {each.candidate: each for each in registry.verdicts}


def test_a_value_that_cannot_be_shown_is_named_by_its_type():
    class Rude(str):
        def __repr__(self):
            raise SystemExit

    assert shown(HUGE) == "of type int, and cannot be shown"
    assert shown(Rude("x")) == "of type Rude, and cannot be shown"
    assert shown("\x1b") == r"'\x1b'"


@pytest.mark.parametrize(
    "fields",
    [
        {"name": HUGE},
        {"memory_total": HUGE},
        {"memory_free": -HUGE},
        {"properties": {"a": HUGE}},
        {"properties": {"a": "x" * 10_000}},
        {"properties": {str(i): i for i in range(1000)}},
        {"description": HUGE},
    ],
)
def test_a_device_has_no_number_that_cannot_be_written(fields):
    with pytest.raises(PluginError, match=r"^Device"):
        Device(**{"name": "npu:0", "type": DeviceType.ACCEL, "provider": "acme", "family": "acme", **fields})


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ("range(10**9)", "its devices() listed int; expected a Device"),
        ("(Device(f'npu:{i}', self.type, self.name, self.family) for i in range(10**9))", "more than 1024 devices"),
        ("[type('D', (Device,), {'check': lambda self: 1 / 0, 'name': property(lambda self: 1 / 0)})]", "the class D"),
    ],
)
def test_devices_without_end(site, devices, reason):
    site.good("good", "'good', 'good', ('good:0',)")
    head, _, rest = GOOD_CODE.partition("        return [\n            Device(")
    site.install("bad", f"{head}        return {devices}\n{rest.partition(']')[2]}")
    found = outcomes(load_all())
    assert found["good"].outcome is Outcome.AVAILABLE
    assert found["acme"].outcome is Outcome.INCOMPATIBLE_API, "its provider is called so"
    assert reason in found["acme"].reason


def test_providers_without_end(site):
    site.install("bad", GOOD_CODE.replace("return [Provider()]", "return range(10**9)"))
    found = outcomes(load_all())["bad"]
    assert found.outcome is Outcome.INCOMPATIBLE_API
    assert "returned more than 64 providers" in found.reason


def test_a_provider_that_answers_once_only(site):
    """An unexpected exception rejects this plugin; its probe does not crash."""
    twice = "class Once(Provider):\n    left = 3\n    @property\n    def name(self):\n        type(self).left -= 1\n"
    twice += "        return 'once' if self.left > 0 else 1 / 0\n    @name.setter\n    def name(self, value): pass\n\n"
    site.good("acme", "'acme', 'acme', ('acme:0',)")
    site.install("bad", GOOD_CODE.replace("@hookimpl", f"{twice}@hookimpl").replace("[Provider()]", "[Once()]"))
    found = {each.origin: each for each in load_all().verdicts}
    assert found["acme 1.0"].outcome is Outcome.AVAILABLE
    assert found["bad 1.0"].outcome is Outcome.CRASHED
    assert "ZeroDivisionError" in found["bad 1.0"].reason


# -- in the user's process --------------------------------------------------------------------------------------

IN_OPEN = "        backend = open_reference(params)\n"


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        ("raise type('E', (BaseException,), {})('x')", BackendError, "could not open npu:0: E: x"),
        ("raise GeneratorExit", BackendError, "could not open npu:0: GeneratorExit"),
        (
            "raise type('E', (HotshoeError,), {'__init__': lambda self: None})()",
            BackendError,
            "could not open npu:0: E",
        ),
        (
            "raise type('E', (HotshoeError,), {'__str__': lambda self: '\\x1b[2J'})('x')",
            BackendError,
            r"could not open npu:0: E: \x1b[2J",
        ),
    ],
)
def test_whatever_open_raises_is_typed_and_printable(site, raised, error, words):
    site.install("bad", None)
    code = GOOD_CODE.replace(IN_OPEN, f"        import os\n        if 'BAD' in os.environ: fail()\n{IN_OPEN}")
    more = f"from hotshoe_core.errors import HotshoeError\ndef fail():\n    {raised}\n"
    (site.path / "bad.py").write_text(f"{code}\n{more}")
    registry = load_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAD", "1")
        with pytest.raises(HotshoeError) as caught:
            registry.open("npu:0")
    assert type(caught.value) is error
    assert words in caught.value.message
    assert str(caught.value).replace("\n", "").isprintable()


# -- kept reports ----------------------------------------------------------------------------------------------

REJECTED = {"outcome": "crashed", "reason": "x", "hint": None}
NESTED = json.loads("[" * 400 + "]" * 400)


@pytest.mark.parametrize(
    "lie",
    [
        {"rejected": {**REJECTED, "details": {"traceback": 5}}},
        {"rejected": {**REJECTED, "details": {"output": "abc"}}},
        {"rejected": {**REJECTED, "details": {"missing": [1]}}},
        {"rejected": {**REJECTED, "details": {"missing": {}}}},
        {"rejected": {**REJECTED, "details": {"\x1b[2J": "x"}}},
        {"rejected": {**REJECTED, "details": {"score": NESTED}}},
        {"rejected": {**REJECTED, "outcome": NESTED, "details": {}}},
        {"rejected": None, "providers": []},
        {"folders": ["a\0b"]},
        {"modules": {"acme": 1}},
        {"modules": ["acme"]},
        {"can_drive": 1},
        {"elapsed": HUGE},
    ],
)
def test_a_report_that_could_not_be_shown_is_invalid(lie):
    report = {"rejected": {**REJECTED, "details": {"traceback": ["x"], "missing": "y", "score": 1}}, "providers": []}
    report |= {name: [] for name in ("matched", "changes", "folders", "environment", "missing", "mapped")}
    report |= {"modules": {}, "can_drive": True, "elapsed": 0.0}
    assert Report.from_json(report).to_json() == report
    with pytest.raises(ValueError, match=r"^invalid report: "):
        Report.from_json({**report, **lie})


@pytest.mark.parametrize("time", ["NaN", "-Infinity", "1e400", '"1"', "[]"])
def test_a_kept_report_without_a_time_is_made_again(site, probes, time):
    site.install("bad", "raise RuntimeError")
    load_all()
    (entry,) = probes.iterdir()
    data = json.loads(entry.read_text())
    text = json.dumps({**data, "time": "TIME"}).replace('"TIME"', time)
    entry.write_text(text)
    _forget()
    assert "cached" not in outcomes(load_all())["bad"].details


# -- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"environment": "ACME_"}, "\"environment\" is 'ACME_'; expected a list of variable names"),
        ({"environment": [""]}, '"environment" is'),  # all of the environment would be kept, secrets too
        ({"environment": NESTED}, '"environment" is'),
        ({"api": "12"}, "\"api\" is '12'; expected the first and the last version"),
        ({"api": [1, float("inf")]}, '"api" is'),
        ({"ggml": 5}, '"ggml" is 5'),
        ({"ggml": {"version": {}}}, "got the version {}"),
        ({"ggml": []}, '"ggml" is []'),
    ],
)
def test_a_manifest_of_other_types(site, fields, words):
    site.good("acme", "'acme', 'acme', ('acme:0',)")
    site.install("bad", None)
    (site.path / "bad").mkdir()
    (site.path / "bad" / "__init__.py").write_text(GOOD_CODE)
    (site.path / "bad" / "hotshoe-plugin.json").write_text(json.dumps({"format": 1, **fields}))
    found = outcomes(load_all())
    assert found["acme"].outcome is Outcome.AVAILABLE
    assert found["bad"].outcome is Outcome.INCOMPATIBLE_API
    assert words in found["bad"].reason


@pytest.mark.parametrize("line", ["bad.so,sha256=x,²", "bad.so,sha256=x," + "9" * 5000, "b\0ad.so,sha256=x,1"])
def test_a_record_of_odd_numbers_and_names(site, line):
    site.good("bad")
    (site.path / "bad-1.0.dist-info" / "RECORD").write_text(line)
    found = outcomes(load_all())["bad"]
    assert found.outcome is Outcome.UNTRUSTED
    assert "is not the file that pip installed" in found.reason


def test_an_entry_point_with_a_very_long_module(site):
    site.metadata("bad", "1.0", f"[{GROUP}]\nbad = {'b' * 5000}\n")
    found = outcomes(load_all())["bad"]
    assert found.outcome is Outcome.IMPORT_ERROR
    assert found.reason.endswith("the value of 'bad' has 5000 characters; expected at most 500")


def test_a_byte_order_mark_hides_no_plugin(site):
    site.install("acme", GOOD_CODE)
    entries = site.path / "acme-1.0.dist-info" / "entry_points.txt"
    entries.write_bytes(b"\xef\xbb\xbf" + entries.read_bytes())
    assert load_all().devices[0].name == "npu:0"


def test_a_damaged_header_of_our_group_is_a_verdict(site):
    site.metadata("bad", "1.0", f"[{GROUP}\nbad = bad\n")
    found = outcomes(load_all())["bad"]
    assert found.outcome is Outcome.IMPORT_ERROR
    assert f"'[{GROUP}' is not '[group]'" in found.reason


@pytest.mark.skipif(sys.platform != "linux", reason="ELF")
def test_a_library_that_names_one_library_a_million_times(tmp_path, natives):
    """64 thousand names of a megabyte each would use all memory."""
    data = bytearray(natives.library("libsmall.so", "int x;").read_bytes())
    table, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    segments = {at: struct.unpack_from("<IIQQQQQQ", data, at) for at in range(table, table + 56 * count, 56)}
    at, dynamic = next((at, each) for at, each in segments.items() if each[0] == 2)
    tags = dict(struct.iter_unpack("<qQ", data[dynamic[2] : dynamic[2] + dynamic[5]]))
    start, text = len(data), b"x" * (1 << 20)
    entries = [(5, 1 << 40), (10, len(text) + 1), *[(1, 0)] * 60_000]
    assert 5 in tags
    data += b"".join(struct.pack("<qQ", *each) for each in entries)
    strings = len(data)
    data += text + b"\0"
    struct.pack_into("<IIQQQQQQ", data, at, 2, 4, start, 0, 0, 16 * len(entries), 16 * len(entries), 8)
    note = next(at for at, each in segments.items() if each[0] not in (1, 2))
    struct.pack_into("<IIQQQQQQ", data, note, 1, 4, strings, 1 << 40, 0, len(text) + 1, len(text) + 1, 8)
    (tmp_path / "libmany.so").write_bytes(data)
    with pytest.raises(BadLibrary, match="more than 1024 libraries"):
        read_binary(tmp_path / "libmany.so")


@pytest.mark.skipif(sys.platform != "linux", reason="a constructor")
def test_nothing_of_a_library_that_was_swapped_is_run(native_plugin, natives, tmp_path):
    natives.variant("cpu-x64", 1)
    native_plugin()
    registry = load_all()
    mark = tmp_path / "it ran"
    core = natives.folder / "libggml-base.so"
    core.unlink()
    head = "#include <stdio.h>\n__attribute__((constructor)) static void start(void) "
    natives.library("libggml-base.so", f'{head}{{ fclose(fopen("{mark}", "w")); }}')
    with pytest.raises(PluginError, match="is not the file that was tested"):
        registry.open("cpu")
    assert not mark.exists()
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(core)!r})"], check=True)
    assert mark.exists(), "it would have"
