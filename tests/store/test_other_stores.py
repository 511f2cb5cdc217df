"""Models of Ollama's store and of LM Studio's folder, read in place; created names; names that mean nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hotshoe as engine
from hotshoe.loading import task_of
from hotshoe.store import all_models, find, records
from hotshoe_core.errors import ModelFileError, ModelNotFoundError
from tests.store.conftest import VERSE, hotshoe

DATA = VERSE.read_bytes()
DIGEST = hashlib.sha256(DATA).hexdigest()


def add_to_ollama(store: Path, place: str, layers: list[tuple[str, str]]) -> Path:
    """A model of a store; ``place`` is registry/namespace/model/tag."""
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    if not (blob := store / "blobs" / f"sha256-{DIGEST}").exists():
        shutil.copy(VERSE, blob)
    manifest = store / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 1} for kind, digest in layers
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": entries}))
    return manifest


MODEL = ("model", f"sha256:{DIGEST}")


@pytest.fixture
def ollama(home: Path) -> Path:
    store = home / ".ollama" / "models"
    add_to_ollama(store, "registry.ollama.ai/library/verse/latest", [MODEL, ("template", f"sha256:{'0' * 64}")])
    return store


@pytest.mark.parametrize("name", ["ollama:verse", "ollama:verse:latest", "ollama:Verse"])
def test_a_model_of_ollama(ollama: Path, name: str) -> None:
    model = find(name)
    assert (model.name, model.source) == ("ollama:verse:latest", "ollama")
    assert model.path == ollama / "blobs" / f"sha256-{DIGEST}", "it is not copied"
    assert task_of(name).value == "text"
    with engine.load_model(name, "cpu") as loaded:
        assert loaded.metadata.architecture == "llama"


def test_names_of_ollama(ollama: Path) -> None:
    for place in ("registry.ollama.ai/me/mine/7b", "hf.co/org/repo-GGUF/Q4_K_M", "registry.ollama.ai/library/verse/2"):
        add_to_ollama(ollama, place, [MODEL])
    names = {model.name for model in all_models()}
    assert names == {
        f"ollama:{name}" for name in ("me/mine:7b", "hf.co/org/repo-GGUF:Q4_K_M", "verse:2", "verse:latest")
    }
    for name in names:
        assert find(name).name == name


def test_another_folder_of_ollama(ollama: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = home / "elsewhere"
    shutil.move(ollama, moved)
    with pytest.raises(ModelNotFoundError) as error:
        find("ollama:verse")
    assert "OLLAMA_MODELS" in str(error.value.hint)
    monkeypatch.setenv("OLLAMA_MODELS", str(moved))
    assert find("ollama:verse").path.is_relative_to(moved)


WRONG: list[tuple[list[tuple[str, str]], str]] = [
    ([("model", f"sha256:{'1' * 64}")], "is missing"),
    ([("model", "sha256:../../x")], "is missing"),
    ([MODEL, ("adapter", f"sha256:{DIGEST}")], "has an adapter"),
    ([("tensor", f"sha256:{DIGEST}")], "has no GGUF file; its layers are tensor"),
]


@pytest.mark.parametrize(("layers", "message"), WRONG)
def test_a_model_of_ollama_that_cannot_be_read(ollama: Path, layers: list[tuple[str, str]], message: str) -> None:
    add_to_ollama(ollama, "registry.ollama.ai/library/odd/latest", layers)
    with pytest.raises(ModelFileError, match=message):
        find("ollama:odd")
    assert [model.name for model in all_models()] == ["ollama:verse:latest"], "it does not hide the others"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"layers": 5}', '{"layers": [{}]}', "[" * 100_000])
def test_a_manifest_that_is_not_one(ollama: Path, text: str) -> None:
    add_to_ollama(ollama, "registry.ollama.ai/library/odd/latest", []).write_text(text)
    with pytest.raises(ModelFileError):
        find("ollama:odd")
    assert len(list(all_models())) == 1


def test_a_damaged_blob_is_not_loaded(ollama: Path) -> None:
    blob = find("ollama:verse").path
    blob.write_bytes(DATA[:-1] + b"x")
    with pytest.raises(ModelFileError, match="is damaged") as error:
        engine.load_model("ollama:verse", "cpu")
    assert error.value.hint == "download it again: ollama pull verse:latest"


def test_a_file_is_compared_with_its_hash_once(ollama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotshoe.store import verify

    read: list[Path] = []

    def hash_of(file: Path, like: str) -> str:
        read.append(file)
        return like

    monkeypatch.setattr(verify, "hash_of", hash_of)
    for _ in range(3):
        with engine.load_model("ollama:verse", "cpu"):
            pass
    assert len(read) == 1
    os.utime(find("ollama:verse").path, (1, 1))
    with engine.load_model("ollama:verse", "cpu"):
        pass
    assert len(read) == 2


def add_to_lm_studio(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(VERSE, path)


@pytest.mark.parametrize("where", ["default", "old", "pointer", "settings"])
def test_the_folder_of_lm_studio(home: Path, where: str) -> None:
    root = {"default": home / ".lmstudio/models", "old": home / ".cache/lm-studio/models"}.get(where, home / "x/models")
    add_to_lm_studio(
        root, "org/repo-GGUF/m-Q4_K_M.gguf", "org/repo-GGUF/m-Q8_0.gguf", "org/repo-GGUF/mmproj-m-F16.gguf"
    )
    if where == "pointer":
        (home / ".lmstudio-home-pointer").write_text(f"{home / 'x'}\n")
    if where == "settings":
        (home / ".lmstudio").mkdir()
        (home / ".lmstudio/settings.json").write_text(json.dumps({"downloadsFolder": str(root)}))
    model = find("lmstudio:org/repo-gguf:q8_0")
    assert (model.name, model.path) == ("lmstudio:org/repo-GGUF:Q8_0", root / "org/repo-GGUF/m-Q8_0.gguf")
    assert model.projector == root / "org/repo-GGUF/mmproj-m-F16.gguf"
    assert find("lmstudio:org/repo-GGUF").name == "lmstudio:org/repo-GGUF:Q4_K_M"
    assert len(list(all_models())) == 2


@pytest.mark.parametrize("name", ["ollama:verse", "lmstudio:org/repo"])
def test_rm_never_deletes_files_of_others(ollama: Path, home: Path, name: str) -> None:
    add_to_lm_studio(home / ".lmstudio/models", "org/repo/m.gguf")
    done = hotshoe("rm", name, "--yes")
    assert done.returncode == 2
    assert "hotshoe deletes only what it brought" in done.stderr
    assert ("ollama rm verse:latest" if name == "ollama:verse" else "delete it in LM Studio") in done.stderr
    assert len(list(all_models())) == 2


def test_list_is_newest_first_and_says_what_cannot_be_read(ollama: Path, home: Path) -> None:
    add_to_lm_studio(home / ".lmstudio/models", "org/repo/m-Q8_0.gguf", "org/bad/x.gguf")
    bad = home / ".lmstudio/models/org/bad/x.gguf"
    bad.write_bytes(b"GGUF")
    os.utime(bad, (1, 1))
    os.utime(home / ".lmstudio/models/org/repo/m-Q8_0.gguf", (2**31, 2**31))
    found = json.loads(hotshoe("list", "--json").stdout)["models"]
    names = ["lmstudio:org/repo:Q8_0", "ollama:verse:latest", "lmstudio:org/bad:x"]
    assert [row["name"] for row in found] == names
    assert [row["architecture"] for row in found] == ["llama", "llama", ""]
    assert "x.gguf" in found[2]["error"]
    lines = hotshoe("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *names]
    assert "Ollama" in lines[2]


def test_a_file_that_cannot_be_looked_at_does_not_hide_the_others(ollama: Path, home: Path) -> None:
    """As one of another user. The system refuses to look at a name that is too long for everyone."""
    folders = (home / ".lmstudio/models/org/bad", home / "hf/hub/models--org--bad/snapshots/x")
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "x.gguf").symlink_to("x" * 300)
    assert [model.name for model in all_models()] == ["ollama:verse:latest"]


def test_rm_deletes_nothing_if_it_may_not_delete_all(ollama: Path) -> None:
    records.remember("created", "short", {"from": "ollama:verse:latest"})
    assert hotshoe("rm", "short", "ollama:verse", "--yes").returncode == 2
    assert find("short").name == "short"


def test_created_names(ollama: Path, home: Path) -> None:
    records.remember("created", "short", {"from": "ollama:verse:latest"})
    records.remember("created", "gone", {"from": "ollama:other"})
    records.remember("created", "loop", {"from": "loop"})
    assert find("short").path == find("ollama:verse").path
    assert find("short:latest").name == "short"
    for name in ("gone", "loop"):
        with pytest.raises(ModelNotFoundError):
            find(name)
    assert {model.name for model in all_models()} == {"short", "ollama:verse:latest"}
    assert hotshoe("rm", "short", "--yes").returncode == 0
    assert [model.name for model in all_models()] == ["ollama:verse:latest"]


UNKNOWN: list[tuple[Any, str]] = [
    ("org/repo", "hotshoe pull org/repo downloads it"),
    ("ollama:vers", "did you mean 'verse:latest'?"),
    ("ollama:verse:lates", "did you mean 'verse:latest'?"),
    ("lmstudio:a/b", "LM Studio's settings"),
]


@pytest.mark.parametrize(("name", "hint"), UNKNOWN)
def test_an_unknown_name(ollama: Path, name: str, hint: str) -> None:
    with pytest.raises(ModelNotFoundError) as error:
        engine.plan_model(name)
    assert hint in str(error.value.hint)


@pytest.mark.parametrize(
    "path", ["models/x.gguf", "./org/repo", "/org/repo", "org/repo/x", "x.GGUF", "x", "..", Path("org/repo")]
)
def test_a_path_is_never_taken_for_a_name(path: Any) -> None:
    with pytest.raises(ModelFileError, match=r"does not exist|is a folder"):
        engine.plan_model(path)


def test_a_file_comes_before_a_name(ollama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    shutil.copy(VERSE, tmp_path / "org" / "repo")
    assert task_of("org/repo").value == "text"


COMMANDS = [
    ("run", "ollama:verse", "In", "-n", "2", "--device", "cpu"),
    ("plan", "ollama:verse", "--device", "cpu"),
    ("inspect", "ollama:verse", "--metadata"),
    ("bench", "ollama:verse", "--device", "cpu", "--help"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_names(ollama: Path, command: tuple[str, ...]) -> None:
    done = hotshoe(*command)
    assert done.returncode == 0, done.stderr
