"""What llama.cpp says of each row: its converter's tensors and keys, its logits for our file; and the row's graph.

``python -m tools.record_families`` writes it to tests/data/families: ROW.json and ROW.npy.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from hotshoe_core import Context
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.inspect.trace import observe

__all__ = ["DATA", "STRIDE", "Record", "digests", "family_keys", "ops_of", "read_record", "write_record"]

DATA = Path(__file__).parents[1] / "data" / "families"
Array = np.ndarray[Any, Any]

STRIDE = 8  # of the vocabulary: every token's logit is a row of one matrix, which transformers compares as a whole


class Record(NamedTuple):
    """What is recorded of a row."""

    keys: dict[str, Any]
    """``<arch>.*`` of llama.cpp's file, in f32"""
    f32: dict[str, str]
    """type, shape and digest of each tensor of llama.cpp's file"""
    f16: dict[str, str]
    ops: list[str]
    """the graph of the whole text"""
    logits: Array
    """llama.cpp's, of every STRIDE-th id: float32 (n, ids); empty if it computes none.

    Of an encoder: the states of the tokens, or, if the row says how a vector is made, that of the text, (1, dim).
    """


def read_record(name: str) -> Record:
    path = DATA / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"{path}: run `python -m tools.record_families LLAMA_CPP LLAMA_PYTHON {name}`")
    numbers = path.with_suffix(".npy")
    logits = np.load(numbers) if numbers.exists() else np.zeros(0, np.float32)
    return Record(**json.loads(path.read_text()), logits=logits)


def write_record(name: str, record: Record) -> None:
    DATA.mkdir(exist_ok=True)
    values = record._asdict()
    values.pop("logits")
    (DATA / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    if record.logits.size:
        np.save(DATA / f"{name}.npy", record.logits)


def family_keys(path: Path) -> dict[str, Any]:
    """The keys of a file that tell of its model: their names begin with its architecture, or with "xielu."."""
    fields = gguf.GGUFReader(path).fields
    arch = fields["general.architecture"].contents()
    return {name: field.contents() for name, field in fields.items() if name.startswith((f"{arch}.", "xielu."))}


def digests(path: Path, cut: dict[str, int] | None = None) -> dict[str, str]:
    """Type, shape and digest of the bytes of each tensor. ``cut``: the rows to look at, of tensors with too many."""
    found = {}
    for t in gguf.GGUFReader(path).tensors:
        data = t.data[: (cut or {}).get(t.name)]
        shape = "x".join(map(str, [*t.shape[1:][::-1], t.shape[0]]))
        if t.name in (cut or {}):
            shape = "x".join(map(str, data.shape))
        found[t.name] = f"{t.tensor_type.name} {shape} {hashlib.sha256(data).hexdigest()[:12]}"
    return found


def ops_of(run: Callable[[], object]) -> list[str]:
    """The first graph that ``run`` computes: a digest with shapes, types and attributes, then the ops of each layer."""
    seen: list[Graph] = []

    class First:
        def before_run(self, context: Context, fed: object) -> None:
            if not seen:
                seen.append(context.graph())

    with observe(First()):
        run()
    graph = seen[0]
    numbers = {t: i for i, t in enumerate((*graph.leaves, *graph.nodes))}
    digest, lines = hashlib.sha256(), list[str]()
    for t in (*graph.leaves, *graph.nodes):
        sources = [None if source is None else numbers[source] for source in t.sources]
        attributes = sorted((name, _repr(given)) for name, given in t.attrs.items())
        digest.update(repr((t.op, t.shape, t.dtype.name, sources, attributes)).encode())
    for layer, nodes in itertools.groupby(graph.nodes, lambda t: t.layer):
        lines.append(f"{layer}: {' '.join(t.op for t in nodes)}")
    return [digest.hexdigest()[:16], *lines]


def _repr(value: Any) -> str:
    """An attribute. A field of a dataclass that has its default is left out: new fields change no record."""
    if dataclasses.is_dataclass(value):
        given = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
        defaults = {f.name: f.default for f in dataclasses.fields(value)}
        return repr((type(value).__name__, [(name, v) for name, v in given if v != defaults[name]]))
    return repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value)
