"""LoadOptions: the options of load_model and plan_model that say how a model is computed, cached and placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, NamedTuple, TypedDict

from hotshoe.placement.params import PlacementParams
from hotshoe.runner.params import RunnerParams
from hotshoe_core import BackendParams
from hotshoe_core.errors import OptionError, did_you_mean

__all__ = ["LoadOptions", "OptionGroups", "group_options"]


class LoadOptions(TypedDict, total=False):
    """Options of ``load_model`` and ``plan_model``. docs/python.md explains each one."""

    n_threads: int | None
    mmap: bool
    repack: bool | Literal["engine"]
    flash_attention: Literal["auto", "on", "off"]
    matmul_precision: Literal["stored", "bf16", "f32"]

    n_batch: int | None
    n_ubatch: int | None
    max_step_seconds: float
    max_sequences: int
    n_sequences: int
    checkpoint_bytes: int
    prefix_memory: int
    prefix_disk: int
    prefix_folder: str | None
    max_draft: int | None
    kv_dtype: str

    n_gpu_layers: int | Literal["auto", "all"]
    tensor_split: Sequence[float] | None
    main_gpu: int | None
    cpu_moe: int | bool
    kv_offload: bool
    layer_devices: Sequence[str] | None
    fallback: bool


class OptionGroups(NamedTuple):
    """The options, by the part of hotshoe that uses them."""

    backend: BackendParams
    runner: RunnerParams
    placement: PlacementParams


def group_options(options: Mapping[str, Any], others: Sequence[str]) -> OptionGroups:
    """Check options and return them in groups.

    others: the function's own parameters, which an unknown option may mean. Raises OptionError for an unknown option,
    and BackendError, ModelError, DTypeError or PlacementError for an invalid value.
    """
    known = LoadOptions.__annotations__
    for name in options:
        if name not in known:
            hint = did_you_mean(name, [*known, *others])
            if name in ("params", "runner", "placement"):
                hint = "give each option by its name: load_model(path, n_threads=4, kv_dtype='q8_0')"
            raise OptionError(f"there is no option {name!r}", hint=hint)

    def given(group: type[Any]) -> dict[str, Any]:
        return {field.name: options[field.name] for field in fields(group) if field.name in options}

    return OptionGroups(
        BackendParams(**given(BackendParams)),
        RunnerParams(**given(RunnerParams)),
        PlacementParams(**given(PlacementParams)),
    )
