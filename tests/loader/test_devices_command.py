"""``hotshoe devices``: readable at 80 columns, and complete as JSON."""

from __future__ import annotations

import argparse
import json

import pytest

from hotshoe.cli import devices


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    devices.add_parser(parser.add_subparsers())
    args = parser.parse_args(["devices", *arguments])
    code: int = args.run(args)
    return code


@pytest.fixture
def machine(site):
    memory = "memory_total=8 << 30, memory_free=7 << 30"
    site.good("hotshoe-ggml-cuda", f"'ggml-cuda', 'ggml', ('cuda:0',), DeviceType.GPU, {memory}")
    site.good("hotshoe-ggml-cpu", f"'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU, description={'AMD EPYC ' * 20!r}")
    site.install("bad", f"raise RuntimeError({'something went wrong ' * 9!r})")


@pytest.mark.parametrize("arguments", [[], ["-v"]])
def test_text(machine, capsys, arguments):
    assert command(*arguments) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split() == ["NAME", "TYPE", "MEMORY", "PROVIDER", "LIBRARY"]
    assert lines[1].split() == ["cuda:0", "gpu", "7.0", "of", "8.0", "GiB", "ggml-cuda", "-"]
    assert "Used by default: cuda:0 (ggml-cuda): best of 3 devices" in out
    assert "  bad: import-error" in lines
    assert "-> report it to the authors of bad" in out
    assert ("from bad 1.0" in out) == bool(arguments)
    if not arguments:
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["devices", "doctor"])
def test_a_command_is_in_one_line_so_that_it_can_be_copied(site, capsys, name):
    from hotshoe.cli import main

    step = f"pip install {' '.join(f'acme-part-{i}' for i in range(12))}"
    site.install("bad", f"raise RuntimeError('no driver: {step}')")
    main([name])
    assert f"      -> {step}" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", ["devices", "doctor"])
def test_a_plugins_traceback_is_shown_if_it_is_asked_for(machine, capsys, name):
    from hotshoe.cli import main

    main([name])
    assert "Traceback" not in capsys.readouterr().out
    main([name, "-v"])
    out = capsys.readouterr().out
    assert "      | Traceback (most recent call last):" in out
    assert "bad.py" in out


@pytest.mark.parametrize(("variable", "value"), [("PROBE_TIMEOUT", "soon"), ("GGML", "nowhere")])
@pytest.mark.parametrize("name", ["devices", "doctor"])
def test_a_variable_that_is_wrong_is_one_message(site, monkeypatch, capsys, name, variable, value):
    from hotshoe.cli import main

    monkeypatch.setenv(f"HOTSHOE_{variable}", value)
    assert main([name]) == 2
    assert capsys.readouterr().err.startswith(f"hotshoe: error: HOTSHOE_{variable} takes ")


def test_json(machine, capsys):
    assert command("--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [device["name"] for device in report["devices"]] == ["cuda:0", "cpu", "reference"]
    assert report["devices"][0]["memory_total"] == 8 << 30
    assert report["why"].startswith("cuda:0")
    assert {verdict["candidate"]: verdict["outcome"] for verdict in report["verdicts"]}["bad"] == "import-error"


def test_a_requirement_that_is_not_met(site, monkeypatch, capsys):
    monkeypatch.setenv("HOTSHOE_REQUIRE", "cuda")
    assert command() == 1
    out = capsys.readouterr().out
    assert "HOTSHOE_REQUIRE=cuda" in out
    assert "pip install" in out
    assert command("--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["devices"] == []
    assert "HOTSHOE_REQUIRE=cuda" in report["error"]
    assert report["verdicts"]


def test_each_library_is_named_once(site, natives, native_plugin, capsys):
    """In the table if it is used, else by a verdict: that on its plugin, if none of the plugin's libraries works."""
    natives.variant("cpu-x64", 1)
    natives.variant("cpu-zen4", 9)
    natives.library("libggml-cuda.so", "int not_a_backend;")
    native_plugin()
    native_plugin("cuda")
    command()
    out = capsys.readouterr().out
    assert [out.count(f"ggml-{name}") for name in ("cpu-zen4", "cpu-x64")] == [2, 1], "outscored: by which library"
    assert out.count("does not export ggml_backend_init") == 1
    command("-v")
    assert "it has the highest score" in capsys.readouterr().out
