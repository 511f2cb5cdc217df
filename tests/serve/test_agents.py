"""Terminal agents as they are published, with a model that calls the tools that they offer.

They come from npm: ``npm install @openai/codex @anthropic-ai/claude-code opencode-ai cline @continuedev/cli
@qwen-code/qwen-code`` in any folder, which AGENTS names. Without them, these tests are skipped. They need no network.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.serve.conftest import Server
from tests.support.scripted import make_scripted

CODEX_CONFIG = """
model = "agent"
model_provider = "hotshoe"
[model_providers.hotshoe]
name = "hotshoe"
base_url = "{url}/v1"
wire_api = "responses"
"""


def program(name: str) -> str:
    path = Path(os.environ.get("AGENTS", "."), "node_modules", ".bin", name)
    if not path.exists():
        pytest.skip(f"needs {name} from npm; AGENTS=FOLDER (tests/serve/test_agents.py names the packages)")
    return str(path.absolute())


def two_calls(path: Path, tool: str, argument: str, more: str = "") -> Path:
    """A model that looks at a file and writes another, and then says so."""
    calls: list[str] = []
    for command in ("cat a.txt", "echo hotshoe > b.txt"):
        call = f'{{"name": "{tool}", "arguments": {{"{argument}": "{command}"{more}}}}}'
        calls += [f"<tool_call>{len(calls) * ' '}", call, f"</tool_call>{len(calls) * ' '}"]
    answer = ["a.txt says hello,", " and b.txt says hotshoe."]
    return make_scripted(path, ["<think>", "First I look,", " then I write.", "</think>", *calls], answer, n_ctx=131072)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / "a.txt").write_text("hello\n")
    return folder


def run(command: list[str], folder: Path, **variables: str) -> str:
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"HOME": str(home)} | variables, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TASK = "What is in a.txt? Write hotshoe to b.txt."


def test_codex(tmp_path: Path, repository: Path) -> None:
    codex = program("codex")
    server = Server(
        str(two_calls(tmp_path / "agent.gguf", "exec_command", "cmd")), "--ctx", "131072", "--sequences", "1"
    )
    try:
        settings = tmp_path / "settings"
        settings.mkdir()
        (settings / "config.toml").write_text(CODEX_CONFIG.format(url=server.url))
        command = [codex, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", TASK]
        said = run(command, repository, CODEX_HOME=str(settings))
    finally:
        server.stop()
    assert said.strip().endswith("a.txt says hello, and b.txt says hotshoe.")
    assert (repository / "b.txt").read_text() == "hotshoe\n"


def test_claude_code(tmp_path: Path, repository: Path) -> None:
    claude = program("claude")
    path = two_calls(tmp_path / "agent.gguf", "Bash", "command", ', "description": "x"')
    server = Server(str(path), "--ctx", "131072", "--sequences", "1")
    try:
        said = run(
            [claude, "-p", TASK, "--dangerously-skip-permissions"], repository, ANTHROPIC_BASE_URL=server.url,
            ANTHROPIC_API_KEY="none", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", IS_SANDBOX="1",
        )  # fmt: skip
    finally:
        server.stop()
    assert said.strip() == "a.txt says hello, and b.txt says hotshoe."
    assert (repository / "b.txt").read_text() == "hotshoe\n"
