"""hotshoe pull from a hub on loopback: what it brings, and a hub that lies, refuses or cuts the connection."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hotshoe as engine
from hotshoe.store import find
from hotshoe.store.files import choose, grouped, projector_of, quant_of
from hotshoe_core.errors import HotshoeError, ModelFileError, ModelNotFoundError
from tests.store.conftest import VERSE, FakeHub, hotshoe

NAME = "org/kjv-GGUF"
DATA = VERSE.read_bytes()


@pytest.fixture
def verse_hub(hub: FakeHub) -> FakeHub:
    hub.repositories[NAME] = {"kjv-3m-Q8_0.gguf": DATA, "README.md": b"#"}
    return hub


def files_of(home: Path) -> dict[str, tuple[int, int]]:
    """Each file of the cache with its size and time, except locks."""
    paths = [path for path in (home / "hf" / "hub").rglob("*") if path.is_file() and ".locks" not in path.parts]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def test_pull_list_run_rm(verse_hub: FakeHub, home: Path) -> None:
    done = hotshoe("pull", NAME, hub=verse_hub)
    assert (done.returncode, done.stdout) == (0, f"{NAME}:Q8_0\n"), done.stderr
    listed = hotshoe("list")
    assert f"{NAME}:Q8_0  3.6 MiB  llama" in " ".join(listed.stdout.split("\n"))
    ran = hotshoe("run", NAME, "In the beginning", "-n", "5", "--temperature", "0", "--device", "cpu")
    same = hotshoe("run", str(VERSE), "In the beginning", "-n", "5", "--temperature", "0", "--device", "cpu")
    assert (ran.returncode, ran.stdout) == (0, same.stdout), ran.stderr
    assert hotshoe("rm", NAME).returncode == 2, "nobody can confirm it"
    removed = hotshoe("rm", NAME, "--yes")
    assert removed.returncode == 0, removed.stderr
    assert files_of(home) == {}
    assert "no model yet" in hotshoe("list").stderr


@pytest.mark.parametrize("name", [f"{NAME}:q8_0", f"hf.co/{NAME}", f"{NAME}:kjv-3m-Q8_0.gguf", f"{NAME}:Q8_0"])
def test_one_model_has_several_names(verse_hub: FakeHub, name: str) -> None:
    hotshoe("pull", NAME, hub=verse_hub)
    assert find(name).name == f"{NAME}:Q8_0"
    n = len(verse_hub.requests)
    assert engine.load_tokenizer(name).encode("In") == engine.load_tokenizer(VERSE).encode("In")
    assert engine.plan_model(name, "cpu").architecture == "llama"
    with engine.load_model(name, "cpu", task="text") as model:
        assert model.n_ctx == 512
    assert len(verse_hub.requests) == n, "only pull may ask the hub"


def test_the_cache_is_that_of_huggingface_hub(verse_hub: FakeHub, home: Path) -> None:
    """Its own library finds the file without the network."""
    pytest.importorskip("huggingface_hub")
    hotshoe("pull", NAME, hub=verse_hub)
    program = f"from huggingface_hub import hf_hub_download; print(hf_hub_download({NAME!r}, 'kjv-3m-Q8_0.gguf'))"
    environ = os.environ | {"HF_HUB_OFFLINE": "1"}
    found = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).read_bytes() == DATA
    assert Path(found.stdout.strip()) == find(NAME).path


def test_the_default_quantization_is_said_and_the_others_listed(hub: FakeHub) -> None:
    files = {f"m-{quant}.gguf": DATA + quant.encode() for quant in ("Q2_K", "Q4_K_M", "Q8_0", "BF16")}
    hub.repositories[NAME] = files
    done = hotshoe("pull", NAME, hub=hub)
    assert done.stdout == f"{NAME}:Q4_K_M\n"
    assert "Q4_K_M was chosen; there are also BF16, Q2_K, Q8_0" in done.stderr
    wrong = hotshoe("pull", f"{NAME}:Q5_K_M", hub=hub)
    assert wrong.returncode == 2
    assert "has no 'Q5_K_M'; it has BF16, Q2_K, Q4_K_M, Q8_0" in wrong.stderr
    assert "did you mean 'Q4_K_M'?" in wrong.stderr


def test_a_split_model_and_its_projector(hub: FakeHub) -> None:
    names = ["Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf"]
    projectors = ["mmproj-F32.gguf", "mmproj-F16.gguf"]
    hub.repositories[NAME] = {name: DATA + name.encode() for name in (*names, *projectors, "m-Q8_0.gguf")}
    assert hotshoe("pull", NAME, hub=hub).returncode == 0
    model = find(NAME)
    assert [file.name for file in model.files] == [Path(name).name for name in names]
    assert model.projector is not None
    assert model.projector.name == "mmproj-F16.gguf"
    fetched = {path.partition("/resolve/")[2].partition("/")[2] for path, _ in hub.requests if "/resolve/" in path}
    assert fetched == {*names, "mmproj-F16.gguf"}
    os.unlink(model.files[1])
    with pytest.raises(ModelNotFoundError):
        find(NAME)


def test_the_projector_of_a_store_is_used_if_it_fits(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in another folder than the weights. One that does not fit is as little an error as in a folder."""
    from hotshoe import load_tower

    hub.repositories[NAME] = {"Q8_0/m-Q8_0.gguf": DATA, "mmproj-F16.gguf": b"GGUF"}
    assert hotshoe("pull", NAME, hub=hub).returncode == 0
    seen: list[Path] = []
    opened = load_tower._open
    monkeypatch.setattr(load_tower, "_open", lambda path: (seen.append(path), opened(path))[1])
    with engine.load_model(NAME, "cpu"):
        pass
    assert seen == [find(NAME).projector]


def test_an_interrupted_pull_goes_on(hub: FakeHub, home: Path) -> None:
    """The connection is cut after 12 MB; then the process itself is killed. huggingface_hub writes 10 MB at a time."""
    data = DATA + bytes(25_000_000)
    hub.repositories[NAME] = {"kjv-3m-Q8_0.gguf": data}
    hub.cut_after = 12_000_000
    command = [sys.executable, "-m", "hotshoe", "pull", NAME]
    environ = os.environ | {"HF_ENDPOINT": hub.url}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not any(given for _, given in hub.requests):  # it asked again, for the rest
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    with pytest.raises(ModelNotFoundError):
        find(NAME)
    [part] = list((home / "hf" / "hub").rglob("*.incomplete"))
    there = part.stat().st_size
    assert 0 < there < len(data)
    hub.cut_after, n = None, len(hub.requests)
    assert hotshoe("pull", NAME, hub=hub).returncode == 0
    assert [given for _, given in hub.requests[n:] if given] == [f"bytes={there}-"]
    assert find(NAME).path.read_bytes() == data
    assert not part.exists()


def test_a_hub_without_ranges(verse_hub: FakeHub) -> None:
    hub_folder = Path(os.environ["HF_HOME"]) / "hub" / f"models--{NAME.replace('/', '--')}" / "blobs"
    hub_folder.mkdir(parents=True)
    (hub_folder / f"{hashlib.sha256(DATA).hexdigest()}.hotshoe.incomplete").write_bytes(DATA[:5000])
    verse_hub.ranges = False
    assert hotshoe("pull", NAME, hub=verse_hub).returncode == 0
    assert find(NAME).path.read_bytes() == DATA


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"status": {"/api/": 401}, "headers": {"X-Error-Code": "RepoNotFound"}}, "status 401", "hf auth login"),
    ({"status": {"/api/": 401}}, "status 401", "hf auth login"),
    ({"status": {"/resolve/": 403}, "headers": {"X-Error-Code": "GatedRepo"}}, "it is gated", "accept the licence"),
    ({"status": {"/resolve/": 403}}, "status 403", "accept the licence"),
    ({"status": {"/api/": 404}, "headers": {"X-Error-Code": "RepoNotFound"}}, "status 404", "check the name"),
    ({"status": {"/resolve/": 404}}, "status 404", "check the name"),
    ({"status": {"/api/": 429}}, "status 429", "wait some minutes"),
    ({"status": {"/api/": 500}}, "status 500", "try again later"),
    ({"sends": {"kjv-3m-Q8_0.gguf": DATA[:-1] + b"x"}}, "was damaged on its way", "pull again"),
    ({"sends": {"kjv-3m-Q8_0.gguf": DATA[:-9]}}, "the connection failed", "the same command goes on"),
    ({"cut_after": 0}, "the connection failed", "the same command goes on"),
    ({"entry": {"rfilename": "../../../x.gguf"}}, "expected a file's name", "try again"),
    ({"entry": {"rfilename": "a\\..\\x.gguf"}}, "expected a file's name", "try again"),
    ({"entry": {"lfs": {"sha256": "../x", "size": 5, "pointerSize": 1}}}, "expected a file's name", "try again"),
    ({"commit": "../.."}, "its revision is", "try again"),
]


@pytest.mark.parametrize(("lie", "message", "hint"), WRONG)
def test_a_lying_hub_leaves_what_was_there(
    verse_hub: FakeHub, home: Path, lie: dict[str, Any], message: str, hint: str
) -> None:
    """An older revision of the same model is there, and stays the one that is loaded."""
    old = DATA + b"old"
    verse_hub.repositories[NAME] = {"kjv-3m-Q8_0.gguf": old}
    assert hotshoe("pull", NAME, hub=verse_hub).returncode == 0
    before = files_of(home)
    verse_hub.repositories[NAME], verse_hub.commit = {"kjv-3m-Q8_0.gguf": DATA}, "c" * 40
    for name, value in lie.items():
        setattr(verse_hub, name, value)
    done = hotshoe("pull", NAME, hub=verse_hub)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert message in done.stderr
    assert hint in done.stderr.partition("hint: ")[2]
    after = {path: state for path, state in files_of(home).items() if not path.endswith(".incomplete")}
    assert after == before
    assert find(NAME).path.read_bytes() == old
    assert not (home / "x.gguf").exists()


def test_a_hub_that_is_not_there_and_offline_mode() -> None:
    done = hotshoe("pull", NAME)
    assert (done.returncode, "the connection failed" in done.stderr) == (2, True), done.stderr
    done = hotshoe("pull", NAME, HF_HUB_OFFLINE="1")
    assert (done.returncode, "HF_HUB_OFFLINE is set" in done.stderr) == (2, True), done.stderr


def test_the_token_is_sent(verse_hub: FakeHub) -> None:
    hotshoe("pull", NAME, hub=verse_hub, HF_TOKEN="hf_secret")
    assert set(verse_hub.tokens) == {"Bearer hf_secret"}


LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
sys.argv = ["hotshoe", "pull", sys.argv[1]]
runpy.run_module("hotshoe", run_name="__main__")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the limit on the size of files is POSIX's")
def test_a_full_disk_leaves_what_was_there(verse_hub: FakeHub, home: Path) -> None:
    """A limit on the size of a file stands for the end of the disk."""
    environ = os.environ | {"HF_ENDPOINT": verse_hub.url}
    done = subprocess.run([sys.executable, "-c", LIMITED, NAME], env=environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(ModelNotFoundError):
        find(NAME)
    assert hotshoe("pull", NAME, hub=verse_hub).returncode == 0, "it goes on when there is space"


def test_too_little_space_is_said_before(verse_hub: FakeHub) -> None:
    verse_hub.entry = {"size": 1 << 60}
    done = hotshoe("pull", NAME, hub=verse_hub)
    assert done.returncode == 2
    assert "needs 1.0 EiB more" in done.stderr or "more in" in done.stderr
    assert not any("/resolve/" in path for path, _ in verse_hub.requests)


def test_a_damaged_file_is_never_loaded(verse_hub: FakeHub) -> None:
    """Also if it was damaged after it was pulled: its size or its time has changed then."""
    hotshoe("pull", NAME, hub=verse_hub)
    path = find(NAME).path
    with engine.load_model(NAME, "cpu"):
        pass
    with open(os.path.realpath(path), "r+b") as file:
        file.seek(len(DATA) - 1)
        file.write(bytes([DATA[-1] ^ 1]))
    with pytest.raises(ModelFileError, match="is damaged") as error:
        engine.load_model(NAME, "cpu")
    assert error.value.hint == f"download it again: hotshoe pull {NAME}:Q8_0"


def test_pull_of_what_another_program_brought_is_not_deleted(verse_hub: FakeHub, home: Path) -> None:
    hotshoe("pull", NAME, hub=verse_hub)
    for record in (home / "data" / "pulled").iterdir():
        record.unlink()  # as if another program had filled the cache
    refused = hotshoe("rm", NAME, "--yes")
    assert refused.returncode == 2
    assert f"hf cache rm model/{NAME}" in refused.stderr
    hotshoe("pull", NAME, hub=verse_hub)
    refused = hotshoe("rm", NAME, "--yes")
    assert (refused.returncode, "deleted" in refused.stderr) == (2, False), "pull brought nothing"
    assert find(NAME).path.read_bytes() == DATA


def test_a_shared_projector_stays_while_it_is_needed(hub: FakeHub, home: Path) -> None:
    hub.repositories[NAME] = {name: DATA + name.encode() for name in ("m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf")}
    for quant in ("Q4_0", "Q8_0"):
        hotshoe("pull", f"{NAME}:{quant}", hub=hub)
    assert hotshoe("rm", f"{NAME}:Q4_0", "--yes").returncode == 0
    left = find(NAME)
    assert left.name == f"{NAME}:Q8_0"
    assert left.projector is not None
    assert left.projector.is_file()
    assert hotshoe("rm", NAME, "--yes").returncode == 0
    assert files_of(home) == {}


def test_rm_of_a_model_whose_label_is_another_one_here(hub: FakeHub, home: Path) -> None:
    """The repository has two models of 4 bits, so that they have whole names there; here one is enough to say Q4_0."""
    hub.repositories[NAME] = {name: DATA + name.encode() for name in ("a-Q4_0.gguf", "b-Q4_0.gguf")}
    done = hotshoe("pull", f"{NAME}:a-Q4_0", hub=hub)
    assert done.stdout == f"{NAME}:Q4_0\n"
    assert hotshoe("rm", f"{NAME}:Q4_0", "--yes").returncode == 0
    assert files_of(home) == {}


def test_rm_deletes_older_revisions_too(verse_hub: FakeHub, home: Path) -> None:
    hotshoe("pull", NAME, hub=verse_hub)
    verse_hub.repositories[NAME], verse_hub.commit = {"kjv-3m-Q8_0.gguf": DATA + b"new"}, "c" * 40
    hotshoe("pull", NAME, hub=verse_hub)
    assert find(NAME).path.read_bytes() == DATA + b"new"
    assert hotshoe("rm", NAME, "--yes").returncode == 0
    assert files_of(home) == {}
    assert not [path for path in (home / "data").rglob("*") if path.is_file()], "nothing is remembered of it"


def test_rm_where_links_are_hard_links(verse_hub: FakeHub, home: Path) -> None:
    hotshoe("pull", NAME, hub=verse_hub)
    pointer = find(NAME).path
    blob = Path(os.path.realpath(pointer))
    pointer.unlink()
    os.link(blob, pointer)
    assert hotshoe("rm", NAME, "--yes").returncode == 0
    assert files_of(home) == {}


def test_the_whole_size_is_known_from_the_start(hub: FakeHub) -> None:
    """A fraction of the files so far would go back when the next file begins."""
    names = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]
    hub.repositories[NAME] = {name: DATA + name.encode() for name in names}
    program = f"from hotshoe.store.download import pull\npull({NAME!r}, progress=lambda file, n: print(file.name, n))"
    environ = os.environ | {"HF_ENDPOINT": hub.url}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:2] == [f"{name} 0" for name in names]


@pytest.mark.parametrize(
    "name", ["kjv", "a/b/c", "../x/y", "http://127.0.0.1/x", "org/model.gguf", "file:///etc/passwd"]
)
def test_what_is_not_the_name_of_a_repository(hub: FakeHub, name: str) -> None:
    done = hotshoe("pull", name, hub=hub)
    assert (done.returncode, "expected ORG/REPO" in done.stderr) == (2, True), done.stderr
    assert hub.requests == []


def test_without_huggingface_hub_the_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotshoe.store.download import pull
    from hotshoe_core.errors import MissingPackageError

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError) as error:
        pull(NAME)
    assert "pip install" in str(error.value.hint)
    assert "[hub]" in str(error.value.hint)


QUANTS = {
    "Qwen3-0.6B-Q8_0.gguf": "Q8_0",
    "qwen2.5-0.5b-instruct-q4_k_m.gguf": "Q4_K_M",
    "gemma-3-4b-it-UD-Q4_K_XL.gguf": "UD-Q4_K_XL",
    "SmolLM2-135M-Instruct.Q4_1.gguf": "Q4_1",
    "gpt-oss-20b-mxfp4.gguf": "MXFP4",
    "Model.IQ3_XXS.gguf": "IQ3_XXS",
    "Qwen3-Next-80B-A3B-BF16-00001-of-00004.gguf": "BF16",
    "llama-2-7b.gguf": "",
    "Q4-ish/model.gguf": "",
}


@pytest.mark.parametrize(("name", "quant"), QUANTS.items())
def test_the_quantization_in_a_name(name: str, quant: str) -> None:
    assert quant_of(name) == quant


def test_models_of_a_repository() -> None:
    names = [
        "a-Q4_0.gguf",
        "b-Q4_0.gguf",
        "c-Q8_0-00001-of-00002.gguf",
        "mmproj.gguf",
        "d-F16-00002-of-00002.gguf",
        "x.bin",
    ]
    groups = grouped(names)
    assert set(groups) == {"a-Q4_0", "b-Q4_0"}, "a split model of which a part is missing is not a model"
    with pytest.raises(HotshoeError, match="2 models that 'Q4_0' can mean"):
        choose(groups, "Q4_0", "x")
    assert choose(groups, "B-Q4_0.gguf", "x") == "b-Q4_0"
    assert projector_of(names) == "mmproj.gguf"
