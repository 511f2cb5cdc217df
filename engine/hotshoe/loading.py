"""From a file to a model that runs: open, choose a device, bind the weights."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from hotshoe.models import find
from hotshoe.nn import bind
from hotshoe.tokenizers import load_tokenizer as _tokenizer_of
from hotshoe_core import BackendParams, DType
from hotshoe_core.errors import HotshoeError, InputTooLongError, ModelFileError, UnknownArchitectureError
from hotshoe_core.gguf import GGUFFile
from hotshoe_loader import load_all

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.text import TextModel
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core.backend import Progress

__all__ = ["load_all", "load_model", "load_tokenizer"]

_DEFAULT_CONTEXT = 4096

T = TypeVar("T")


def load_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    n_threads: int | None = None,
    n_ctx: int | None = None,
    progress: Progress | None = None,
    kv_dtype: str | None = None,
    n_sequences: int | None = None,
    flash_attention: Literal["auto", "on", "off"] = "auto",
) -> EmbeddingModel | TextModel:
    """A model from a GGUF file, on a device, ready to use. Close it, or use it as a context manager.

    device: a name or type from ``load_all().devices`` ("cpu", "cuda:0", "gpu"); None for the best. A device
    asked for by name is used or the call fails: it is never replaced.
    n_threads: CPU threads; None for the number of physical cores.
    n_ctx: tokens a text may have; None for what the model was trained for, at most 4096 for a text model,
    whose cache takes memory for each of them.
    progress: called with the fraction loaded, 0 to 1; an exception it raises cancels the load.
    kv_dtype: element type of a text model's key/value cache: f16 (the default), f32, q8_0 or q4_0.
    n_sequences: for how many texts of ``n_ctx`` tokens a text model's cache has room at once, 1 by default; more texts
    than that are generated together as long as they are shorter, and wait for each other when they are not.
    flash_attention: "auto" for the quickest attention; "on" for the engine's own fused kernel, which computes as
    llama.cpp does; "off" for none.

    Raises ModelFileError, UnknownArchitectureError, WeightsError, TokenizerError, DeviceNotFoundError or
    InsufficientMemoryError; nothing stays loaded then.
    """
    file = _open(path)
    tokenizer: _Meanwhile[Tokenizer] | None = None
    try:
        try:
            architecture = find(file.architecture)
        except UnknownArchitectureError as e:
            raise UnknownArchitectureError(f"{file.path}: {e.message}", hint=e.hint) from None
        config = architecture.Config.from_metadata(file.metadata)
        config = dataclasses.replace(config, n_ctx=_context(file, architecture, config.n_ctx, n_ctx))
        for name, value in (("kv_dtype", kv_dtype), ("n_sequences", n_sequences)):
            if architecture.many_rows and value is not None:
                raise HotshoeError(f"{file.path}: {name} is {value!r}, but an encoder has no key/value cache")
        if n_sequences is not None and n_sequences < 1:
            raise HotshoeError(f"n_sequences is {n_sequences}; expected 1 or more")
        cached = DType.parse(kv_dtype or "f16")
        registry = load_all()
        backend = registry.open(device, BackendParams(n_threads=n_threads, flash_attention=flash_attention))
        try:
            # Not earlier: it would take Python's lock from the imports of the plugin, 5 ms at a time.
            tokenizer = _Meanwhile(lambda: _tokenizer_of(file.metadata))
            model = architecture(config)
            bind(model, file, backend, ignore=model.unused_tensors, progress=progress)
            why = registry.why(device)
            if architecture.many_rows:
                from hotshoe.runner.embedder import EmbeddingModel

                return EmbeddingModel(model, tokenizer.result(), backend, file, n_ctx=config.n_ctx, why=why)
            from hotshoe.runner.text import TextModel

            return TextModel(
                model,
                tokenizer.result(),
                backend,
                file,
                n_ctx=config.n_ctx,
                why=why,
                kv_dtype=cached,
                n_sequences=n_sequences or 1,
            )
        except BaseException:
            backend.close()
            raise
    except BaseException:
        if tokenizer is not None:
            tokenizer.wait()  # it reads the file
        file.close()
        raise


class _Meanwhile(Generic[T]):
    """A result that another thread works out. A large vocabulary takes as long as copying the weights."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> T:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]


def _context(file: GGUFFile, architecture: type[Module], trained: int, wanted: int | None) -> int:
    if wanted is None:
        return trained if architecture.many_rows else min(trained, _DEFAULT_CONTEXT)
    if not 1 <= wanted <= trained:
        raise InputTooLongError(f"n_ctx is {wanted}; {file.path} was trained for 1 to {trained} tokens")
    return wanted


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file, which may hold nothing else. Raises ModelFileError or TokenizerError."""
    with _open(path) as file:
        return _tokenizer_of(file.metadata)


def _open(path: str | os.PathLike[str]) -> GGUFFile:
    if Path(path).is_dir():
        raise ModelFileError(
            "is a folder; expected a GGUF file",
            path=path,
            hint=f"convert a Hugging Face folder first: hotshoe convert {os.fspath(path)}"
            if (Path(path) / "config.json").is_file()
            else "name the .gguf file in it (a Hugging Face folder would hold a config.json)",
        )
    return GGUFFile(path)
