"""A plugin's report is checked in its probe and when it is read: wrong values are a verdict, or an invalid report."""

from __future__ import annotations

import json

import pytest

from hotshoe_loader import Outcome, load_all
from hotshoe_loader.report import Report
from tests.loader.conftest import _forget
from tests.support.fake_plugins import GOOD, PROVIDER

GOOD_CODE = GOOD.replace("{arguments}", "")
DEVICE = "Device(name, self.type, self.name, self.family, library=library, **self.more) for name in self.names"
HOOK = "@hookimpl\ndef hotshoe_providers():\n"


def only(registry, name="bad"):
    return next(each for each in registry.verdicts if each.details.get("plugin") == name)


def lists(devices: str) -> str:
    """A plugin whose devices() has this body."""
    head, _, rest = GOOD_CODE.partition("        return [\n            Device(")
    return f"{head}        {devices}\n{rest.partition(']')[2]}"


D = "Device('bad:0', self.type, self.name, self.family"
PAST = "d = Device('bad:0', self.type, self.name, self.family); object.__setattr__(d, {field!r}, {value}); return [d]"


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ("return None", "its devices() returned None; expected a list of Devices"),
        ("return 3", "its devices() returned int"),
        ("return 'npu:0'", "its devices() returned str"),
        ("return Device", "its devices() returned the class Device"),
        ("return [None]", "its devices() listed None; expected a Device"),
        ("return [Device]", "its devices() listed the class Device; expected a Device"),
        (f"return [{D}, pci_id=5)]", "Device.pci_id is 5"),
        (f"return [{D}, description=5)]", "Device.description is 5"),
        ("return [Device('bad:0', 'cpu', self.name, self.family)]", "Device.type is 'cpu'; expected a DeviceType"),
        (f"return [{D}), {D})]", "its devices() listed two devices 'bad:0'"),
        (f"return [{D}, library=__import__('pathlib').Path('/x'))]", "with the library /x; expected None"),
        ("return [Device.__new__(Device)]", "with missing fields"),
        (PAST.format(field="pci_id", value="5"), "Device.pci_id is 5"),
        (PAST.format(field="description", value="'\\x1b[1m'"), r"Device.description is '\x1b[1m'"),
        (PAST.format(field="memory_total", value="float('nan')"), "Device.memory_total is nan"),
        (PAST.format(field="name", value="'auto'"), "Device.name: 'auto' is reserved"),
        (PAST.format(field="properties", value="{'a': float('inf')}"), "Device.properties is {'a': inf}"),
    ],
)
def test_an_answer_that_is_not_a_list_of_devices(site, devices, reason):
    site.install("bad", lists(devices))
    site.good("good", "'good', 'good', ('good:0',)")
    registry = load_all()
    found = only(registry)
    assert found.outcome is Outcome.INCOMPATIBLE_API
    assert reason in found.reason
    assert found.hint
    assert [device.name for device in registry.devices] == ["good:0", "reference"]


def test_devices_may_come_from_a_generator(site):
    site.install("bad", lists(f"yield {D})"))
    assert load_all().devices[0].name == "bad:0"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("Provider", "an instance of Provider, as in [Provider()]; it is the class"),
        ("Provider(0)", "Provider.name: a valid name (str); it is 0"),
        ("Provider('')", "Provider.name: a valid name (str)"),
        ("Provider('auto')", "'auto' is reserved"),
        ("Provider('A b')", "Provider.name"),
        ("Provider('\\x1b[1m')", r"it is '\x1b[1m'"),
        ("Provider('x', None)", "Provider.family: a valid name (str); it is missing"),
    ],
)
def test_an_object_that_is_not_a_provider(site, value, reason):
    site.install("bad", f"{PROVIDER}\n{HOOK}    return [{value}]\n")
    found = only(load_all())
    assert found.outcome is Outcome.INCOMPATIBLE_API
    assert reason in found.reason


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("3", "its native() returned int; expected None, or a mapping"),
        ("{}", "libraries of kind None"),
        ("{'kind': 'mlx'}", "libraries of kind 'mlx'"),
        ("{'kind': []}", "libraries of kind []"),
        ("{'kind': 'ggml'}", "has the keys kind; expected core, directories, kind, name"),
        ("dict(kind='ggml', name='', directories=[], core='/x')", "has the name ''"),
        ("dict(kind='ggml', name='../x', directories=[], core='/x')", "has the name '../x'"),
        ("dict(kind='ggml', name='x', directories='/x', core='/x')", "has directories of type str"),
        ("dict(kind='ggml', name='x', directories=[3], core='/x')", "names 3; expected an absolute path"),
        ("dict(kind='ggml', name='x', directories=['x'], core='/x')", "names 'x'; expected an absolute path"),
        ("dict(kind='ggml', name='x', directories=['/x'], core=None)", "names None; expected an absolute path"),
        ("dict(kind='ggml', name='x', directories=['/x'], core='/x', more=1)", "has the keys core, directories"),
    ],
)
def test_an_invalid_description_of_libraries(site, native, reason):
    site.install("bad", GOOD_CODE.replace("return None", f"return {native}"))
    found = only(load_all())
    assert found.outcome is Outcome.INCOMPATIBLE_API
    assert reason in found.reason


# -- hints and tracebacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "hint"),
    [
        ("ImportError('needs libacme 3: apt install libacme3')", "apt install libacme3"),
        ("ImportError('run `sudo apt-get install -y libacme3`.')", "sudo apt-get install -y libacme3"),
        ("RuntimeError('no driver; python -m pip install acme-driver==2')", "python -m pip install acme-driver==2"),
        ("OSError('libacme.so: cannot open shared object file: No such file: dnf install acme')", "dnf install acme"),
        ("ImportError('acme 3 is not for this machine')", "report it to the authors of bad"),
        ("PluginError('no licence', hint='buy one')", "buy one"),
        ("ModuleNotFoundError('needs acme: conda install acme-rt', name='acme')", "conda install acme-rt"),
        ("ImportError('cannot adapt install paths')", "report it to the authors of bad"),
    ],
)
def test_the_plugins_own_next_step_is_the_hint(site, raised, hint):
    site.install("bad", f"from hotshoe_core.errors import PluginError\nraise {raised}")
    found = only(load_all())
    assert found.hint == hint
    assert "force-reinstall" not in found.hint


def test_the_traceback_is_kept_from_the_plugins_first_frame_on(site, caplog):
    site.install("bad", "def inner():\n    raise RuntimeError('deep inside')\n\ndef outer():\n    inner()\n\nouter()\n")
    with caplog.at_level("DEBUG", "hotshoe.loader"):
        registry = load_all()
    lines = only(registry).details["traceback"]
    assert lines[0] == "Traceback (most recent call last):"
    assert "bad.py" in lines[1]
    assert "in outer" in "\n".join(lines)
    assert lines[-1] == "RuntimeError: deep inside"
    assert not any("hotshoe_loader" in line for line in lines)
    assert "in outer" not in registry.explain(), "not among all the others"
    assert "in outer" in registry.explain("bad")
    debug = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert any("in outer" in message for message in debug)
    assert not any("in outer" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_an_exception_without_a_readable_traceback_is_a_verdict(site):
    site.install("bad", "class E(Exception):\n    def __str__(self): raise ValueError\ndef f(): raise E\nf()")
    assert "in f" in "\n".join(only(load_all()).details["traceback"])


def test_a_very_long_message_is_cut(site):
    site.install("bad", "raise RuntimeError('x' * 10_000_000)")
    found = only(load_all())
    assert len(found.reason) <= 4000
    assert len(json.dumps(found.to_json())) < 200_000


# -- escapes ------------------------------------------------------------------------------------------------

ESCAPE = "\\x1b]0;owned\\x07\\x9b2J\\u202e"


@pytest.mark.parametrize(
    "code",
    [
        f"raise RuntimeError('{ESCAPE}')",
        f"raise type('{ESCAPE}', (Exception,), {{}})('x')",
        f"import os; os.environ['A{ESCAPE}'] = '1'\nraise RuntimeError",
        f"raise ModuleNotFoundError('x', name='{ESCAPE}')",
        f"raise ImportError('{ESCAPE}: cannot open shared object file: No such file')",
        f"from hotshoe_core.errors import HotshoeError\nraise HotshoeError('x', hint='{ESCAPE}')",
        lists(f"return [Device('bad:0', self.type, self.name, '{ESCAPE}')]"),
        lists(f"return [type('{ESCAPE}', (), {{}})()]"),
        GOOD_CODE.replace("return None", f"return {{'kind': '{ESCAPE}'}}"),
        GOOD_CODE.replace("return None", f"return {{'{ESCAPE}': 1, 'kind': 'ggml'}}"),
        GOOD_CODE.replace("return backend", f"return type('{ESCAPE}', (), {{}})()"),
    ],
)
def test_no_escape_of_a_plugin_reaches_a_terminal(site, caplog, capsys, code):
    from hotshoe.cli import main

    site.install("bad", code)
    with caplog.at_level("DEBUG", "hotshoe"):
        registry = load_all()
    for verdict in registry.verdicts:
        assert str(verdict).isprintable()
        assert (verdict.hint or "").isprintable()
    shown = [registry.explain(), registry.explain("bad"), registry.why(), caplog.text]
    for arguments in (["devices"], ["devices", "-v"], ["devices", "--json"], ["doctor", "-v"], ["doctor", "--json"]):
        main(arguments)
        shown.append("".join(capsys.readouterr()))
    for text in shown:
        assert all(line.isprintable() for line in text.split("\n"))
    json.loads(shown[-1])


def test_no_escape_of_metadata_or_a_file_name_does(site, natives, tmp_path, capsys):
    from hotshoe.cli import main

    evil = "\x1b[2J"
    info = site.metadata("plain", "1", f"[hotshoe.backends]\nname{evil} = module{evil}\n")
    (info / "METADATA").write_text(f"Name: dist{evil}\nVersion: 1{evil}\n")
    (tmp_path / "mine").mkdir()
    natives.library(f"libggml-odd{evil}.so", "int x;", folder=tmp_path / "mine")
    registry = load_all(paths=[tmp_path / "mine", tmp_path / f"none{evil}"])
    assert r"name\x1b[2J" in {each.candidate for each in registry.verdicts}
    assert any(each.candidate.startswith(r"ggml-odd\x1b[2J") for each in registry.verdicts)
    text = registry.explain()
    main(["devices", "-v"])
    assert "\x1b" not in text + "".join(capsys.readouterr())


# -- kept reports that lie ----------------------------------------------------------------------------------


def edit(entry: dict, path: str, value: object) -> None:
    *parts, last = path.split(".")
    for part in parts:
        entry = entry[int(part) if part.isdigit() else part]
    entry[int(last) if last.isdigit() else last] = value


P, V = "report.providers.0.", "report.providers.0.devices.0."
LIES = [
    (V + "pci_id", 5),
    (V + "description", 5),
    (V + "description", "\x1b[2J"),
    (V + "name", "auto"),
    (V + "name", ["npu:0"]),
    (V + "type", "toaster"),
    (V + "type", None),
    (V + "provider", "other"),
    (V + "memory_total", -5),
    (V + "memory_total", 1 << 60),
    (V + "memory_free", float("nan")),
    (V + "memory_free", True),
    (V + "library", "/tmp/evil.so"),
    (V + "library", 3),
    (V + "properties", {"a": [1]}),
    (V + "more", 1),
    (P + "devices", {}),
    (P + "name", 3),
    (P + "library", "/tmp/evil.so"),
    (P + "libraries", [{}]),
    (P + "files", [1]),
    (P + "files", {"/x": ["a", 1]}),
    (P + "dropped", ["\x1b"]),
    (P + "elapsed", -1),
    (P + "elapsed", 10**400),
    (P + "rejected", {"outcome": "crashed"}),
    (P + "rejected", {"outcome": "loved", "reason": "", "hint": None, "details": {}}),
    (P + "rejected", {"outcome": "crashed", "reason": 3, "hint": None, "details": {}}),
    ("report.elapsed", float("inf")),
    ("report.matched", [3]),
    ("report.changes", None),
    ("report.changes", "abc"),
    ("report.providers", None),
    ("time", "soon"),
    ("time", 10**400),
    ("key", None),
    ("files", 3),
]


@pytest.mark.parametrize(
    ("path", "value"), LIES, ids=[f"{path.rpartition('.')[2]}-{i}" for i, (path, _) in enumerate(LIES)]
)
def test_an_invalid_kept_report_is_made_again(site, probes, monkeypatch, path, value):
    from hotshoe_loader import probe

    site.good("acme")
    _forget()
    load_all()
    (entry,) = probes.iterdir()
    data = json.loads(entry.read_text())
    edit(data, path, value)
    entry.write_text(json.dumps(data))
    probed = []
    monkeypatch.setattr(
        probe, "_probe_now", lambda jobs, limit: probed.extend(jobs) or [site.probe(job) for job in jobs]
    )
    _forget()
    assert load_all().devices[0].name == "npu:0"
    assert len(probed) == 1


def test_a_report_is_the_same_after_writing_and_reading(site, native_plugin, natives):
    """A report with libraries, devices and rejections, written and read."""
    from hotshoe_loader.find import find_plugins
    from hotshoe_loader.report import Job

    natives.variant("cpu-x64", 1)
    natives.variant("cpu-bad", 0)
    native_plugin()
    report = site.probe(Job(find_plugins().plugins[0]))
    again = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert again.to_json() == report.to_json()
    assert again.providers[0].devices == report.providers[0].devices
    assert set(again.providers[0].files) == {str(natives.folder / "libggml-base.so"), again.providers[0].library}
