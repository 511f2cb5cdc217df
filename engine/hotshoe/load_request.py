"""LoadRequest: a model's file, read and checked, and the options with which it is to be loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.dialects import translate
from hotshoe.families import find_model
from hotshoe.load_options import OptionGroups
from hotshoe.nn.binder import bind, check_layers, missing_parameters, unused
from hotshoe.placement.params import PlacementParams
from hotshoe.runner.base import ModelParts
from hotshoe.runner.params import RunnerParams
from hotshoe.store import located
from hotshoe.tasks import Task
from hotshoe.tokenizers import load_tokenizer
from hotshoe.unread_keys import check_all_read
from hotshoe_core import BackendParams
from hotshoe_core.errors import (
    ModelDefinitionError,
    ModelError,
    ModelFileError,
    UnknownArchitectureError,
)
from hotshoe_core.errors.arguments import described, file_path, integer
from hotshoe_core.gguf import GGUFFile

if TYPE_CHECKING:
    from typing import Self

    from hotshoe.load_tower import FoundTower
    from hotshoe.nn import Module
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.media_encoder import LoadedTower
    from hotshoe.runner.reranker import RerankModel
    from hotshoe.runner.text import TextModel
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend, Placement
    from hotshoe_core.contract.backend import Progress
    from hotshoe_loader import Registry

    AnyModel = TextModel | EmbeddingModel | RerankModel

__all__ = ["ONLY_TEXT", "LoadRequest", "model_class_of", "open_file"]

_DEFAULT_CONTEXT = 4096
ONLY_TEXT = (
    *("n_ubatch", "max_sequences", "n_sequences", "max_step_seconds", "checkpoint_bytes", "kv_dtype"),
    *("prefix_memory", "prefix_disk", "prefix_folder", "max_draft"),
)
"""Fields of RunnerParams that only a text model uses, which has a cache."""
_COMMANDS = {Task.TEXT: "run", Task.EMBEDDING: "embed", Task.RERANK: "rerank"}


logger = logging.getLogger("hotshoe.drafting")


@dataclass(slots=True)
class LoadRequest:
    """A model's file and how to load it. As a context manager it closes the file, unless ``keep_file`` is set."""

    file: GGUFFile
    model_class: type[Module]
    config: Any
    """The model's config, an instance of the class that the model annotates ``config`` with."""

    device: str | list[str] | None
    params: BackendParams
    runner: RunnerParams
    placement: PlacementParams
    found_towers: tuple[FoundTower, ...] = ()
    """The encoders of pictures and sounds, without their weights."""
    unused_towers: tuple[str, ...] = ()
    """The encoders that are not used, each with the reason."""
    towers: tuple[LoadedTower, ...] = ()
    drafting: str = ""
    """What becomes of the file's layer that drafts tokens, for the log; "" for a file without one."""
    keep_file: bool = False
    """Whether a loaded model needs the files."""

    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "hotshoe-load"))
    _prepared: Future[tuple[Tokenizer, type[AnyModel]]] | None = None

    @classmethod
    def read(
        cls,
        path: Any,
        device: Any,
        n_ctx: int | None,
        options: OptionGroups,
        task: Task | str | None,
        projector: Any = None,
        known_projector: Path | None = None,
    ) -> LoadRequest:
        """Check the arguments of ``load_model`` and read the file's header. Raises as ``load_model`` does.

        known_projector: the file that a store has for the model.
        """
        expected = None if task is None else Task.parse(task)
        if device is not None and not isinstance(device, Iterable):
            raise ModelError(f"device is {described(device)}; expected a device name, or a list of names")
        device = device if device is None or isinstance(device, str) else list(device)
        file = open_file(path)
        try:
            model_class = model_class_of(file)
            _check_task(file, model_class.task, expected, options.runner)
            config: Any = model_class.config_type().from_metadata(file.metadata)
            _require_cache_spec(model_class)
            config = replace(config, n_ctx=_context(file, model_class, config.n_ctx, n_ctx))
            check_layers(file, config.n_layers)
            config, drafting = _with_drafting(file, model_class, config, options.runner)
            model = model_class(config)
            check_all_read(file.metadata, model)
            found, unused_towers = _tower_for(projector, file, model, known_projector)
        except BaseException:
            file.close()
            raise
        return cls(
            *(file, model_class, config, device, *options),
            found_towers=found,
            unused_towers=unused_towers,
            drafting=drafting,
        )

    def open(self, registry: Registry) -> Backend:
        """Open a backend over the requested devices, and the CPU if it takes part."""
        with_cpu = self.device is None or bool(self.placement.asks_for_cpu)
        return registry.open(self.device, self.params, with_cpu=with_cpu)

    def load_towers(self, registry: Registry) -> None:
        """Load the encoders, before the model: what is left of the memory is for the model's layers."""
        for found in self.found_towers:
            from hotshoe.load_tower import load_tower

            self.towers += (load_tower(found, registry, self.device, self.params),)

    def build(self, backend: Backend, placement: Placement, progress: Progress | None = None) -> AnyModel:
        """Load the model into an opened backend. The caller closes the backend after an error."""
        prepared = self._prepare()
        if self.config.n_drafting and self.runner.max_draft is None and not backend.batch_invariant:
            self.config = replace(self.config, n_drafting=0)
            self.drafting = "is not loaded: guesses could change the text here, so it must be asked for (max_draft=3)"
        config = self.config
        if self.drafting:
            logger.info("%s: the drafting layer (MTP, NextN) %s", self.file.path, self.drafting)
        model = self.model_class(config)
        bind(model, self.file, backend, placement=placement, progress=progress)
        if self.model_class.task is Task.TEXT:
            _check_cache_spec(model, config.n_layers + config.n_drafting)
        tokenizer, kind = prepared.result()
        return kind(
            ModelParts(
                model,
                tokenizer,
                backend,
                self.file,
                config.n_ctx,
                self.runner,
                towers=self.towers,
                n_attended=max((found.tower.n_attended for found in self.found_towers), default=0),
                unused_towers=self.unused_towers,
            )
        )

    def unused(self) -> dict[str, int]:
        """The bytes of the tensors that are not loaded, because the model does not use them, by the reason."""
        found = unused(self.model_class(self.config), self.file.tensors)
        return {why: sum(self.file.tensors[name].nbytes for name in names) for why, names in found.items()}

    def _prepare(self) -> Future[tuple[Tokenizer, type[AnyModel]]]:
        """Start to load the tokenizer and the model's class in a thread, while the weights are copied.

        A large vocabulary takes as long as the weights. Not earlier: the thread would slow down the plugin's imports.
        """

        def make() -> tuple[Tokenizer, type[AnyModel]]:
            return load_tokenizer(self.file.metadata), _loaded_class(self.model_class.task)

        if self._prepared is None:
            self._prepared = self._pool.submit(make)
        return self._prepared

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()  # the tokenizer reads the file
        if self.keep_file:
            return
        self.file.close()
        for tower in self.towers:
            tower.close()
        for found in self.found_towers[len(self.towers) :]:
            found.file.close()


def model_class_of(file: GGUFFile) -> type[Module]:
    """Return the model class of a file. Raises UnknownArchitectureError."""
    try:
        return find_model(file.metadata)
    except UnknownArchitectureError as e:
        raise UnknownArchitectureError(f"{file.path}: {e.message}", hint=e.hint) from None


def _tower_for(
    projector: Any, file: GGUFFile, model: Module, known: Path | None
) -> tuple[tuple[FoundTower, ...], tuple[str, ...]]:
    if model.task is Task.TEXT:
        inside = any(name.startswith("v.") for name in file.tensors)
        if projector is None and known is None and not inside and not any(file.path.parent.glob("*mmproj*.gguf")):
            return (), ()
        from hotshoe.load_tower import find_tower  # few models have one

        return find_tower(projector, file, model, known)
    if projector:
        raise ModelError(
            f"projector is {described(projector)}, but this option is for text models only; {file.path} is "
            f"{model.task.description}",
            hint="leave it out",
        )
    return (), ()


def _check_task(file: GGUFFile, task: Task, expected: Task | None, runner: RunnerParams) -> None:
    if expected is not None and expected is not task:
        raise ModelError(
            f"{file.path} is {task.description}; expected {expected.description}",
            hint=f"give the file of {expected.description}; "
            f"this one is {task.description}: `hotshoe {_COMMANDS[task]}`, or in Python task={task.value!r}",
        )
    for name in ONLY_TEXT if task is not Task.TEXT else ():
        value, default = getattr(runner, name), getattr(RunnerParams(), name)
        if value != default:
            raise ModelError(
                f"{name} is {value!r}, but this option is for text models only; {file.path} is {task.description}",
                hint="leave it out",
            )


def _with_drafting(file: GGUFFile, model_class: type[Module], config: Any, params: RunnerParams) -> tuple[Any, str]:
    """Return the config with a drafting layer, if the model and its file have all of one, and what becomes of it."""
    if not config.n_nextn or model_class.task is not Task.TEXT:
        return config, ""
    if params.max_draft == 0:
        return config, "is not loaded: max_draft is 0"
    with_layer = replace(config, n_drafting=1)
    model = model_class(with_layer)
    layers = getattr(model, "nextn", ())
    own = [f"blk.{config.n_layers}.nextn.{name}.weight" for name in ("embed_tokens", "shared_head_head")]
    if not layers:
        return config, "is not loaded: hotshoe does not use that of this architecture yet"
    if found := [name for name in own if name in file.tensors]:
        return config, f"is not loaded: it has a vocabulary of its own, {found[0]}, which hotshoe does not use yet"
    missing = set(missing_parameters(model, file)) & set(layers[0].parameters())
    if missing:
        names = sorted(p.names[0] for p in missing)
        return config, f"is not loaded: the file lacks {names[0]}" + (f" and {n} more" if (n := len(names) - 1) else "")
    return with_layer, "guesses tokens"


def _require_cache_spec(model_class: type[Module]) -> None:
    """Raise ModelDefinitionError if the class of a text model has no ``cache_spec``."""
    if model_class.task is Task.TEXT and getattr(model_class, "cache_spec", None) is None:
        raise ModelDefinitionError(
            f"{model_class.__module__}.{model_class.__qualname__} has no cache_spec(), which says what each layer "
            "keeps between steps",
            hint="write `def cache_spec(self): return tuple(block.attention.cache_spec() for block in self.blocks)`",
        )


def _check_cache_spec(model: Any, n_layers: int) -> None:
    spec = model.cache_spec()
    if not isinstance(spec, (tuple, list)) or len(spec) != n_layers:
        found = f"{len(spec)} entries" if isinstance(spec, (tuple, list)) else repr(spec)
        raise ModelDefinitionError(
            f"{type(model).__module__}.{type(model).__qualname__}.cache_spec() gave {found}; expected a tuple of "
            f"{n_layers}, one for each layer",
            hint="the entry of a layer that keeps nothing is None",
        )


def _loaded_class(task: Task) -> type[AnyModel]:
    if task is Task.TEXT:
        from hotshoe.runner.text import TextModel

        return TextModel
    if task is Task.RERANK:
        from hotshoe.runner.reranker import RerankModel

        return RerankModel
    from hotshoe.runner.embedder import EmbeddingModel

    return EmbeddingModel


def _context(file: GGUFFile, model_class: type[Module], trained: int, n_ctx: int | None) -> int:
    if n_ctx is None:
        return min(trained, _DEFAULT_CONTEXT) if model_class.task is Task.TEXT else trained
    n_ctx = integer("n_ctx", n_ctx, 1, ModelError)
    if n_ctx > trained:
        limit = model_class.context_limit
        known = f"can have at most {trained} tokens: {limit}" if limit else f"was trained for at most {trained} tokens"
        raise ModelError(f"n_ctx is {n_ctx}; {file.path} {known}", hint="leave it out, or give less")
    return n_ctx


def open_file(path: str | os.PathLike[str], *, own_names: bool = False) -> GGUFFile:
    """Open a GGUF file, and give it GGUF's names if it has others, unless ``own_names``: see hotshoe.dialects.

    path: a file, or the name of a model that ``hotshoe list`` shows. Raises ModelNotFoundError for an unknown name, and
    ModelFileError, also for a path of another type and for a folder.
    """
    path = file_path("the path of a model", located(path), ModelFileError)
    if path.is_dir():
        raise ModelFileError(
            "is a folder; expected a GGUF file",
            path=path,
            hint=f"convert a Hugging Face folder first: hotshoe convert {path}"
            if (path / "config.json").is_file()
            else "name a .gguf file in the folder (a Hugging Face folder has a config.json)",
        )
    file = GGUFFile(path)
    try:
        return file if own_names else translate(file).file
    except BaseException:
        file.close()
        raise
