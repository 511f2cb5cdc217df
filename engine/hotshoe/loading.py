"""The public functions that load a model: load_model, plan_model, load_tokenizer, task_of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, overload

# import NumPy first, from a short call stack: deep in other imports, CPython may map and unmap memory for its frames at
# each call, which makes the import slower
import numpy  # noqa: F401

from hotshoe.load_options import LoadOptions, group_options
from hotshoe.load_request import LoadRequest, model_class_of, open_file
from hotshoe.placement.params import PlacementParams
from hotshoe.store import verified
from hotshoe.tokenizers import load_tokenizer as _tokenizer_of
from hotshoe_core import AllocationStatus, CacheConfig, Device, DeviceType, Placement
from hotshoe_core.errors import InsufficientMemoryError, ModelError, PlacementError
from hotshoe_core.errors.arguments import described, listed
from hotshoe_core.errors.text import shown
from hotshoe_loader import load_all

if TYPE_CHECKING:
    from typing import Unpack

    from hotshoe.load_request import AnyModel
    from hotshoe.placement.plan import Plan
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.reranker import RerankModel
    from hotshoe.runner.text import TextModel
    from hotshoe.tasks import Task
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.contract.backend import Progress


__all__ = ["load_all", "load_model", "load_tokenizer", "plan_model", "task_of"]


@overload
def load_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    task: Literal["text", Task.TEXT],
    n_ctx: int | None = None,
    projector: str | os.PathLike[str] | Literal[False] | None = None,
    progress: Progress | None = None,
    **options: Unpack[LoadOptions],
) -> TextModel: ...
@overload
def load_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    task: Literal["embedding", Task.EMBEDDING],
    n_ctx: int | None = None,
    projector: str | os.PathLike[str] | Literal[False] | None = None,
    progress: Progress | None = None,
    **options: Unpack[LoadOptions],
) -> EmbeddingModel: ...
@overload
def load_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    task: Literal["rerank", Task.RERANK],
    n_ctx: int | None = None,
    projector: str | os.PathLike[str] | Literal[False] | None = None,
    progress: Progress | None = None,
    **options: Unpack[LoadOptions],
) -> RerankModel: ...
@overload
def load_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    task: Task | str | None = None,
    n_ctx: int | None = None,
    projector: str | os.PathLike[str] | Literal[False] | None = None,
    progress: Progress | None = None,
    **options: Unpack[LoadOptions],
) -> TextModel | EmbeddingModel | RerankModel: ...
def load_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    task: Task | str | None = None,
    n_ctx: int | None = None,
    projector: str | os.PathLike[str] | Literal[False] | None = None,
    progress: Progress | None = None,
    **options: Unpack[LoadOptions],
) -> TextModel | EmbeddingModel | RerankModel:
    """Load a model from a GGUF file onto a device. Close it, or use it as a context manager.

    path: a file, or a name that ``hotshoe list`` shows: "ORG/REPO:Q4_K_M", "ollama:llama3.2", "lmstudio:ORG/REPO". The
    files of a named model are compared with their hashes before they are loaded for the first time.
    device: a name or type from ``load_all().devices`` ("cpu", "cuda:0", "gpu"), or several ("cuda:0,cpu"). A device
    that you name is used, or the call fails; it is never replaced. None: the best device, and the CPU for the layers
    that do not fit there.
    task: the task that the file must be for: "text", "embedding" or "rerank". None: any. With a task, type checkers
    know the class of the model.
    n_ctx: the most tokens of a text. None: what the model was trained for, but at most 4096 for a text model, because
    its cache takes memory for each token.
    projector: the file of the encoders of pictures and sounds, whose name usually contains "mmproj". None: the one in
    the model's folder that belongs to it, if there is one. False: none, so that the model reads texts only.
    progress: called with the fraction that is loaded, 0 to 1. An exception that it raises cancels loading.
    options: docs/python.md explains them in one table.
      How to compute: ``n_threads``, ``mmap``, ``repack``, ``flash_attention``, ``matmul_precision``.
      Steps and cache: ``n_batch``, ``n_ubatch``, ``max_sequences``, ``n_sequences``,
      ``max_step_seconds``, ``checkpoint_bytes``,
      ``prefix_memory``, ``prefix_disk``, ``prefix_folder``, ``max_draft``, ``kv_dtype``.
      Which device holds which layers: ``n_gpu_layers``, ``tensor_split``, ``main_gpu``, ``cpu_moe``, ``kv_offload``,
      ``layer_devices``, ``fallback``. Without them, as many layers as fit are on the devices other than the CPU. If
      memory runs out, layers are moved to another device, and ``model.placement_report()`` lists the moves.

    Raises ModelNotFoundError for an unknown name, ModelFileError, UnknownArchitectureError, WeightsError,
    TokenizerError, OptionError for an unknown option,
    ModelError for a task or an option that does not fit the file, DTypeError for an unknown ``kv_dtype``,
    DeviceNotFoundError, PlacementError, BackendError or InsufficientMemoryError. Nothing stays loaded then.
    """
    if progress is not None and not callable(progress):
        raise ModelError(f"progress is {described(progress)}; expected a function that takes one number, 0 to 1")
    groups = group_options(options, _PARAMETERS)
    stored = verified(path)
    where, known = (path, None) if stored is None else (stored.path, stored.projector)
    with LoadRequest.read(where, device, n_ctx, groups, task, projector, known) as request:
        registry = load_all(device=request.device)
        request.load_towers(registry)
        backend = request.open(registry)
        if len(backend.devices) == 1 and request.placement == PlacementParams():
            model = _load_on_one_device(request, backend, progress)
            model.why = registry.why(request.device)
        else:
            from hotshoe.placement.load_and_adjust import load_and_adjust
            from hotshoe.placement.report import describe

            unused = [backend]

            def next_backend() -> Backend:  # first the opened one, then a new one after each failure
                return unused.pop() if unused else request.open(registry)

            n_layers = request.config.n_layers
            model = load_and_adjust(next_backend, request.build, n_layers, request.placement, progress=progress)
            model.why = f"{registry.why(request.device)}; {describe(model.backend.placement)}"
        for loaded in request.towers:
            model.why += f"; {loaded.tower.medium.many}: {loaded.file.path.name} on {loaded.backend.devices[0].name}"
        request.keep_file = True
        return model


_PARAMETERS = ("device", "task", "n_ctx", "projector", "progress")


def _load_on_one_device(request: LoadRequest, backend: Backend, progress: Progress | None) -> AnyModel:
    (device,) = backend.devices
    n = request.config.n_layers
    try:
        model = request.build(backend, Placement(device.name, (device.name,) * n, device.name), progress)
        if device.type is not DeviceType.CPU:  # the system gives a CPU its pages only when they are written
            model.reserve()
        return model
    except BaseException as error:
        backend.close()
        if isinstance(error, InsufficientMemoryError) and device.type is not DeviceType.CPU:
            from hotshoe.placement.load_and_adjust import with_advice

            raise with_advice(error, [device], request.placement) from None
        raise


def plan_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    n_ctx: int | None = None,
    projector: str | os.PathLike[str] | Literal[False] | None = None,
    simulate: Sequence[Device] | None = None,
    free: Mapping[str, int] | None = None,
    **options: Unpack[LoadOptions],
) -> Plan:
    """Plan where ``load_model`` with these arguments would put each layer. Reads the header, allocates nothing.

    simulate: devices to plan for instead of those of this machine. Weights then count with their size in the file.
    free: free bytes of devices by their names, to plan for instead of what is free now.
    projector: the encoders, as for ``load_model``. They count with their size in the file, on the first device.
    Raises as ``load_model`` does, except InsufficientMemoryError: a plan that does not fit has ``plan.fits`` False.
    """
    from hotshoe.placement.load_and_adjust import load_and_adjust
    from hotshoe.placement.plan import SIMULATED_CACHE, Plan
    from hotshoe.placement.sizes import open_simulated

    if simulate is not None:
        simulate = listed("simulate", simulate, "a list of Device", PlacementError)
        if not simulate:
            raise PlacementError("simulate is empty; expected one Device or more")
        if wrong := [d for d in simulate if not isinstance(d, Device)]:
            raise PlacementError(f"simulate has {shown(wrong[0])}; expected a list of Device")
    groups = group_options(options, ("device", "n_ctx", "projector", "simulate", "free"))
    with LoadRequest.read(path, device, n_ctx, groups, None, projector) as request:
        request.params = replace(request.params, allocate=False)

        def open_backend() -> Backend:
            if simulate is None:
                return request.open(load_all(device=request.device))
            return open_simulated(simulate, replace(SIMULATED_CACHE, n_rows=CacheConfig.rows_for(simulate[0])))

        towers = sum(found.nbytes for found in request.found_towers)
        n_layers = request.config.n_layers
        model = load_and_adjust(
            open_backend, request.build, n_layers, request.placement, dry=True, free=free, reserved=towers
        )
        backend = model.backend
        memory = backend.memory()
        if towers:
            memory.on(backend.devices[0].name).add_input(towers, AllocationStatus.UNALLOCATED)
        try:
            return Plan(
                str(request.file.path),
                request.file.architecture,
                n_layers,
                request.config.n_ctx,
                request.runner.kv_dtype,
                backend.devices,
                {**backend.memory_free(), **(free or {})},
                backend.placement,
                memory,
                request.unused(),
                model.moved,
            )
        finally:
            backend.close()


def task_of(path: str | os.PathLike[str]) -> Task:
    """Return the task of the model in a file. Reads the header only. Raises as ``load_model`` does for the file."""
    with open_file(path) as file:
        return model_class_of(file).task


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a GGUF file, which needs no weights. Raises ModelFileError or TokenizerError."""
    with open_file(path) as file:
        return _tokenizer_of(file.metadata)
