"""Every broken plugin gets a verdict with a reason; the other plugins and the caller are not affected."""

from __future__ import annotations

import json
import logging

import pytest

from hotshoe_loader import Outcome, Registry, load_all
from tests.support.fake_plugins import GOOD

HOOK = "from hotshoe_core.contract.plugin import hookimpl\n@hookimpl\ndef hotshoe_providers():\n"
PROVIDER = """
from hotshoe_core.contract.device import API_VERSION, Device, DeviceType
from hotshoe_core.contract.plugin import hookimpl
from tests.support.fake_plugins import GOOD
class Provider:
    name, family, api_version = "bad", "bad", API_VERSION
    def native(self): return None
    def devices(self, library): return [Device("bad", DeviceType.GPU, "bad", "bad")]
    def open(self, devices, params):
        from hotshoe_core.eager.reference import open_reference
        return open_reference(params)
@hookimpl
def hotshoe_providers(): return [Provider()]
"""


def test_no_plugins_leaves_the_reference_and_says_so(site, verdicts, caplog):
    registry = load_all()
    assert [device.name for device in registry.devices] == ["reference"]
    assert verdicts(registry) == {"reference": "available"}
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.name for record in warnings] == ["hotshoe.loader"]
    assert "reference backend" in warnings[0].getMessage()
    assert "pip install hotshoe-ggml-cpu" in warnings[0].getMessage()
    assert "no plugin offers a device" in registry.why()
    load_all(prefer="reference")
    assert len(caplog.records) == len(warnings), "logged once, whatever is preferred"


def test_a_good_plugin(site, verdicts, caplog):
    site.good()
    registry = load_all()
    assert verdicts(registry) == {"acme": "available", "reference": "available"}
    assert [device.name for device in registry.devices] == ["npu:0", "reference"]
    verdict = registry.verdicts[0]
    assert (verdict.origin, verdict.kind) == ("acme 1.0", "plugin")
    assert verdict.elapsed > 0
    assert verdict.details["devices"] == ["npu:0"]
    assert not caplog.records


# name, code, outcome, words of the reason, words of the hint
BROKEN = [
    ("import-error", "1 / 0", "import-error", "importing 'bad' raised ZeroDivisionError: division by zero", "report"),
    ("syntax-error", "def", "import-error", "SyntaxError", "report it to the authors of bad"),
    ("sysexit", "raise SystemExit(3)", "import-error", "raised SystemExit: 3", "report"),
    ("sysexit-empty", "import sys; sys.exit()", "import-error", "raised SystemExit", "report"),
    ("base-exception", "raise BaseException('x')", "import-error", "raised BaseException: x", "report"),
    ("module", "import nowhere.at_all", "missing-dependency", "the module 'nowhere'", "pip install nowhere"),
    ("own-module", "import bad.libary", "import-error", "'bad' has no module 'libary'", "correct the import, or pip"),
    ("renamed", "import yaml_; import yaml", "missing-dependency", "'yaml_'", "reinstall bad"),
    (
        "library",
        "raise ImportError('libcublas.so.13: cannot open shared object file: No such file or directory')",
        "missing-dependency",
        "needs the library libcublas.so.13",
        "pip install nvidia-cublas",
    ),
    (
        "symbol",
        "raise ImportError('/x.so: undefined symbol: ggml_new')",
        "abi-mismatch",
        "undefined symbol: ggml_new",
        "pip install --force-reinstall bad",
    ),
    ("import-name", "from hotshoe_core import nothing_such", "import-error", "cannot import name", "reinstall bad"),
    ("no-hook", "x = 1", "incompatible-api", "no hook hotshoe_providers()", "hotshoe_core.contract.plugin"),
    ("unmarked", "def hotshoe_providers(): return []", "incompatible-api", "@hookimpl", "hotshoe_core.contract.plugin"),
    (
        "unknown-hook",
        HOOK.replace("providers", "futures") + "    return []",
        "incompatible-api",
        "hotshoe_futures",
        "hotshoe_core.contract.plugin",
    ),
    (
        "wrong-signature",
        HOOK.replace("():", "(wanted):") + "    return []",
        "incompatible-api",
        "wanted",
        "HookSpecs",
    ),
    ("hook-raises", HOOK + "    raise KeyError('x')", "crashed", "hotshoe_providers() raised KeyError: 'x'", "report"),
    (
        "variable",
        HOOK + "    from hotshoe_core.errors import OptionError\n    raise OptionError('X is 1', hint='say X=2')",
        "invalid-option",
        "X is 1",
        "say X=2",
    ),
    ("hook-exits", HOOK + "    raise SystemExit", "crashed", "raised SystemExit", "report"),
    ("hook-imports", HOOK + "    import nowhere", "missing-dependency", "'nowhere'", "pip install nowhere"),
    ("hook-none", HOOK + "    return None", "no-device", "no provider", None),
    ("hook-empty", HOOK + "    return []", "no-device", "no provider", None),
    ("hook-text", HOOK + "    return 'abc'", "incompatible-api", "returned str; expected a list", "report"),
    ("not-a-provider", HOOK + "    return [object()]", "incompatible-api", "object.name: a valid name", "Provider"),
    (
        "old",
        PROVIDER.replace('"bad", API_VERSION', '"bad", 0'),
        "incompatible-api",
        "version 0",
        "pip install --upgrade bad",
    ),
    ("new", PROVIDER.replace('"bad", API_VERSION', '"bad", 9'), "incompatible-api", "version 9", "--upgrade hotshoe"),
    (
        "no-version",
        PROVIDER.replace(', api_version = "bad", "bad", API_VERSION', ' = "bad", "bad"'),
        "incompatible-api",
        "",
        "",
    ),
    ("no-open", PROVIDER.replace("def open", "def opens"), "incompatible-api", "a method Provider.open()", "report"),
    ("bad-native", PROVIDER.replace("return None", "return 3"), "incompatible-api", "native() returned int", "report"),
    ("native-raises", PROVIDER.replace("return None", "1 / 0"), "crashed", "its native() raised Zero", "report"),
    (
        "devices-raise",
        PROVIDER.replace("return [Device", "raise OSError('no driver')  # "),
        "crashed",
        "its devices() raised OSError: no driver",
        "report",
    ),
    (
        "devices-none",
        PROVIDER.replace("return [Device", "return None  # "),
        "incompatible-api",
        "its devices() returned None; expected a list of Devices",
        "report it to the authors of bad",
    ),
    ("zero-devices", PROVIDER.replace("return [Device", "return []  # "), "no-device", "finds no device", "driver"),
    (
        "no-device-and-why",
        PROVIDER.replace(
            "return [Device",
            "from hotshoe_core.errors import DeviceNotFoundError as E; raise E('no driver', hint='apt install it')  # ",
        ),
        "no-device",
        "no driver",
        "apt install it",
    ),
    (
        "no-device-type",
        PROVIDER.replace("return [Device", "return [7]  # "),
        "incompatible-api",
        "listed int; expected a Device",
        "",
    ),
    (
        "open-raises",
        PROVIDER.replace("return open_ref", "1 / 0; return open_ref"),
        "crashed",
        "computing on bad",
        "report",
    ),
    (
        "open-nothing",
        PROVIDER.replace("return open_reference(params)", "return 7"),
        "incompatible-api",
        "int",
        "report",
    ),
    (
        "wrong-numbers",
        PROVIDER.replace(
            "return open_reference(params)",
            "backend = open_reference(params); backend.library_of(-1).functions['exp'] = lambda x: x; "
            "backend.library_of(-1).functions['softmax'] = lambda x, *_, **__: x; return backend",
        ),
        "wrong-result",
        "bad computes wrong numbers: softmax gives [",
        "HOTSHOE_BLOCK=bad; if you write it: python -m pytest -q -k softmax in its folder",
    ),
    (
        "memory",
        PROVIDER.replace('"bad", "bad")', '"bad", "bad", memory_total=-5)'),
        "wrong-result",
        "-5 bytes",
        "driver",
    ),
    (
        "much-memory",
        PROVIDER.replace('"bad", "bad")', '"bad", "bad", memory_total=1 << 60)'),
        "wrong-result",
        f"{1 << 60} bytes",
        "HOTSHOE_BLOCK=bad",
    ),
    (
        "free-memory",
        PROVIDER.replace('"bad", "bad")', '"bad", "bad", memory_total=5, memory_free=6)'),
        "wrong-result",
        "6 free bytes of memory out of 5",
        "driver",
    ),
    ("foreign-device", PROVIDER.replace('GPU, "bad"', 'GPU, "x"'), "incompatible-api", "provider 'x'", "report"),
    (
        "unhashable",
        "class P:\n    __hash__ = None\nimport sys\nsys.modules[__name__] = P()",
        "crashed",
        "unhashable",
        "report",
    ),
    (
        "bad-message",
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        "import-error",
        "cannot be shown",
        "report",
    ),
    (
        "recursive",
        "import hotshoe_loader\nhotshoe_loader.load_all()",
        "import-error",
        "load_all() was called by a plugin",
        "must not call load_all()",
    ),
]


@pytest.mark.parametrize(("code", "outcome", "reason", "hint"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_broken_plugin_is_a_verdict(site, verdicts, caplog, code, outcome, reason, hint):
    site.install("bad", code)
    site.good("good")
    registry = load_all()
    verdict = next(verdict for verdict in registry.verdicts if verdict.candidate == "bad")
    assert verdict.outcome is Outcome(outcome), verdict
    assert reason in verdict.reason
    assert "\n" not in verdict.reason
    assert (verdict.hint is None) if hint is None else (hint in verdict.hint)
    assert verdict.origin == "bad 1.0"
    assert verdicts(registry)["acme"] == "available", "the plugin after the broken one works"
    assert [device.name for device in registry.devices] == ["npu:0", "reference"]
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert bool(warned) == verdict.outcome.broken
    assert verdict.to_json()["outcome"] == outcome


def test_a_broken_plugin_alone_leaves_the_reference(site, caplog):
    site.install("bad", "import nowhere")
    registry = load_all()
    assert [device.name for device in registry.devices] == ["reference"]
    assert "pip install nowhere" in caplog.text


def test_a_damaged_plugin_is_installed_again_from_where_it_came(site):
    """Its author's folder, which an index may not have, or has as somebody else's."""
    site.install("bad", None, value="no_such")
    origin = {"url": site.path.as_uri(), "dir_info": {"editable": True}}
    (site.path / "bad-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    assert load_all().verdicts[0].hint == f"pip install -e {site.path}"


def test_keyboard_interrupt_is_the_users(site):
    site.install("bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_all()


@pytest.mark.parametrize(
    ("value", "code", "reason"),
    [
        ("bad:nothing", "", "'nothing' does not exist in it"),
        ("bad.sub", "", "'bad.sub' does not exist"),
        ("no_such", "", "'no_such' does not exist: the installation is damaged"),
        ("not a module!", "", "reading the entry point"),
        ("bad:Class", "class Class: pass", "names a class"),
    ],
)
def test_an_entry_point_that_leads_nowhere(site, value, code, reason):
    site.install("bad", code, value=value)
    verdict = load_all().verdicts[0]
    assert verdict.outcome in (Outcome.IMPORT_ERROR, Outcome.INCOMPATIBLE_API)
    assert reason in verdict.reason


def test_an_object_as_entry_point(site, verdicts):
    code = PROVIDER.replace(
        "@hookimpl\ndef hotshoe_providers()", "class P:\n  @hookimpl\n  def hotshoe_providers(self)"
    )
    site.install("objects", code + "\nplugin = P()", value="objects:plugin")
    assert verdicts(load_all())["bad"] == "available"


def test_one_plugin_may_bring_several_providers_and_each_has_its_verdict(site, verdicts):
    code = PROVIDER.replace("[Provider()]", "[object(), Provider()]")
    site.install("two", code)
    assert verdicts(load_all()) == {"two": "incompatible-api", "bad": "available", "reference": "available"}


def test_a_provider_name_taken_is_shadowed(site):
    site.good("zeta", "devices=('b',)")
    site.good("alpha", "devices=('a',)")
    registry = load_all()
    first, second = (verdict for verdict in registry.verdicts if verdict.candidate == "acme")
    assert (first.origin, first.outcome) == ("alpha 1.0", Outcome.AVAILABLE)
    assert (second.origin, second.outcome) == ("zeta 1.0", Outcome.SHADOWED)
    assert "alpha 1.0" in second.reason
    assert "HOTSHOE_BLOCK=alpha" in second.hint
    assert [device.name for device in load_all(block="alpha").devices] == ["b", "reference"]


def test_device_names_are_unique(site):
    site.good("a", "'one', devices=('x', 'y')")
    site.good("b", "'two', devices=('y', 'z')")
    site.good("c", "'three', devices=('x', 'reference')")
    registry = load_all()
    found = {device.name: device.provider for device in registry.devices}
    assert found == {"x": "one", "y": "one", "z": "two", "reference": "reference"}
    outcome = {verdict.candidate: verdict for verdict in registry.verdicts}
    assert outcome["two"].outcome is Outcome.AVAILABLE
    assert "'y' is taken by 'one'" in outcome["two"].reason
    assert outcome["three"].outcome is Outcome.SHADOWED


def test_the_name_reference_is_taken(site, verdicts):
    site.good("a", "'reference'")
    registry = load_all()
    assert registry.verdicts[0].outcome is Outcome.SHADOWED
    assert registry.devices[0].description.startswith("NumPy")


def test_the_same_module_twice_is_shadowed(site, verdicts):
    site.good("acme")
    site.install("bcme", None, value="acme")
    found = [(each.candidate, each.details["plugin"], each.outcome.value) for each in load_all().verdicts[:2]]
    assert found == [("acme", "acme", "available"), ("acme", "bcme", "shadowed")]


@pytest.mark.parametrize("name", ["acme-plugin", "Acme.Plugin", "entry", "the-provider", "the-family", "npu", "accel"])
@pytest.mark.parametrize("way", ["argument", "environment"])
def test_block(site, monkeypatch, name, way):
    site.good("acme-plugin", "'the-provider', 'the-family'", entry="entry")
    if way == "environment":
        monkeypatch.setenv("HOTSHOE_BLOCK", f"other, {name}")
    registry = load_all(block=name if way == "argument" else ())
    verdict = registry.verdicts[0]
    assert verdict.outcome is Outcome.BLOCKED
    assert "block" in verdict.reason
    assert [device.name for device in registry.devices] == ["reference"]


def test_a_blocked_plugin_is_not_imported(site):
    site.install("bad", "raise KeyboardInterrupt")
    assert load_all(block=["bad"]).verdicts[0].outcome is Outcome.BLOCKED


def test_one_device_can_be_blocked(site):
    site.good("a", "devices=('npu:0', 'npu:1')")
    registry = load_all(block="npu:1")
    assert [device.name for device in registry.devices] == ["npu:0", "reference"]
    assert "npu:1 is blocked" in registry.explain()


def test_a_published_plugin_is_blocked_by_its_short_name(site):
    site.install("hotshoe-ggml-vulkan", "raise KeyboardInterrupt")
    assert load_all(block="vulkan").verdicts[0].outcome is Outcome.BLOCKED


def test_an_exception_whose_text_exits_is_an_error_of_the_import(site):
    code = "class Sting(Exception):\n    def __str__(self): raise SystemExit(3)\nraise Sting from Sting()"
    site.install("bad", code)
    (found, *_) = load_all().verdicts
    assert found.outcome is Outcome.IMPORT_ERROR
    assert found.reason == "importing 'bad' raised Sting: (its message cannot be shown)"


def test_what_an_attribute_of_the_module_raises_is_an_error_of_the_import(site):
    site.install("bad", "def __getattr__(name): raise SystemExit(3)", value="bad:plugin")
    (found, *_) = load_all().verdicts
    assert found.outcome is Outcome.IMPORT_ERROR
    assert found.reason.startswith("importing 'bad' raised SystemExit: 3")


def test_a_block_that_matches_nothing_is_a_warning(site, caplog):
    site.good()
    text = load_all(block=["acmme", "cuda", "gpu"]).explain()
    line = "'acmme' in block= or HOTSHOE_BLOCK matches nothing; did you mean 'acme'?"
    assert line in text
    assert [record.getMessage() for record in caplog.records] == [line], "published plugins may be blocked beforehand"


def test_a_variable_that_nothing_reads_is_a_warning(site, caplog, monkeypatch):
    monkeypatch.setenv("HOTSHOE_PREFFER", "cpu")
    monkeypatch.setenv("HOTSHOE_ACME_LEVEL", "5")
    (site.path / "acme").mkdir()
    (site.path / "acme" / "__init__.py").write_text(GOOD.replace("{arguments}", ""))
    (site.path / "acme" / "hotshoe-plugin.json").write_text('{"format": 1, "environment": ["HOTSHOE_ACME_"]}')
    site.install("acme", None)
    line = "the environment variable HOTSHOE_PREFFER has no effect; did you mean 'HOTSHOE_PREFER'?"
    assert line in load_all().explain()
    assert [record.getMessage() for record in caplog.records] == [line]


def test_a_variable_of_a_plugin_that_is_not_tested_is_no_mistake(site, caplog, monkeypatch):
    monkeypatch.setenv("HOTSHOE_ACME_LEVEL", "5")
    (site.path / "acme").mkdir()
    (site.path / "acme" / "__init__.py").write_text(GOOD.replace("{arguments}", ""))
    (site.path / "acme" / "hotshoe-plugin.json").write_text('{"format": 1, "environment": ["HOTSHOE_ACME_"]}')
    site.install("acme", None)
    load_all(device="reference")
    load_all()
    assert not caplog.records


def test_a_variable_that_resembles_none_gets_no_guess(site, monkeypatch):
    monkeypatch.setenv("HOTSHOE_FOO", "cpu")
    assert (
        "HOTSHOE_FOO has no effect; unset it, or correct its name: docs/loader.md lists the variables"
        in load_all().explain()
    )


def test_block_cpu_does_not_mean_the_reference(site):
    assert [device.name for device in load_all(block="cpu").devices] == ["reference"]


def test_the_reference_can_be_blocked(site):
    registry: Registry = load_all(block="reference")
    assert registry.devices == ()
    assert repr(registry) == "<Registry: no device>"
    assert "no device" in registry.explain()
