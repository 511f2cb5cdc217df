"""`hotshoe compare` with traces and activations of which something is changed: a verdict, or an error in words."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import struct
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import hotshoe
from hotshoe.cli import main
from hotshoe_core.inspect.trace import trace
from tests.fuzz.fault import Fault

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS = (
    *(1000021, 1000015, 1000181),  # nested too deeply; an infinite layer; a mean of 400 digits: untyped
    *(1000126, 1000008),  # the header of an array lies: untyped
)
SHARE = 60
DATA = Path(__file__).parents[1] / "data"

_folder: list[tempfile.TemporaryDirectory[str]] = []
_lines: list[list[dict[str, Any]]] = []  # of each recorded trace: the header and the nodes
_arrays: dict[str, np.ndarray[Any, Any]] = {}

_ODD = (
    *(None, True, False, 0, -1, 1, 8, 2**31, 2**63, 2**64, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "0", "nan", "-inf", "x", "tokens", "blk.0.attn_q", "\x1b[2J", "\u202e", "\ud800", "a\nb", "\0", "x" * 3000),
    *([], {}, [[]], [None], [0] * 9, {"": 0}, ["nan"] * 8, [1e308] * 8, [-1, 2], [0], [2**40, 2**40]),
)
_NAMES = ("min", "max", "mean", "std", "rms", "n_nan", "n_inf", "first", "sketch", "checksum", "shape", "sources")
_HEADERS = (b"PK", b"PK\3\4", b"", b"\0" * 100, b"GGUF", b"[" * 100_000, b"\xff\xfe{}", b"null\n", b"{}\n", b"1\n2\n")


def setup() -> None:
    _folder[:] = [tempfile.TemporaryDirectory(prefix="fuzz-traces-")]
    _lines.clear()
    for name in ("LlamaForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"):
        path = Path(_folder[0].name) / f"{len(_lines)}.jsonl"
        model = hotshoe.load_model(DATA / "llamacpp" / f"{name}.gguf", "reference")
        with model, trace(path, about={**model.about, "text": "the"}):
            model.logits([3, 4, len(_lines) + 5])
        _lines.append([json.loads(line) for line in path.read_text().splitlines()])
    rng = np.random.default_rng(0)
    for node in _lines[0][1:]:
        if node["statistics"] is not None and len(_arrays) < 20:
            _arrays[node["name"]] = rng.standard_normal(node["shape"]).astype(np.float32)


def run(seed: int) -> str:
    rng = random.Random(seed)
    folder = Path(_folder[0].name)
    kinds = [rng.choice(("jsonl", "jsonl", "npz", "activations", "bytes")) for _ in range(2)]
    sound = rng.randrange(3)  # this one of the two is not changed
    paths = [_make(folder / f"{name}.jsonl", kind, rng, i != sound) for i, (name, kind) in enumerate(zip("ab", kinds))]
    options = ["--full"] if rng.random() < 0.3 else []
    if rng.random() < 0.3:
        names = {rng.choice((*_arrays, "x")): rng.choice((*_arrays, "x", *_ODD)) for _ in range(rng.randrange(4))}
        text = json.dumps(rng.choice((names, names, names, rng.choice(_ODD))))
        (folder / "map.json").write_text(text if rng.random() < 0.8 else _cut(text.encode(), rng).decode("latin-1"))
        options += ["--map", str(folder / "map.json")]
    if rng.random() < 0.2:
        options += ["--tolerance", rng.choice(("0", "1e400", "nan", "-1", "1e-300", "100"))]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), np.errstate(all="ignore"):
        code = main(["compare", *map(str, paths), *options])
    text = out.getvalue() + err.getvalue()
    odd = next((c for c in text if not c.isprintable() and c != "\n"), None)
    if odd is not None:
        raise Fault("escape", f"{odd!r} in {text[:200]!r}")
    if code == 2 and (not err.getvalue().strip() or len(err.getvalue()) > 20_000):
        raise Fault("untyped", f"exit code 2 with a message of {len(err.getvalue())} characters")
    if code not in (0, 1, 2):
        raise Fault("different", f"exit code {code}")
    return "refused" if code == 2 else "answered"


def _make(path: Path, kind: str, rng: random.Random, changed: bool) -> Path:
    lines = copy.deepcopy(rng.choice(_lines))
    if changed and kind in ("jsonl", "npz"):
        for _ in range(rng.choice((1, 1, 2, 5))):
            _change(lines, rng)
    raw = "\n".join(json.dumps(line) for line in lines).encode()
    if kind in ("npz", "activations"):
        raw = _zip(raw if kind == "npz" else None, rng, changed)
    elif kind == "bytes" and changed:
        raw = rng.choice(_HEADERS) + (raw if rng.random() < 0.5 else b"")
    if changed and rng.random() < 0.2:
        raw = _cut(raw, rng)
    path.write_bytes(raw)
    return path


def _change(lines: list[Any], rng: random.Random) -> None:
    """Replace, remove or add a value in the header or in a node; or lines themselves."""
    kind = rng.randrange(8)
    at = rng.randrange(len(lines)) if lines else 0
    if not lines or kind == 0:
        lines[at:] = lines[at + 1 :] if rng.random() < 0.5 else []
    elif kind == 1:
        lines.insert(at, copy.deepcopy(rng.choice((*lines, rng.choice(_ODD)))))
    elif kind == 2:
        rng.shuffle(lines)
    else:
        place = lines[at]
        while isinstance(place, dict) and rng.random() < 0.6:
            inner = [value for value in place.values() if isinstance(value, dict)]
            if not inner:
                break
            place = rng.choice(inner)
        if not isinstance(place, dict) or not place:
            lines[at] = rng.choice(_ODD)
        elif rng.random() < 0.2:
            del place[rng.choice(list(place))]
        else:
            place[rng.choice((*place, *_NAMES))] = copy.deepcopy(rng.choice(_ODD))


def _zip(lines: bytes | None, rng: random.Random, changed: bool) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, array in _arrays.items():
            if changed and rng.random() < 0.15:
                name, raw = rng.choice((name, name + "\x1b[2J", "", "../x", "ä" * 300)), _npy(_other(array, rng), rng)
            elif rng.random() < 0.1:
                continue
            else:
                raw = _npy(array, None)
            with warnings.catch_warnings(action="ignore"):  # of a second array of one name
                archive.writestr(f"{name}.npy", raw)
        if lines is not None:
            archive.writestr("hotshoe-trace.jsonl", lines)
    return file.getvalue()


def _other(array: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    values = array.copy()
    values.reshape(-1)[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, 3e38, 0))
    return rng.choice(
        (
            *(values, array * np.nan, array[:0], array[:1], array.astype(">f8"), array.astype(np.float16), array[None]),
            *(array.astype(np.complex64), array.astype("U3"), array > 0, np.float32(1), np.zeros((3,) * 12, np.int8)),
            *(np.array(["x", None], object), np.zeros(3, "f4,i4"), np.zeros(2, "M8[s]"), array.astype(np.uint64)),
            *(np.asfortranarray(array), np.zeros((0, 2**40)), array.astype(np.longdouble)),
        )
    )


def _npy(array: Any, rng: random.Random | None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=True)
    raw = file.getvalue()
    if rng is not None and rng.random() < 0.4:
        shape = str(rng.choice(((2**40,), (2**62, 8), (-1,), (10**6, 10**6), (), (3, -3), "x", (2**64,), (True,))))
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()
        raw = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + raw[-64:]
    return raw


def _cut(raw: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return raw[: rng.randrange(len(raw) + 1)]
    damaged = bytearray(raw)
    for _ in range(rng.choice((1, 1, 4, 40)) if raw else 0):
        damaged[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(damaged)
