"""`hotshoe connect`: what it prints runs, and what it writes keeps the other settings."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hotshoe.cli import main
from hotshoe.cli._clients import CLIENTS
from tests.serve.conftest import Server
from tests.serve.test_agents import TASK, program, two_calls
from tests.serve.test_agents import repository as repository  # a fixture
from tests.serve.test_agents import run as run_agent
from tests.support.scripted import make_scripted

FILES = [name for name, client in CLIENTS.items() if client.path is not None]
HOME = {"codex": "CODEX_HOME", "claude": "CLAUDE_CONFIG_DIR"}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where every client's settings are."""
    for name in ("XDG_CONFIG_HOME", "APPDATA", *HOME.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def connect(*arguments: str) -> int:
    return main(["connect", *arguments])


def test_without_a_client_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert connect() == 0
    said = capsys.readouterr().out
    for name in CLIENTS:
        assert f"\n{name} " in said
    assert connect("codx") == 2
    assert "did you mean 'codex'?" in capsys.readouterr().err


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_is_told_address_key_and_model(
    client: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connect(client, "--url", NOWHERE, "--key", "s3cret", "--model", "mine") == 0
    out = capsys.readouterr()
    assert "127.0.0.1:9" in out.out
    if client not in ("vscode", "home-assistant", "open-webui"):  # they choose a model themselves
        assert "mine" in out.out
    if client not in ("vscode", "home-assistant", "zed"):  # Zed keeps keys elsewhere
        assert "s3cret" in out.out
    assert "the models of the server are not known: no server answers" in out.err
    assert list(home.iterdir()) == []


def test_the_model_and_its_context_come_from_the_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert connect("opencode", "--url", server.url) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "hotshoe/verse"  # the first that writes texts
    assert told["provider"]["hotshoe"]["models"]["verse"]["limit"]["context"] == 512
    assert connect("opencode", "--url", server.url, "--model", "nowhere") == 2
    assert "it has verse, vectors, ranks" in capsys.readouterr().err


BEFORE = {
    ".json": '{"theme": "dark", "env": {"A": "1"}, "provider": {"other": {"name": "x"}}}',
    ".toml": '# mine\nmodel = "gpt"\nother = 1\n\n[model_providers.hotshoe]\nname = "old"\nx = 1\n\n'
    '[model_providers.theirs]\nname = "theirs"  # keep\n',
    ".yml": "# mine\ndark-mode: true\nmodel: gpt\n",
}


@pytest.mark.parametrize("client", FILES)
def test_write_keeps_other_settings(client: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--write", "--url", NOWHERE, "--model", "mine")
    client_path = CLIENTS[client].path
    assert client_path is not None
    path = client_path()
    assert path.is_relative_to(home)
    before = BEFORE.get(path.suffix, "")
    if before:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(before)
    assert connect(client, *options) == 1  # no terminal to ask
    out = capsys.readouterr()
    assert "+" in out.out
    assert "127.0.0.1:9" in out.out
    assert "nothing was written" in out.err
    assert (path.read_text() if path.exists() else "") == before
    assert connect(client, *options, "--yes") == 0
    after = path.read_text()
    assert NOWHERE in after
    capsys.readouterr()
    assert connect(client, *options, "--yes") == 0 or path.suffix == ".yaml"  # once more changes nothing
    assert path.read_text() == after
    if path.suffix == ".json":
        found: Any = json.loads(after)
        assert found["theme"] == "dark"
        assert found["env"]["A"] == "1"
        assert found["provider"]["other"] == {"name": "x"}
    elif path.suffix == ".toml":
        assert "# mine" in after
        assert 'name = "theirs"  # keep' in after
        settings = tomllib.loads(after)
        assert (settings["model"], settings["model_provider"], settings["other"]) == ("mine", "hotshoe", 1)
        assert settings["model_providers"]["hotshoe"]["base_url"] == f"{NOWHERE}/v1"
    elif path.suffix == ".yml":
        assert after.startswith("# mine\ndark-mode: true\n")
        assert after.count("model:") == 1


def test_a_file_that_cannot_be_changed_safely_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--write", "--yes", "--url", NOWHERE, "--model", "mine")
    for client, text in (
        ("claude", '{"a": 1, // a comment\n}'),
        ("codex", 'model_providers = {hotshoe = {name = "x"}}\n'),
        ("codex", "not toml"),
        ("continue", "models: []\n"),
    ):
        client_path = CLIENTS[client].path
        assert client_path is not None
        path = client_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        assert connect(client, *options) == 2
        assert "cannot be changed" in capsys.readouterr().err
        assert path.read_text() == text
    assert connect("cline", *options) == 2
    assert "no file of settings" in capsys.readouterr().err
    assert connect("codex", "--write", "--url", NOWHERE) == 2
    assert "--model NAME" in capsys.readouterr().err
    assert connect("codex", "--url", "127.0.0.1") == 2
    assert "expected http://HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("client", ["openai", "anthropic", "ollama", "langchain", "curl"])
def test_what_is_printed_runs(client: str, chat_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    if client != "curl":
        pytest.importorskip({"langchain": "langchain_openai"}.get(client, client))
    assert connect(client, "--url", chat_server.url, "--model", "smol") == 0
    code = capsys.readouterr().out
    command = shlex.split(code) if client == "curl" else [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except FileNotFoundError:
        pytest.skip("curl is not installed")
    assert done.returncode == 0, done.stderr
    if client == "curl":
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]
    else:
        assert done.stdout.strip()


CODEX = ["codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"]


@pytest.mark.parametrize(
    ("client", "command", "tool", "argument", "more"),
    [
        ("codex", CODEX, "exec_command", "cmd", ""),
        ("claude", ["claude", "--dangerously-skip-permissions", "-p"], "Bash", "command", ', "description": "x"'),
        ("opencode", ["opencode", "run"], "bash", "command", ', "description": "x"'),
        ("continue", ["cn", "--auto", "-p"], "Bash", "command", ""),
        ("qwen", ["qwen", "--yolo", "-p"], "run_shell_command", "command", ', "is_background": false'),
    ],
)  # fmt: skip
def test_an_agent_works_with_what_is_written(
    client: str, command: list[str], tool: str, argument: str, more: str, tmp_path: Path, repository: Path
) -> None:
    agent = program(command[0])
    model = two_calls(tmp_path / "agent.gguf", tool, argument, more)
    server = Server(str(model), "--ctx", "131072", "--sequences", "1")
    home = repository.parent / "home"
    home.mkdir()
    (home / "codex").mkdir()
    variables = {"CODEX_HOME": str(home / "codex"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
    variables["PWD"] = str(repository)  # opencode works there
    try:
        subprocess.run(
            [sys.executable, "-m", "hotshoe", "connect", client, "--write", "--yes", "--url", server.url],
            env=os.environ | variables | {"HOME": str(home)}, check=True, capture_output=True,
        )  # fmt: skip
        said = run_agent([agent, *command[1:], TASK], repository, **variables)
    finally:
        server.stop()
    assert "b.txt says hotshoe." in said
    assert (repository / "b.txt").read_text() == "hotshoe\n"


def test_cline_works_with_what_is_printed(tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cline's tool takes a list of commands."""
    cline = program("cline")
    calls = []
    for command in ("cat a.txt", "echo hotshoe > b.txt"):
        call = f'{{"name": "run_commands", "arguments": {{"commands": ["{command}"]}}}}'
        calls += [f"<tool_call>{len(calls) * ' '}", call, f"</tool_call>{len(calls) * ' '}"]
    model = make_scripted(tmp_path / "agent.gguf", calls, ["a.txt says hello,", " and b.txt says hotshoe."], 131072)
    server = Server(str(model), "--ctx", "131072", "--sequences", "1")
    try:
        assert connect("cline", "--url", server.url) == 0
        run_agent([cline, *shlex.split(capsys.readouterr().out)[1:]], repository)
        said = run_agent([cline, TASK], repository)
    finally:
        server.stop()
    assert "b.txt says hotshoe." in said
    assert (repository / "b.txt").read_text() == "hotshoe\n"


def test_aider_works_with_what_is_written(tmp_path: Path, repository: Path) -> None:
    """Aider has no tools: the model writes files as text. It comes from PyPI; AIDER names its program."""
    aider = os.environ.get("AIDER")
    if aider is None:
        pytest.skip("needs aider: pip install aider-chat, in an environment of its own; AIDER=PROGRAM")
    answer = ["Here it is.\n\n", "b.txt\n", "```\n", "hotshoe\n", "```"]
    server = Server(str(make_scripted(tmp_path / "agent.gguf", answer, ["unused"])), "--ctx", "8192")
    home = repository.parent / "home"
    home.mkdir()
    try:
        subprocess.run(
            [sys.executable, "-m", "hotshoe", "connect", "aider", "--write", "--yes", "--url", server.url],
            env=os.environ | {"HOME": str(home)}, check=True, capture_output=True,
        )  # fmt: skip
        options = ["--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
        said = run_agent([aider, *options, "--message", TASK], repository)
    finally:
        server.stop()
    assert "Applied edit to b.txt" in said
    assert (repository / "b.txt").read_text() == "hotshoe\n"
