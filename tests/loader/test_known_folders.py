"""The folders where other software installs ggml backends; folders to which every user can write are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotshoe_loader.ggml.known_folders import known_folders


def put(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def homes(root: Path, platform: str = "linux", machine: str = "x86_64", **environ: str) -> dict[str, str]:
    found = known_folders(root, platform, machine, environ)
    return {str(path.relative_to(root)): origin for path, origin in found}


@pytest.mark.parametrize(
    ("platform", "machine", "file", "origin"),
    [
        ("linux", "x86_64", "usr/lib/x86_64-linux-gnu/ggml/backends0/libggml-vulkan.so", "Debian"),
        ("linux", "aarch64", "usr/lib/aarch64-linux-gnu/ggml/backends0/libggml-vulkan.so", "Debian"),
        ("linux", "x86_64", "usr/libexec/x86_64-linux-gnu/ggml/libggml-cpu-haswell.so", "the system's"),
        ("linux", "x86_64", "usr/lib/ggml/backends/libggml-hip.so", "the system's"),
        ("linux", "x86_64", "usr/lib64/ggml/libggml-vulkan.so", "the system's"),
        ("linux", "x86_64", "home/linuxbrew/.linuxbrew/opt/ggml/libexec/libggml-cpu-zen4.so", "Homebrew"),
        ("linux", "x86_64", "usr/local/lib/ollama/libggml-cpu-haswell.so", "Ollama"),
        ("linux", "x86_64", "usr/lib/ollama/cuda_v13/libggml-cuda.so", "Ollama (cuda_v13)"),
        ("darwin", "arm64", "opt/homebrew/opt/ggml/libexec/libggml-metal.so", "Homebrew"),
        ("darwin", "x86_64", "usr/local/opt/ggml/lib/libggml-cpu.dylib", "Homebrew"),
        ("darwin", "arm64", "Applications/Ollama.app/Contents/Resources/libggml-cpu-haswell.so", "Ollama"),
    ],
)
def test_a_known_folder_is_found(tmp_path, platform, machine, file, origin):
    put(tmp_path, file)
    ((folder, words),) = homes(tmp_path, platform, machine).items()
    assert folder == str(Path(file).parent)
    assert words.startswith(origin) or origin in words


def test_homebrew_says_where_it_is(tmp_path):
    put(tmp_path, "srv/brew/opt/ggml/libexec/libggml-cpu.so")
    assert homes(tmp_path, HOMEBREW_PREFIX="/srv/brew") == {"srv/brew/opt/ggml/libexec": "Homebrew's ggml"}
    assert homes(tmp_path, HOMEBREW_PREFIX="srv/brew") == {}, "a relative folder depends on the current one"


def test_windows(tmp_path):
    put(
        tmp_path, "Programs/Ollama/lib/ollama/ggml-cpu-haswell.dll", "Programs/Ollama/lib/ollama/vulkan/ggml-vulkan.dll"
    )
    found = homes(tmp_path, "win32", "AMD64", LOCALAPPDATA=str(tmp_path))
    assert list(found.values()) == ["Ollama", "Ollama (vulkan)"]


def test_all_of_ollama(tmp_path):
    lib = "usr/local/lib/ollama"
    put(tmp_path, f"{lib}/libggml-base.so.0", f"{lib}/libggml-cpu-x64.so")
    put(tmp_path, f"{lib}/vulkan/libggml-vulkan.so", f"{lib}/mlx_cuda_v13/libmlx.so")
    assert list(homes(tmp_path)) == [lib, f"{lib}/vulkan"]


def test_a_link_to_a_known_folder_counts_once(tmp_path):
    put(tmp_path, "usr/lib/ollama/libggml-cpu.so")
    (tmp_path / "usr/local/lib").mkdir(parents=True)
    (tmp_path / "usr/local/lib/ollama").symlink_to(tmp_path / "usr/lib/ollama")
    assert len(homes(tmp_path)) == 1


def test_a_folder_that_all_users_can_write_to_is_left_out(tmp_path):
    put(tmp_path, "usr/lib/ollama/libggml-cpu.so")
    (tmp_path / "usr/lib/ollama").chmod(0o777)
    assert homes(tmp_path) == {}


def test_a_folder_without_backends_is_left_out(tmp_path):
    put(tmp_path, "usr/lib/ollama/libggml-base.so.0", "usr/lib64/ggml/README", "usr/lib/ggml")
    assert homes(tmp_path) == {}


def test_the_folders_of_this_machine():
    for folder, origin in known_folders():
        assert folder.is_dir()
        assert origin
