"""Files that are written: complete and on the disk before they have their name, or not there at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hotshoe.atomic_file import atomic_write, check_target
from hotshoe_core.errors import ConversionError


def test_the_file_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        calls.append("flush the folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "flush the file")
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"whole"
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    target = tmp_path / "model.gguf"
    with atomic_write(target) as part:
        part.write_bytes(b"whole")
    assert calls == ["flush the file", "rename", "flush the folder"][: 3 if os.name == "posix" else 2]
    assert target.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_disk_that_does_not_take_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConversionError, match=r"cannot write .*: No space left on device"):
        with atomic_write(target) as part:
            part.write_bytes(b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(os.name != "posix", reason="only POSIX flushes folders")
def test_a_file_system_that_flushes_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    with atomic_write(tmp_path / "model.gguf") as part:
        part.write_bytes(b"whole")
    assert (tmp_path / "model.gguf").read_bytes() == b"whole"


def test_an_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_write(tmp_path / "model.gguf") as part:
            part.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_targets_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old.gguf").write_bytes(b"")
    for target, message in (
        (tmp_path, "is a folder; expected the name of the file"),
        (tmp_path / "missing" / "model.gguf", "missing does not exist"),
        (tmp_path / "old.gguf", "exists already"),
    ):
        with pytest.raises(ConversionError, match=message):
            check_target(target, overwrite=False)
    assert check_target(tmp_path / "old.gguf", overwrite=True) == tmp_path / "old.gguf"
