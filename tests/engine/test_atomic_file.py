"""Files that are written: complete and on the disk before they have their name, or not there at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
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


_KINDS = ("device", "pipe", "socket")


def special_file(path: Path, kind: str) -> Path:
    """A device node (a null device of our own), a named pipe, or a socket."""
    if kind == "pipe":
        os.mkfifo(path)
    else:
        mode = stat.S_IFCHR if kind == "device" else stat.S_IFSOCK
        try:
            os.mknod(path, mode | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes device nodes")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="makes Linux's device nodes")
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("linked", [False, True])
def test_devices_pipes_and_sockets_are_never_replaced(tmp_path: Path, kind: str, linked: bool) -> None:
    target = special = special_file(tmp_path / "special", kind)
    if linked:
        target = tmp_path / "link"
        target.symlink_to(special)
    before = os.lstat(special)
    for overwrite in (False, True):
        with pytest.raises(ConversionError, match="is a device, pipe or socket; expected the name of a file"):
            check_target(target, overwrite)
    with pytest.raises(ConversionError, match="is a device, pipe or socket"), atomic_write(target) as part:
        part.write_bytes(b"new")
    assert os.lstat(special) == before
    assert len(list(tmp_path.iterdir())) == 1 + linked


@pytest.mark.skipif(os.name != "posix", reason="links need a permission on Windows")
def test_a_file_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "model.gguf", tmp_path / "link.gguf"
    link.symlink_to(real)
    for content in (b"first", b"second"):  # the link dangles first
        assert check_target(link, overwrite=real.exists()) == link
        with atomic_write(link) as part:
            assert part.parent == real.parent
            part.write_bytes(content)
        assert link.is_symlink()
        assert real.read_bytes() == content
    with pytest.raises(ConversionError, match="exists already"):
        check_target(link, overwrite=False)


@pytest.mark.skipif(os.name != "posix", reason="links need a permission on Windows")
def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to(tmp_path / "missing" / "model.gguf")
    with pytest.raises(ConversionError, match=r"the folder .*missing does not exist"):
        check_target(tmp_path / "away", overwrite=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConversionError, match="is a link to itself"):
        check_target(tmp_path / "loop", overwrite=True)
    with pytest.raises(ConversionError, match="is a link to itself"), atomic_write(tmp_path / "loop"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_symlink()) == ["away", "loop"]


_WRITER = """
import signal, sys, time
from pathlib import Path
from hotshoe.atomic_file import atomic_write
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
with atomic_write(Path(sys.argv[1])) as part, open(part, "wb") as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(600)
"""


def start_writer(target: Path) -> subprocess.Popen[str]:
    """Another process that is in the middle of writing ``target``."""
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(target)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    return child


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_process_that_is_ended_removes_its_file(tmp_path: Path, number: str) -> None:
    child = start_writer(tmp_path / "model.gguf")
    assert len(list(tmp_path.iterdir())) == 1
    child.send_signal(getattr(signal, number))
    child.communicate(timeout=60)
    assert child.returncode == -getattr(signal, number)  # its parent still sees what ended it
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "model[1].gguf"
    killed, living = start_writer(target), start_writer(target)
    try:
        killed.kill()
        killed.communicate(timeout=60)
        other = tmp_path / ".model[1].gguf.mine.part"
        other.write_bytes(b"not ours")
        assert len(list(tmp_path.iterdir())) == 3
        with atomic_write(target) as part:
            part.write_bytes(b"whole")
        left = set(tmp_path.iterdir()) - {target, other}
        assert len(left) == 1  # of the process that still writes
        assert target.read_bytes() == b"whole"
    finally:
        living.terminate()
        living.communicate(timeout=60)
    assert set(tmp_path.iterdir()) == {target, other}


def test_signals_that_the_program_handles_stay_with_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with atomic_write(tmp_path / "model.gguf") as part:
            part.write_bytes(b"whole")
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", "~nobody-of-this-name/x", 5, b"x", None])
def test_names_that_no_file_can_have(name: object) -> None:
    with pytest.raises(
        ConversionError, match=r"the file to write is .*(, which cannot be the name of a file: |; expected a str or)"
    ):
        check_target(name, overwrite=True)  # type: ignore[arg-type]
