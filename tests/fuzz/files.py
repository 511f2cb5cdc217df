"""GGUF files of every family with something changed: loaded and run, or refused in words.

Most cases change one thing and leave the rest of the file sound, so that what is wrong reaches the code that uses it;
some change several, or bytes without a look at what they are.
"""

from __future__ import annotations

import math
import random
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hotshoe
from hotshoe.loading import task_of
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import HotshoeError
from tests.fuzz.fault import Fault
from tests.fuzz.gguf_parts import ARRAY, CODES, STRING, Key, Parts, Row, pack

__all__ = ["SEEDS", "SHARE", "base", "check_message", "damaged", "damaged_bytes", "measured", "run", "setup"]

SEEDS = (
    *(36, 62, 377),  # NaN: greedy decoding took the first token for the best
    *(287, 1651),  # a context shorter than the special tokens around a text: untyped
    *(100379, 202452),  # 2³¹ as the original context of RoPE: untyped
    *(101262, 102813),  # a tensor's name with control characters, in the message
    *(100097, 202387),  # an architecture's name of 70,000 characters, in the message
)
SHARE = 150
SECONDS = 10.0  # of one case; a sound one takes 0.02
RESIDENT = 1 << 30  # bytes that one case may add: the files have less than a million
DATA = Path(__file__).parents[1] / "data"
TEXT = "the fox \x1b[31m jumps"

Mutation = Callable[[Parts, random.Random], None]
_MUTATIONS: list[tuple[int, Mutation]] = []
_bases: dict[str, Parts] = {}
_known: dict[str, Key] = {}  # every key that some base has after its architecture's name, with one value
_folder: list[tempfile.TemporaryDirectory[str]] = []

_UNWRITTEN = (  # keys that hotshoe reads and no base has
    *("attention.scale", "attention.sliding_window_pattern", "attention.shared_kv_layers", "final_logit_softcapping"),
    *("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "pooling_type", "expert_gating_func"),
)
_TOKENIZER = (
    *("model", "pre", "tokens", "token_type", "scores", "merges", "add_space_prefix", "precompiled_charsmap"),
    *("bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id", "padding_token_id", "add_bos_token"),
    *("remove_extra_whitespaces", "token_type_count", "normalizer.lowercase", "fim_pad_token_id", "mask_token_id"),
)
_INTEGERS = (
    *(0, 1, 2, 3, 5, 7, 8, 12, 16, 24, 31, 33, 63, 64, 100, 127, 128, 255, 320, 1000, 4096, 10_000, 65535, 65536),
    *(10**6, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
    *(-1, -2, -8, -(2**31), -(2**63)),
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e-45, 1e30, 3e38, -3e38, math.inf, -math.inf, math.nan, 1e-8, 1e4)
_STRINGS = (
    *("", "none", "linear", "yarn", "longrope", "llama", "qwen2", "gemma3", "t5", "bert", "gpt2", "whitespace"),
    *("\x1b[2J\x1b]0;x\x07", "\u202eabc", "a\nb\rc", "x" * 70_000, b"\xff\xfe", "\0", "{{ 1 }}"),
)


def mutation(weight: int = 1) -> Callable[[Mutation], Mutation]:
    def add(function: Mutation) -> Mutation:
        _MUTATIONS.append((weight, function))
        return function

    return add


def setup() -> None:
    for folder in _folder:  # of an earlier target in this process
        folder.cleanup()
    _folder[:] = [tempfile.TemporaryDirectory(prefix="fuzz-files-")]
    for path in (*sorted((DATA / "llamacpp").glob("*.gguf")), DATA / "bert-tiny-llamacpp.gguf"):
        parts = _bases[path.stem] = Parts.of(path)
        assert parts.bytes() == path.read_bytes(), path
        for key in parts.keys:
            _known.setdefault(key.name.partition(".")[2] if not _is_common(key) else key.name, key)
    hotshoe.load_all()


def run(seed: int) -> str:
    rng = random.Random(seed)
    path = Path(_folder[0].name) / "model.gguf"
    path.write_bytes(damaged(base(rng), rng))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outcome = measured(lambda: _use(path, "reference" if rng.random() < 0.3 else "cpu"))
    for warning in said:
        _check_text(str(warning.message))
    return outcome


def _use(path: Path, device: str) -> str:
    task_of(path)
    with hotshoe.load_model(path, device) as model:
        repr(model)
        if isinstance(model, TextModel):
            ids = model.tokenizer.encode(TEXT)[:20] or [0]
            model.generate(ids, max_tokens=2, temperature=0)
            _check_finite(model.logits(ids[:3]).max(axis=1))  # -inf rules a token out
            model.score("the")
        elif isinstance(model, EmbeddingModel):
            _check_finite(model.embed([TEXT, "the"], truncate=True))
        else:
            _check_finite(model.scores([(TEXT, "the"), ("a", "b")], truncate=True))
    return "answered"


def _check_finite(values: np.ndarray[Any, Any]) -> None:
    if not np.isfinite(values).all():
        raise Fault("different", f"{np.isnan(values).sum()} NaN and {np.isinf(values).sum()} infinite of {values.size}")


def measured(use: Callable[[], str]) -> str:
    """Return the outcome of ``use``; "refused" for an error. Faults: too much time or memory, an odd message."""
    before, begun = _largest_resident(), time.process_time()
    try:
        outcome = use()
    except HotshoeError as error:
        outcome = "refused"
        check_message(error)
    if (seconds := time.process_time() - begun) > SECONDS:
        raise Fault("slow", f"{seconds:.1f} s until {outcome}")
    if (grown := _largest_resident() - before) > RESIDENT:
        raise Fault("large", f"{grown >> 20} MiB more until {outcome}")
    return outcome


def check_message(error: HotshoeError) -> None:
    _check_text(str(error))
    if len(str(error)) > 5000:
        raise Fault("escape", f"a message of {len(str(error))} characters")
    if not error.message.strip():
        raise Fault("untyped", f"{type(error).__name__} without a message")


def _check_text(text: str) -> None:
    """A terminal could act on what is not printable; lines of a message are its own."""
    odd = next((c for c in text if not c.isprintable() and c != "\n"), None)
    if odd is not None:
        raise Fault("escape", f"{odd!r} in {text[:200]!r}")


def _largest_resident() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# Making a file


def base(rng: random.Random) -> Parts:
    """A copy of one of the good files."""
    found = _bases[rng.choice(sorted(_bases))]
    return Parts([Key(k.name, k.type, k.payload) for k in found.keys],
                 [Row(r.name, list(r.dims), r.type, r.data) for r in found.rows])  # fmt: skip


def damaged(parts: Parts, rng: random.Random) -> bytes:
    """The file with one or a few things changed."""
    weights, mutations = zip(*_MUTATIONS)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        rng.choices(mutations, weights)[0](parts, rng)
    raw = parts.bytes()
    return damaged_bytes(raw, rng) if rng.random() < 0.08 else raw


def damaged_bytes(raw: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return raw[: rng.randrange(len(raw) + 1)]
    if kind == 1:
        return raw + rng.randbytes(rng.randrange(100))
    damaged = bytearray(raw)
    reach = len(raw) if kind == 2 else rng.choice((24, 2000, 20_000))  # the header stands at the beginning
    for _ in range(rng.choice((1, 1, 4, 40))):
        damaged[rng.randrange(min(reach, len(raw)))] = rng.randrange(256)
    return bytes(damaged)


def _is_common(key: Key) -> bool:
    return key.name.startswith(("general.", "tokenizer.", "quantize."))


def _value(rng: random.Random, like: Key | None = None) -> tuple[int, bytes]:
    """A type and a value, of the type of ``like`` in half of the cases."""
    kind = like.type if like is not None and rng.random() < 0.5 else rng.choice((*CODES, STRING, ARRAY))
    if kind == ARRAY:
        inner = rng.choice((*CODES, STRING))
        n = rng.choice((0, 1, 2, 3, 6, 320))
        return ARRAY, pack(ARRAY, (inner, [_scalar(inner, rng) for _ in range(n)]))
    return kind, pack(kind, _scalar(kind, rng))


def _scalar(kind: int, rng: random.Random) -> Any:
    if kind == STRING:
        return rng.choice(_STRINGS)
    code = CODES[kind]
    if code in "fd":
        value = rng.choice((*_FLOATS, float(rng.choice(_INTEGERS))))
        return value if code == "d" else float(np.clip(value, -3e38, 3e38)) if abs(value) < math.inf else value
    bits = 8 * struct.calcsize(code)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if code.islower() else (0, 2**bits - 1)
    return rng.choice([i for i in _INTEGERS if low <= i <= high])


# Metadata


@mutation(12)
def hyper_parameter(parts: Parts, rng: random.Random) -> None:
    """One that the file has."""
    own = [k for k in parts.keys if not _is_common(k)]
    if own:
        found = rng.choice(own)
        found.type, found.payload = _value(rng, found)


@mutation(4)
def near_hyper_parameter(parts: Parts, rng: random.Random) -> None:
    """An integer that is nearly right."""
    own = [k for k in parts.keys if not _is_common(k) and k.type in (4, 5)]
    if own:
        found = rng.choice(own)
        (value,) = struct.unpack("<i", found.payload)
        value = rng.choice((value - 1, value + 1, value * 2, value // 2, value * 3, 2, 1, 0, value + 32))
        found.payload = struct.pack("<I", value % 2**32)


@mutation(6)
def other_hyper_parameter(parts: Parts, rng: random.Random) -> None:
    """One of another family's."""
    name = rng.choice((*(n for n, k in _known.items() if not _is_common(k)), *_UNWRITTEN))
    like = _known.get(name)
    kind, payload = (like.type, like.payload) if like is not None and rng.random() < 0.3 else _value(rng, like)
    parts.put(f"{_architecture(parts)}.{name}", kind, payload)


@mutation(2)
def rope_scaling(parts: Parts, rng: random.Random) -> None:
    scope = f"{_architecture(parts)}.rope.scaling"
    parts.put(f"{scope}.type", STRING, pack(STRING, rng.choice(("yarn", "linear", "longrope"))))
    for name in ("factor", "original_context_length", "attn_factor", "yarn_log_multiplier", "yarn_beta_fast"):
        if rng.random() < 0.5:
            parts.put(f"{scope}.{name}", *_value(rng, Key(name, 5 if name.endswith("length") else 6, b"")))


@mutation(2)
def per_layer(parts: Parts, rng: random.Random) -> None:
    """A value for each layer, of which some are odd."""
    own = [k for k in parts.keys if not _is_common(k) and k.type in (4, 5, 6, 7)]
    if not own:
        return
    found = rng.choice(own)
    (value,) = struct.unpack(f"<{CODES[found.type]}", found.payload)
    n = rng.choice((1, 2, 2, 2, 3, 6))
    items = [value if rng.random() < 0.6 else _scalar(found.type, rng) for _ in range(n)]
    found.payload, found.type = pack(ARRAY, (found.type, items)), ARRAY


@mutation(2)
def general(parts: Parts, rng: random.Random) -> None:
    name = rng.choice(("architecture", "alignment", "name", "file_type", "quantization_version", "type"))
    if name == "architecture" and rng.random() < 0.7:
        _rename_architecture(parts, rng.choice(sorted({_architecture(p) for p in _bases.values()})))
        return
    parts.put(f"general.{name}", *_value(rng, parts.key(f"general.{name}")))


@mutation(1)
def split(parts: Parts, rng: random.Random) -> None:
    for name in ("no", "count", "tensors.count"):
        if rng.random() < 0.6:
            parts.put(f"split.{name}", *_value(rng, Key("", 2, b"")))


@mutation(2)
def keys_themselves(parts: Parts, rng: random.Random) -> None:
    """One is missing, twice there, or named otherwise."""
    i = rng.randrange(len(parts.keys)) if parts.keys else 0
    if not parts.keys:
        return
    found, kind = parts.keys[i], rng.randrange(4)
    if kind in (0, 1):
        del parts.keys[i]
    elif kind == 2:
        parts.keys.append(Key(found.name, found.type, found.payload))
    else:
        found.name = rng.choice((found.name + "\x1b[1m", "", found.name[:-1], "x" * 70_000, "\u202e", "\udcff"))


@mutation(1)
def header(parts: Parts, rng: random.Random) -> None:
    number = rng.choice((0, 1, 2, 3, 4, len(parts.keys) + 1, len(parts.rows) - 1, 2**31, 2**63, 2**64 - 1))
    kind = rng.randrange(3)
    if kind == 0:
        parts.version = number & 0xFFFFFFFF
    elif kind == 1:
        parts.n_keys = number
    else:
        parts.n_rows = number


# Tokenizer


@mutation(4)
def tokenizer_key(parts: Parts, rng: random.Random) -> None:
    name = f"tokenizer.ggml.{rng.choice(_TOKENIZER)}"
    parts.put(name, *_value(rng, parts.key(name) or _known.get(name)))


@mutation(4)
def tokenizer_array(parts: Parts, rng: random.Random) -> None:
    """An array with one item changed, missing, or too many."""
    arrays = [k for k in parts.keys if k.name.startswith("tokenizer.") and k.type == ARRAY]
    if not arrays:
        return
    found = rng.choice(arrays)
    inner, items = _items(found.payload)
    at = rng.randrange(len(items)) if items else 0
    kind = rng.randrange(5)
    if kind == 0 and items:
        del items[at]
    elif kind == 1 and items:
        items.insert(at, rng.choice(items))
    elif kind == 2 and items:
        del items[rng.randrange(len(items)) :]
    else:
        new = rng.choice((_scalar(inner, rng), "a" * 10**6, "a b", " ", "\x1b[0m")) if inner == STRING else _scalar(
            inner, rng
        )  # fmt: skip
        items[at : at + 1] = [pack(inner, new)]
    found.payload = struct.pack("<IQ", inner, len(items)) + b"".join(items)


@mutation(1)
def fewer_tokens(parts: Parts, rng: random.Random) -> None:
    """The vocabulary is another than the embedding has rows for; every array of it fits the others."""
    tokens = parts.key("tokenizer.ggml.tokens")
    if tokens is None or tokens.type != ARRAY:
        return
    n = len(_items(tokens.payload)[1])
    wanted = max(1, n + rng.choice((-100, -3, -1, 1, 5, 1000)))
    for name in ("tokens", "token_type", "scores"):
        found = parts.key(f"tokenizer.ggml.{name}")
        if found is None or found.type != ARRAY or len(found.payload) == 12:
            continue
        inner, items = _items(found.payload)
        more = range(len(items), wanted)
        items = items[:wanted] + [pack(STRING, f"more{i}") if inner == STRING else items[-1] for i in more]
        found.payload = struct.pack("<IQ", inner, len(items)) + b"".join(items)


# Tensors


@mutation(4)
def tensor_shape(parts: Parts, rng: random.Random) -> None:
    """Of another shape than its data, or with data to it."""
    row = rng.choice(parts.rows)
    sizes = row.dims
    kind = rng.randrange(6)
    if kind == 0:
        rng.shuffle(sizes)
    elif kind == 1 and sizes:
        sizes[rng.randrange(len(sizes))] = rng.choice([i for i in _INTEGERS if i >= 0])
    elif kind == 2:
        sizes.insert(rng.randrange(len(sizes) + 1), rng.choice((0, 1, 2)))
    elif kind == 3 and sizes:
        del sizes[rng.randrange(len(sizes))]
    elif kind == 4:
        row.n_dims = rng.choice((0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1))
        if row.n_dims == 0:
            sizes.clear()  # a well-formed scalar
    if kind == 5 or rng.random() < 0.5:
        _resize(row, rng)


def _resize(row: Row, rng: random.Random) -> None:
    """One axis longer or shorter, and the data with it: only the model can tell that it is wrong."""
    if row.type not in (0, 1) or not row.dims:
        return
    axis = rng.randrange(len(row.dims))
    row.dims[axis] = rng.choice((0, 1, 2, row.dims[axis] - 1, row.dims[axis] + 1, row.dims[axis] * 2)) & 0xFFFF
    n = math.prod(row.dims) * (4 if row.type == 0 else 2)
    row.data = (row.data * (n // max(1, len(row.data)) + 1))[:n] if n < 10**7 else row.data


@mutation(3)
def alike_tensors(parts: Parts, rng: random.Random) -> None:
    """All layers' tensors of one name resized, as by metadata of another model."""
    name = rng.choice(parts.rows).name.rpartition(".")[0].rpartition(".")[2]
    state = rng.getrandbits(32)
    for row in parts.rows:
        if row.name.rpartition(".")[0].rpartition(".")[2] == name:
            _resize(row, random.Random(state))


@mutation(2)
def tensor_type(parts: Parts, rng: random.Random) -> None:
    """Another element type, and mostly as many bytes as that needs."""
    from hotshoe_core.tensors.dtypes import DType

    row = rng.choice(parts.rows)
    row.type = rng.choice((*range(45), 2**31, 2**32 - 1))
    dtype = next((d for d in DType if d.id == row.type), None)
    if dtype is not None and rng.random() < 0.8 and math.prod(row.dims) < 10**6:
        n = math.prod(row.dims) // dtype.block_size * dtype.block_bytes
        row.data = rng.randbytes(n) if rng.random() < 0.5 else bytes(n)


@mutation(2)
def tensor_place(parts: Parts, rng: random.Random) -> None:
    row = rng.choice(parts.rows)
    row.offset = rng.choice((0, 1, 32, 64, 31, 10**5, 2**31, 2**62, 2**63 - 32, 2**64 - 32))


@mutation(3)
def tensors_themselves(parts: Parts, rng: random.Random) -> None:
    i, kind = rng.randrange(len(parts.rows)), rng.randrange(6)
    row = parts.rows[i]
    if kind == 0 and len(parts.rows) > 1:
        del parts.rows[i]
    elif kind == 1:
        parts.rows.append(Row(row.name, list(row.dims), row.type, row.data))
    elif kind == 2:
        row.name = rng.choice(
            ("blk.9999.attn_q.weight", "\x1b[31mweight", "\u202e", "x" * 60_000, "blk.-1.x", "\udcff")
        )
    elif kind == 3:
        parts.rows[i].name, other = rng.choice(parts.rows).name, row.name
        next((r for r in parts.rows if r is not row and r.name == row.name), row).name = other
    elif kind == 4:
        names = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "output.weight")
        parts.rows.append(Row(rng.choice(names), list(row.dims), row.type, row.data))
    else:
        shape = [rng.choice((1, 2, 4, 8, 16))]
        names = ("rope_freqs.weight", "rope_factors_long.weight", "blk.0.attn_q.bias", "blk.1.exp_probs_b.bias")
        parts.rows.append(Row(rng.choice(names), shape, 0, np.ones(shape[0], np.float32).tobytes()))


@mutation(2)
def tensor_data(parts: Parts, rng: random.Random) -> None:
    """NaN, infinity, enormous and tiny numbers, or bytes."""
    row = rng.choice(parts.rows)
    if row.type == 0 and rng.random() < 0.8:
        values = np.frombuffer(row.data, np.float32).copy()
        if len(values):
            values[rng.randrange(len(values)) if rng.random() < 0.3 else slice(None)] = rng.choice(_FLOATS)
        row.data = values.tobytes()
    else:
        row.data = rng.randbytes(len(row.data))


def _architecture(parts: Parts) -> str:
    found = parts.key("general.architecture")
    if found is None or found.type != STRING:
        return "llama"
    return found.payload[8:].decode(errors="replace")


def _rename_architecture(parts: Parts, name: str) -> None:
    """As if the file were another family's, its keys included."""
    old = _architecture(parts)
    parts.put("general.architecture", STRING, pack(STRING, name))
    for key in parts.keys:
        if key.name.startswith(f"{old}."):
            key.name = name + key.name[len(old) :]


def _items(payload: bytes) -> tuple[int, list[bytes]]:
    """An array's element type and its items, as they are in the file."""
    inner, n = struct.unpack_from("<IQ", payload)
    items, at = [], 12
    for _ in range(n):
        size = 8 + struct.unpack_from("<Q", payload, at)[0] if inner == STRING else struct.calcsize(CODES[inner])
        items.append(payload[at : at + size])
        at += size
    return inner, items
