"""From a file to a model that runs: open, choose a device, bind the weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy  # noqa: F401 - here, not under six imports more: where CPython's stack crosses a page, each call maps one

from hotshoe.families import find_model
from hotshoe.nn.binder import bind, check_layers
from hotshoe.placement import PlacementParams
from hotshoe.runner.base import ModelParts
from hotshoe.runner.params import RunnerParams
from hotshoe.tasks import Task
from hotshoe.tokenizers import load_tokenizer as _tokenizer_of
from hotshoe_core import BackendParams, DeviceType, Placement
from hotshoe_core.errors import (
    InputTooLongError,
    InsufficientMemoryError,
    ModelDefinitionError,
    ModelError,
    ModelFileError,
    UnknownArchitectureError,
)
from hotshoe_core.errors.arguments import described, integer
from hotshoe_core.gguf import GGUFFile
from hotshoe_loader import load_all

if TYPE_CHECKING:
    from hotshoe.nn import Config, Module
    from hotshoe.runner.base import LoadedModel
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.reranker import RerankModel
    from hotshoe.runner.text import TextModel
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.contract.backend import Progress
    from hotshoe_loader import Registry

    Runner = type[TextModel | EmbeddingModel | RerankModel]

__all__ = ["Recipe", "load_all", "load_model", "load_tokenizer", "task_of"]

_DEFAULT_CONTEXT = 4096
_OF_TEXT = ("n_ubatch", "max_sequences", "n_sequences", "kv_dtype")
"""Fields of RunnerParams that only a text model, which has a cache, uses."""
_USE = {Task.TEXT: "run", Task.EMBEDDING: "embed", Task.RERANK: "rerank"}


def load_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    n_ctx: int | None = None,
    params: BackendParams | None = None,
    runner: RunnerParams | None = None,
    placement: PlacementParams | None = None,
    task: Task | str | None = None,
    progress: Progress | None = None,
) -> TextModel | EmbeddingModel | RerankModel:
    """A model from a GGUF file, on a device, ready to use. Close it, or use it as a context manager.

    device: a name or type from ``load_all().devices`` ("cpu", "cuda:0", "gpu"), or several ("cuda:0,cpu"); None for
    the best, with the CPU for what it has no room for. A device asked for by name is used or the call fails: it is
    never replaced.
    n_ctx: tokens a text may have; None for what the model was trained for, at most 4096 for a text model,
    whose cache takes memory for each of them.
    params: how the backend is opened: threads, attention, …
    runner: how much is computed and kept at once.
    placement: which layers go to which of several devices; None for as many as fit beside the CPU. What memory has no
    room for is moved to another device, and ``model.placement_report()`` says so.
    task: what the model must be for: "text", "embedding" or "rerank"; the call fails early for a file of another
    task. None takes any: the file says which it is.
    progress: called with the fraction loaded, 0 to 1; an exception it raises cancels the load.

    Raises ModelFileError, UnknownArchitectureError, WeightsError, ModelError for a task or an option that does not
    fit, PlacementError, TokenizerError, DeviceNotFoundError or InsufficientMemoryError; nothing stays loaded then.
    """
    if progress is not None and not callable(progress):
        raise ModelError(f"progress is {described(progress)}; expected a function of a fraction")
    with Recipe.read(path, device, n_ctx, params, runner, placement, task) as recipe:
        return cast("TextModel | EmbeddingModel | RerankModel", recipe.load(load_all(), progress))


@dataclass(slots=True)
class Recipe:
    """A model's file, read and checked, and how it is to be loaded. Closes the file unless a model was loaded."""

    file: GGUFFile
    architecture: type[Module]
    config: Any
    device: str | list[str] | None
    params: BackendParams
    runner: RunnerParams
    placement: PlacementParams
    _pool: ThreadPoolExecutor
    _beside: Future[tuple[Tokenizer, Runner]] | None = None
    _loaded: bool = False

    @classmethod
    def read(
        cls,
        path: Any,
        device: Any,
        n_ctx: int | None,
        params: Any,
        runner: Any,
        placement: Any,
        task: Task | str | None,
    ) -> Recipe:
        """Raises as ``load_model`` does for arguments and files that are not what they should be."""
        expected = None if task is None else Task.parse(task)
        if device is not None and not isinstance(device, Iterable):
            raise ModelError(f"device is {described(device)}; expected a name, or several")
        for name, value, kind in (
            ("params", params, BackendParams),
            ("runner", runner, RunnerParams),
            ("placement", placement, PlacementParams),
        ):
            if value is not None and not isinstance(value, kind):
                raise ModelError(f"{name} is {described(value)}; expected {kind.__name__}")
        runner = RunnerParams() if runner is None else runner
        device = device if device is None or isinstance(device, str) else list(device)
        file = _open(path)
        try:
            architecture = _find(file)
            _check_task(file, architecture.task, expected, runner)
            config = _config(file, architecture)
            config = dataclasses.replace(config, n_ctx=_context(file, architecture, config.n_ctx, n_ctx))
            check_layers(file, config.n_layers)
        except BaseException:
            file.close()
            raise
        pool = ThreadPoolExecutor(1, "hotshoe-load")
        params, placement = params or BackendParams(), placement or PlacementParams()
        return cls(file, architecture, config, device, params, runner, placement, pool)

    def open(self, registry: Registry) -> Backend:
        """A backend over the devices asked for, and the CPU where it is to take part."""
        with_cpu = self.device is None or bool(self.placement.asks_for_cpu)
        return registry.open(self.device, self.params, with_cpu=with_cpu)

    def load(self, registry: Registry, progress: Progress | None = None) -> LoadedModel:
        """The model on the devices asked for."""
        backend = self.open(registry)
        self._start_beside()  # not earlier: it would take Python's lock from the imports of the plugin
        if len(backend.devices) == 1 and self.placement == PlacementParams():
            model = self._load_whole(backend, progress)
            model.why = registry.why(self.device)
        else:
            from hotshoe.placement.load_and_adjust import load_settled
            from hotshoe.placement.report import in_words

            opened = [backend]
            model = load_settled(
                lambda: opened.pop() if opened else self.open(registry),
                self.build,
                self.config.n_layers,
                self.placement,
                progress=progress,
                dry=not self.params.allocate,
            )
            model.why = f"{registry.why(self.device)}; {in_words(model.backend.placement)}"
        self._loaded = True
        return model

    def _load_whole(self, backend: Backend, progress: Progress | None) -> LoadedModel:
        """Everything on the one device there is."""
        (device,) = backend.devices
        n = self.config.n_layers
        try:
            return self.build(backend, Placement(device.name, (device.name,) * n, device.name), progress)
        except BaseException as error:
            backend.close()
            if isinstance(error, InsufficientMemoryError) and device.type is not DeviceType.CPU:
                from hotshoe.placement.load_and_adjust import with_advice

                raise with_advice(error, [device], self.placement) from None
            raise

    def build(self, backend: Backend, placement: Placement, progress: Progress | None = None) -> LoadedModel:
        """The model in an opened backend, which is the caller's to close."""
        model = self.architecture(self.config)
        bind(model, self.file, backend, placement=placement, ignore=model.unused_tensors, progress=progress)
        if self.architecture.task is Task.TEXT:
            _check_cache_spec(model, self.config.n_layers)
        words, kind = self._start_beside().result()
        return kind(ModelParts(model, words, backend, self.file, self.config.n_ctx, self.runner))

    def _start_beside(self) -> Future[tuple[Tokenizer, Runner]]:
        """What needs no weights, in a thread of its own: a large vocabulary takes as long as copying them."""

        def make() -> tuple[Tokenizer, Runner]:
            return _tokenizer_of(self.file.metadata), _runner_of(self.architecture.task)

        if self._beside is None:
            self._beside = self._pool.submit(make)
        return self._beside

    def __enter__(self) -> Recipe:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()  # the tokenizer reads the file
        if not self._loaded:
            self.file.close()


def task_of(path: str | os.PathLike[str]) -> Task:
    """What the model in a file is for. Only the header is read. Raises as ``load_model`` does for such a file."""
    with _open(path) as file:
        return _find(file).task


def _find(file: GGUFFile) -> type[Module]:
    try:
        return find_model(file.metadata)
    except UnknownArchitectureError as e:
        raise UnknownArchitectureError(f"{file.path}: {e.message}", hint=e.hint) from None


def _check_task(file: GGUFFile, task: Task, expected: Task | None, runner: RunnerParams) -> None:
    if expected is not None and expected is not task:
        raise ModelError(
            f"{file.path} is {task.description}; {expected.description} was asked for",
            hint=f"use `hotshoe {_USE[task]}`, or task={task.value!r}",
        )
    for name in _OF_TEXT if task is not Task.TEXT else ():
        value, default = getattr(runner, name), getattr(RunnerParams(), name)
        if value != default:
            raise ModelError(f"{file.path}: {name} is {value!r}, but {task.description} has no key/value cache")


def _config(file: GGUFFile, architecture: type[Module]) -> Config:
    """Read the config of a file, as an instance of the class that the model annotates ``config`` with."""
    config = architecture.config_type().from_metadata(file.metadata)
    where = f"{architecture.__module__}.{architecture.__qualname__}"
    if architecture.task is Task.TEXT and not hasattr(architecture, "cache_spec"):
        raise ModelDefinitionError(
            f"{where} has no cache_spec(), which says what each layer keeps between steps",
            hint="write `def cache_spec(self): return tuple(block.attention.cache_spec() for block in self.blocks)`",
        )
    return config


def _check_cache_spec(model: Any, n_layers: int) -> None:
    spec = model.cache_spec()
    if not isinstance(spec, (tuple, list)) or len(spec) != n_layers:
        found = f"{len(spec)} entries" if isinstance(spec, (tuple, list)) else repr(spec)
        raise ModelDefinitionError(
            f"{type(model).__module__}.{type(model).__qualname__}.cache_spec() gave {found}; expected a tuple of "
            f"{n_layers}, one a layer",
            hint="the entry of a layer that keeps nothing is None",
        )


def _runner_of(task: Task) -> Runner:
    if task is Task.TEXT:
        from hotshoe.runner.text import TextModel

        return TextModel
    if task is Task.RERANK:
        from hotshoe.runner.reranker import RerankModel

        return RerankModel
    from hotshoe.runner.embedder import EmbeddingModel

    return EmbeddingModel


def _context(file: GGUFFile, architecture: type[Module], trained: int, n_ctx: int | None) -> int:
    if n_ctx is None:
        return min(trained, _DEFAULT_CONTEXT) if architecture.task is Task.TEXT else trained
    n_ctx = integer("n_ctx", n_ctx, 1, InputTooLongError)
    if n_ctx > trained:
        raise InputTooLongError(f"n_ctx is {n_ctx}; {file.path} was trained for 1 to {trained} tokens")
    return n_ctx


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file, which may hold nothing else. Raises ModelFileError or TokenizerError."""
    with _open(path) as file:
        return _tokenizer_of(file.metadata)


def _open(path: str | os.PathLike[str]) -> GGUFFile:
    if not isinstance(path, (str, os.PathLike)):
        raise ModelFileError(f"the path of a model is {described(path)}; expected a str or a Path")
    if Path(path).is_dir():
        raise ModelFileError(
            "is a folder; expected a GGUF file",
            path=path,
            hint=f"convert a Hugging Face folder first: hotshoe convert {os.fspath(path)}"
            if (Path(path) / "config.json").is_file()
            else "name the .gguf file in it (a Hugging Face folder would hold a config.json)",
        )
    return GGUFFile(path)
