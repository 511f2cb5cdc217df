"""The page's files and the endpoints that it needs. tests/serve/test_browser.py opens it in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

from tests.serve.conftest import VERSE, Server

PAGE = Path(str(files("hotshoe.serve"))) / "page"
HTML = {"accept": "text/html,application/xhtml+xml"}


def test_vendored_files_are_those_of_the_manifest() -> None:
    vendor = PAGE / "vendor"
    listed = {"manifest.json"}
    for package in json.loads((vendor / "manifest.json").read_text()):
        assert set(package) == {"package", "version", "licence", "files"}
        assert any(name.endswith("LICENSE") for name in package["files"])
        for name, file in package["files"].items():
            assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == file["sha256"], name
            listed.add(name)
    assert listed == {path.name for path in vendor.iterdir()}
    [marked] = re.findall(r"marked v([\d.]+)", (vendor / "marked.js").read_text())
    [purify] = set(re.findall(r"DOMPurify ([\d.]+)", (vendor / "dompurify.js").read_text()))
    versions = {p["package"]: p["version"] for p in json.loads((vendor / "manifest.json").read_text())}
    assert (versions["marked"], versions["dompurify"]) == (marked, purify)


def test_the_page_names_no_address_outside() -> None:
    for path in [*PAGE.glob("*.js"), *PAGE.glob("*.css"), *PAGE.glob("*.html")]:
        addresses = re.findall(r"https?://[^\s\"'`)]+", path.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path.name


def test_the_page_works_without_https() -> None:
    """Browsers have these only for https and localhost, and --host serves other machines by http."""
    for path in PAGE.glob("*.js"):
        assert "crypto.randomUUID" not in path.read_text(encoding="utf-8"), path.name


def test_a_browser_gets_the_page_and_others_get_json(server: Server) -> None:
    assert server.get("/").json()["hotshoe"] == "running"
    page = server.get("/", headers=HTML)
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; script-src 'self' 'sha256-")
    assert "unsafe" not in policy
    [text] = re.findall(r'<script type="importmap">(.*?)</script>', page.text, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    linked = {*json.loads(text)["imports"].values(), *re.findall(r'(?:src|href)="(page/[^"]+)"', page.text)}
    for name in linked:
        found = server.get("/" + name.removeprefix("./"))
        assert found.status_code == 200, name
        assert found.headers["x-content-type-options"] == "nosniff"
        again = server.get("/" + name.removeprefix("./"), headers={"if-none-match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert server.get("/page/../app.py").status_code == 404
    assert server.get("/", headers=HTML | {"host": "evil.example"}).status_code == 403


def test_the_status_tells_what_the_server_does(server: Server) -> None:
    server.post("/v1/completions", {"model": "verse", "prompt": "And", "max_tokens": 4})
    found = server.get("/api/status").json()
    [verse] = [model for model in found["models"] if model["name"] == "verse"]
    assert (verse["state"], verse["task"], verse["capabilities"]) == ("loaded", "text", ["completion"])
    assert (verse["requests"], verse["waiting"]) == (0, 0)
    assert verse["written"] >= 4
    assert verse["recent"][-1]["predicted_n"] == 4
    assert verse["recent"][-1]["device"] == verse["device"] == "cpu"
    [device] = verse["memory"]["devices"]
    assert device["device"] == "cpu"
    assert device["total"] == device["weights"] + device["cache"] + device["graph"] > 0
    assert [part["layer"] for part in device["layers"]] == list(range(-1, len(device["layers"]) - 1))
    devices = server.get("/api/devices").json()
    assert "cpu" in [d["name"] for d in devices["devices"]]
    assert devices["why"]


def test_a_model_is_unloaded_and_loaded(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    server = Server(f"verse={VERSE}", "--device", "cpu", "--threads", "1", "--api-keys", str(keys))
    allowed = {"authorization": "Bearer secret"}
    try:
        assert server.get("/", headers=HTML).status_code == 200  # the page asks for the key
        assert server.get("/page/app.js").status_code == 200
        assert server.get("/api/status").status_code == 401

        def state() -> str:
            [model] = server.get("/api/status", headers=allowed).json()["models"]
            return str(model["state"])

        for keep_alive, reason, after in ((0, "unload", "not loaded"), ("5m", "load", "loaded")):
            body = {"model": "verse", "keep_alive": keep_alive}
            done = server.post("/api/generate", body, headers=allowed)
            assert (done.status_code, done.json()["done_reason"], state()) == (200, reason, after)
        assert "x-hotshoe-ignored" not in done.headers
    finally:
        assert server.stop() == 0
