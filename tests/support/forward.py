"""A model's forward pass with a cache of nothing but arrays: what it computes, without the runner's caches.

What the layers keep goes in as inputs of a graph and comes out as outputs, so that a text can be computed as a whole
or in pieces, and both must agree with the oracle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hotshoe
from hotshoe.families import find_model
from hotshoe.kvcache import AttentionSpec
from hotshoe.kvcache.spec import Part, parts_of, per_layer, storing_part
from hotshoe.kvcache.views import AttendingView
from hotshoe.nn import bind
from hotshoe.nn.batch import Batch
from hotshoe.tasks import Task
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.gguf import GGUFFile

__all__ = ["Forward"]

Array = np.ndarray[Any, Any]


class _Attention(AttendingView):
    """Keys and values of one text; those before this step are inputs."""

    def __init__(self, ctx: Any, i: Part, spec: AttentionSpec, n: int, past: dict[str, Array]) -> None:
        self.ctx, self.i, self.spec, self.past = ctx, i, spec, past
        self.n_past = past["k"].shape[0] if past else 0
        total = self.n_past + n
        back = np.arange(self.n_past, total)[:, None] - np.arange(total)
        seen = (back >= 0) & ((back < spec.window) if spec.window else True)
        self.mask = ctx.input(f"{i}.mask", seen.shape)
        self.cell_positions = ctx.input(f"{i}.cells", (total,), DType.I32)
        self.feeds = {
            f"{i}.mask": np.where(seen, np.float32(0), np.float32(-np.inf)),
            f"{i}.cells": np.arange(total, dtype=np.int32),
        }
        self.kept: dict[str, Tensor] = {}

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert k.shape[1:] == (self.spec.n_kv_heads, self.spec.k_dim)
        assert (v is None) == bool(self.spec.v_in_k)
        k = self._joined("k", k)
        self.all = k, (k[..., : self.spec.v_in_k] if v is None else self._joined("v", v))
        return self.all

    def read(self) -> tuple[Tensor, Tensor]:
        return self.all

    def _joined(self, name: str, new: Tensor) -> Tensor:
        if self.past:
            before = self.ctx.input(f"{self.i}.{name}", self.past[name].shape)
            self.feeds[f"{self.i}.{name}"] = self.past[name]
            new = ops.concat(before, new, axis=0)
        self.kept[name] = new
        return new


class _Recurrent:
    """States of one text."""

    n_sequences = 1

    def __init__(self, ctx: Any, i: Part, spec: Any, past: dict[str, Array]) -> None:
        self.ctx, self.i, self.spec, self.past = ctx, i, spec, past
        self.feeds: dict[str, Array] = {}
        self.kept: dict[str, Tensor] = {}

    def split(self, x: Tensor) -> Tensor:
        return x[None]

    def merge(self, x: Tensor) -> Tensor:
        return x[0]

    def read(self, name: str) -> Tensor:
        shape = (1, *self.spec.states[name])
        self.feeds[f"{self.i}.{name}"] = self.past.get(name, np.zeros(shape, np.float32))
        return self.ctx.input(f"{self.i}.{name}", shape)

    def write(self, name: str, new: Tensor) -> None:
        assert new.shape == (1, *self.spec.states[name])
        self.kept[name] = new

    def roll(self, name: str, x: Tensor) -> Tensor:
        before = self.read(name)
        self.write(name, ops.concat(before, x, axis=1)[:, x.shape[1] :])
        return before


class Forward:
    """A GGUF file's model on a device: ``logits(ids)`` whole, ``logits(ids, [1] * n)`` token by token."""

    def __init__(self, path: Path, device: str) -> None:
        self.file = GGUFFile(path)
        self.backend = hotshoe.load_all().open(device)
        cls: Any = find_model(self.file.metadata)
        self.model: Any = cls(cls.config_type().from_metadata(self.file.metadata))
        bind(self.model, self.file, self.backend)
        self.spec = self.model.cache_spec() if self.model.task is Task.TEXT else ()

    def logits(self, ids: Sequence[int], pieces: Iterable[int] = ()) -> Array:
        """(n, vocab) of a text model; what another one gives is as its forward pass says."""
        past: dict[Part, dict[str, Array]] = {part: {} for part in parts_of(self.spec)}
        rows, at = [], 0
        for n in pieces or [len(ids)]:
            rows.append(self._step(ids[at : at + n], at, past))
            at += n
        return np.concatenate(rows)

    def _step(self, ids: Sequence[int], at: int, past: dict[Part, dict[str, Array]]) -> Array:
        n = len(ids)
        with self.backend.new_context() as ctx:
            batch = Batch(ctx.input("tokens", (n,), DType.I32), ctx.input("positions", (n,), DType.I32))
            parts = parts_of(self.spec)
            stored: dict[Part, Any] = {}
            for part, spec in parts.items():
                if not isinstance(spec, AttentionSpec):
                    stored[part] = _Recurrent(ctx, part, spec, past[part])
                elif spec.like is None:
                    stored[part] = _Attention(ctx, part, spec, n, past[part])
            y = self.model(batch, per_layer(self.spec, {part: stored[storing_part(parts, part)] for part in parts}))
            feeds: dict[str, Any] = {"tokens": list(ids), "positions": np.arange(at, at + n)}
            for view in stored.values():
                feeds |= view.feeds
                ctx.forward(*view.kept.values())
            ctx.forward(y)
            ctx.compute({tensor: np.asarray(feeds[name]) for name, tensor in ctx.inputs.items()})
            for part, view in stored.items():
                past[part] = {name: kept.read() for name, kept in view.kept.items()}
            return y.read()

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()
        self.file.close()
