"""The clients that `hotshoe connect` knows: what each needs to use a server, and where that belongs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CLIENTS", "Client", "Server"]


@dataclass(frozen=True)
class Server:
    """The server that a client is to use."""

    url: str
    """Without a path."""
    key: str
    model: str
    n_ctx: int | None
    """The context of the model in tokens; None if it is unknown."""


@dataclass(frozen=True)
class Client:
    """A client. Either it has settings in a file, or a person enters them, or runs them."""

    what: str
    """What it is, for the list."""
    text: Callable[[Server], str] | None = None
    """What to enter or run."""
    path: Callable[[], Path] | None = None
    """The file of its settings."""
    settings: Callable[[Server], dict[str, Any]] | None = None
    """What the file must contain; other settings stay."""
    note: str = ""
    """What else must be done."""


def _home(variable: str, *default: str) -> Path:
    return Path(os.environ[variable]) if os.environ.get(variable) else Path.home().joinpath(*default)


def _config(*names: str) -> Path:
    """A file below the folder of settings of the system."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", Path.home()), *names)
    return _home("XDG_CONFIG_HOME", ".config").joinpath(*names)


def _vscode() -> Path:
    mac = Path.home() / "Library" / "Application Support"
    return (mac / "Code" if sys.platform == "darwin" else _config("Code")) / "User" / "settings.json"


def _codex(server: Server) -> dict[str, Any]:
    provider = {"name": "hotshoe", "base_url": f"{server.url}/v1", "wire_api": "responses"}
    if server.key != "none":
        provider["experimental_bearer_token"] = server.key
    context = {"model_context_window": server.n_ctx} if server.n_ctx else {}
    return {"model": server.model, "model_provider": "hotshoe", **context, "model_providers": {"hotshoe": provider}}


def _claude(server: Server) -> dict[str, Any]:
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_AUTH_TOKEN": server.key}
    return {"env": env | dict.fromkeys(names, server.model)}


def _opencode(server: Server) -> dict[str, Any]:
    model: dict[str, Any] = {"name": server.model}
    if server.n_ctx:
        model["limit"] = {"context": server.n_ctx, "output": server.n_ctx // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "hotshoe",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": server.key},
        "models": {server.model: model},
    }
    return {"model": f"hotshoe/{server.model}", "provider": {"hotshoe": provider}}


def _aider(server: Server) -> dict[str, Any]:
    return {
        "model": f"openai/{server.model}",
        "openai-api-base": f"{server.url}/v1",
        "openai-api-key": server.key,
    }


def _zed(server: Server) -> dict[str, Any]:
    model = {"name": server.model, "display_name": server.model, "max_tokens": server.n_ctx or 32768}
    entry = {"api_url": f"{server.url}/v1", "available_models": [model]}
    return {"language_models": {"openai_compatible": {"hotshoe": entry}}}


def _continue(server: Server) -> dict[str, Any]:
    model = {"name": server.model, "provider": "openai", "model": server.model, "apiBase": f"{server.url}/v1"}
    return {"models": [model | {"apiKey": server.key, "roles": ["chat", "edit", "apply"]}]}


def _cline(server: Server) -> str:
    """The command that its terminal agent has for this."""
    given = [f"-b {server.url}/v1", f"-k {shlex.quote(server.key)}", f"-m {shlex.quote(server.model)}"]
    return f"cline auth -p openai-compatible {' '.join(given)}"


def _qwen(server: Server) -> dict[str, Any]:
    auth = {"selectedType": "openai", "apiKey": server.key, "baseUrl": f"{server.url}/v1"}
    return {"security": {"auth": auth}, "model": {"name": server.model}}


def _curl(server: Server) -> str:
    body = json.dumps({"model": server.model, "messages": [{"role": "user", "content": "Hello"}]})
    key = "" if server.key == "none" else f" -H 'Authorization: Bearer {server.key}'"
    quoted = body.replace("'", "'\\''")
    return f"curl {server.url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{quoted}'"


def _python(template: str) -> Callable[[Server], str]:
    """Code in which {url}, {key} and {model} are Python texts."""
    return lambda server: template.format(
        url=repr(server.url), openai=repr(f"{server.url}/v1"), key=repr(server.key), model=repr(server.model)
    )


def _open_webui(server: Server) -> str:
    return f"OPENAI_API_BASE_URL={server.url}/v1 OPENAI_API_KEY={server.key} open-webui serve"


CLIENTS = {
    "codex": Client("Codex, OpenAI's terminal agent", path=lambda: _home("CODEX_HOME", ".codex") / "config.toml",
                    settings=_codex),
    "claude": Client("Claude Code, Anthropic's terminal agent", settings=_claude,
                     path=lambda: _home("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"),
    "opencode": Client("opencode, a terminal agent", path=lambda: _home("XDG_CONFIG_HOME", ".config") / "opencode"
                       / "opencode.json", settings=_opencode),
    "aider": Client("aider, a terminal agent", path=lambda: Path.home() / ".aider.conf.yml", settings=_aider),
    "continue": Client("Continue, for VS Code, JetBrains and the terminal", settings=_continue,
                       path=lambda: Path.home() / ".continue" / "config.yaml"),
    "cline": Client("Cline, a terminal agent, and for VS Code", text=_cline,
                    note="In VS Code, choose OpenAI Compatible in Cline's settings, and enter the same there."),
    "qwen": Client("Qwen Code, a terminal agent", path=lambda: Path.home() / ".qwen" / "settings.json", settings=_qwen),
    "zed": Client("Zed, an editor", path=lambda: _config("zed", "settings.json"), settings=_zed,
                  note="Zed asks for the key in its Agent panel, or reads HOTSHOE_API_KEY."),
    "vscode": Client("VS Code's Copilot Chat, with Ollama's dialect", path=_vscode,
                     settings=lambda server: {"github.copilot.chat.byok.ollamaEndpoint": server.url},
                     note="Then choose Ollama under Manage Models."),
    "open-webui": Client("Open WebUI", text=_open_webui,
                         note="From a container the address is http://host.docker.internal:PORT; the server needs "
                         "--host 0.0.0.0 and --allow-host host.docker.internal then."),
    "home-assistant": Client("Home Assistant, with Ollama's dialect", text=lambda server: f"URL: {server.url}",
                             note="Settings, Devices & services, Add integration, Ollama. If Home Assistant is another "
                             "machine, start the server with --host 0.0.0.0 and use this machine's address."),
    "langchain": Client("LangChain's OpenAI classes", text=_python(
        "from langchain_openai import ChatOpenAI\n\n"
        "model = ChatOpenAI(base_url={openai}, api_key={key}, model={model})\n"
        'print(model.invoke("Hello").content)')),
    "openai": Client("OpenAI's Python package", text=_python(
        "from openai import OpenAI\n\n"
        "client = OpenAI(base_url={openai}, api_key={key})\n"
        'messages = [{{"role": "user", "content": "Hello"}}]\n'
        "answer = client.chat.completions.create(model={model}, messages=messages)\n"
        "print(answer.choices[0].message.content)")),
    "anthropic": Client("Anthropic's Python package", text=_python(
        "from anthropic import Anthropic\n\n"
        "client = Anthropic(base_url={url}, auth_token={key}, api_key=None)\n"
        'messages = [{{"role": "user", "content": "Hello"}}]\n'
        "answer = client.messages.create(model={model}, messages=messages, max_tokens=500)\n"
        'print("".join(block.text for block in answer.content if block.type == "text"))')),
    "ollama": Client("Ollama's Python package", text=_python(
        "from ollama import Client\n\n"
        'client = Client({url}, headers={{"authorization": "Bearer " + {key}}})\n'
        'messages = [{{"role": "user", "content": "Hello"}}]\n'
        "print(client.chat({model}, messages=messages).message.content)")),
    "curl": Client("curl, in a shell", text=_curl),
}  # fmt: skip
