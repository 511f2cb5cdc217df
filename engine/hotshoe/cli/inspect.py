"""``hotshoe inspect PATH``: show what a GGUF file or a Hugging Face folder holds, as text or JSON. Reads no weights."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import table
from hotshoe.convert import find_converter, open_checkpoint, open_weights
from hotshoe.dialects import translate
from hotshoe.families import find_model
from hotshoe.load_request import open_file
from hotshoe.nn.binder import check_layers, unused
from hotshoe_core.errors import HotshoeError, ModelFileError
from hotshoe_core.errors.text import format_bytes, printable
from hotshoe_core.gguf import GGUFArray, GGUFFile, TensorInfo, ValueType

__all__ = ["add_parser", "describe", "describe_checkpoint", "render", "run"]

_SHOWN = 8  # items of a long array
_KEY_COLUMN = 44  # wide enough for nearly all keys; a longer one pushes its value to the right
_MIN_VALUE = 24


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``inspect``."""
    parser = commands.add_parser(
        "inspect",
        usage="%(prog)s [options] PATH",
        help="show what a GGUF file or a Hugging Face folder holds",
        description="Show the metadata and tensors of a GGUF file, or the config.json and tensors of a Hugging Face "
        "folder or a safetensors file; and the family that reads them. For a split model, name any of its files.",
    )
    parser.add_argument("path", metavar="PATH", help="a GGUF file, a Hugging Face folder, or a .safetensors file")
    parser.add_argument("--metadata", action="store_true", help="show only the metadata")
    parser.add_argument("--tensors", action="store_true", help="show only the tensors")
    parser.add_argument(
        "--match", metavar="GLOB", help="show only keys and tensors whose names match, such as 'blk.0.*'"
    )
    parser.add_argument("--full", action="store_true", help="show long arrays and texts in full")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; without --full, with the first items of long arrays"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report. Returns 1 if no name matches ``--match``."""
    both = args.metadata == args.tensors
    shown: dict[str, Any] = {
        "full": args.full,
        "match": args.match,
        "metadata": both or args.metadata,
        "tensors": both or args.tensors,
    }
    path = Path(args.path)
    if path.suffix == ".safetensors" or (path / "config.json").is_file() or (path / "modules.json").is_file():
        report = describe_checkpoint(path, **shown)
    else:
        with open_file(args.path, own_names=True) as file:
            report = describe(file, **shown)
    if args.json:
        out = json.dumps(report, indent=2, allow_nan=False)
    else:
        width = shutil.get_terminal_size().columns  # 80 without a terminal
        out = render(report, width=sys.maxsize if args.full else width)
    encoding = sys.stdout.encoding or "utf-8"
    print(out.encode(encoding, "backslashreplace").decode(encoding))
    if args.match is not None and not (report.get("metadata") or report.get("tensors")):
        print(f"no name matches {args.match!r}", file=sys.stderr)
        return 1
    return 0


def describe(
    file: GGUFFile, *, full: bool = False, match: str | None = None, metadata: bool = True, tensors: bool = True
) -> dict[str, Any]:
    """A report of JSON values. ``match`` selects keys and tensors by a glob; the totals are those of the whole file."""
    found = [_tensor(t) for t in file.tensors.values()]
    read, dialect, n_keys, n_tensors = translate(file)
    passed_over = _unused(read)
    without = {name for names in passed_over.values() for name in names}
    order = "big" if file.big_endian else "little"
    report: dict[str, Any] = {
        "format": f"GGUF version {file.version}, {order}-endian, alignment {file.alignment}",
        "files": [str(p) for p in file.paths],
        "version": file.version,
        "byte_order": order,
        "alignment": file.alignment,
        "architecture": file.metadata.get("general.architecture", None, str),
        **_family(lambda: _reader_of(read)),
        "dialect": dialect and f"{dialect}: it is read with {n_keys} keys changed, and {n_tensors} tensors renamed",
        "file_bytes": file.nbytes,
        "n_keys": len(file.metadata),
        **_totals([t for t in found if t["name"] not in without]),
        "n_tensors": len(found),
        "unused": [{"why": w} | _totals([t for t in found if t["name"] in n]) for w, n in passed_over.items()],
    }
    if metadata:
        keys = _matching(file.metadata, match)
        report["metadata"] = {k: _value(file.metadata[k], file.metadata.value_type(k), full) for k in keys}
        if dialect:
            changed = [k for k in read.metadata if file.metadata.get(k) != read.metadata[k]]
            report["read_as"] = {k: _value(read.metadata[k], read.metadata.value_type(k), full) for k in changed}
    if tensors:
        report["tensors"] = _selected(found, match)
    return report


def describe_checkpoint(
    path: Path, *, full: bool = False, match: str | None = None, metadata: bool = True, tensors: bool = True
) -> dict[str, Any]:
    """A report of JSON values on a Hugging Face folder, or on one safetensors file. Arguments as for ``describe``.

    Raises as ``hotshoe.convert.open_checkpoint`` does.
    """
    checkpoint = open_checkpoint(path) if path.is_dir() else open_weights(path)
    config, stored = checkpoint.config, list(checkpoint.tensors.values())
    files = sorted({t.path for t in stored}) or [path]
    found = [
        {"name": t.name, "type": t.dtype, "shape": list(t.shape), "offset": t.start, "bytes": t.nbytes}
        | {"file": files.index(t.path)}
        for t in stored
    ]
    report: dict[str, Any] = {
        "format": "safetensors",
        "files": [str(p) for p in files],
        "architecture": checkpoint.architecture,
        **_family(lambda: find_converter(checkpoint)),
        "file_bytes": sum(p.stat().st_size for p in files),
        "n_keys": len(config),
        **_totals(found),
    }
    if metadata:
        report["metadata"] = {key: _json_value(config[key], full) for key in _matching(config, match)}
    if tensors:
        report["tensors"] = _selected(found, match)
    return report


def _reader_of(file: GGUFFile) -> Any:
    """The class of the model, or of the first encoder, that reads a file. Raises UnknownArchitectureError."""
    if file.architecture != "clip":
        return find_model(file.metadata)
    from hotshoe.load_tower import media_of, tower_of

    return type(tower_of(file, media_of(file)[0]))


def _family(find: Callable[[], Any]) -> dict[str, str | None]:
    """The module of the model or the converter that reads the file; if it is missing, the reason and what to do."""
    try:
        return {"family": find().__module__, "family_error": None, "family_hint": None}
    except HotshoeError as error:
        return {"family": None, "family_error": error.message, "family_hint": error.hint}


def _unused(file: GGUFFile) -> dict[str, list[str]]:
    """The tensors that loading passes over, by the reason; empty if the file cannot be loaded."""
    try:
        model_class = find_model(file.metadata)
        config: Any = model_class.config_type().from_metadata(file.metadata)
        check_layers(file, config.n_layers)
        return unused(model_class(config), file.tensors)
    except HotshoeError:
        return {}


def render(report: dict[str, Any], width: int = 80) -> str:
    """The report as text. A value that would make its line longer than ``width`` is cut."""
    parts = [_summary(report)]
    if report["types"]:
        rows = [
            (
                printable(t["type"]),
                str(t["n_tensors"]),
                f"{t['n_parameters']:,}",
                format_bytes(t["bytes"]),
                f"{t['share']:.1%}",
            )
            for t in report["types"]
        ]
        parts.append("\n".join(table(("type", "tensors", "parameters", "size", "share"), rows, "<>>>>")))
    if metadata := report.get("metadata"):
        parts.append(_metadata(metadata, width))
    if read_as := report.get("read_as"):
        parts.append(f"The keys that are read under another name, or with another value:\n{_metadata(read_as, width)}")
    if tensors := report.get("tensors"):
        tensor_rows = [
            (
                printable(t["name"]),
                printable(t["type"]),
                " x ".join(map(str, t["shape"])) or "scalar",
                format_bytes(t["bytes"]),
            )
            for t in tensors
        ]
        parts.append("\n".join(table(("tensor", "type", "rows x columns", "size"), tensor_rows, "<<<>")))
    return "\n\n".join(parts)


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters of ``text``; what was cut becomes "..."."""
    return text if len(text) <= width else f"{text[: max(0, width - 3)]}..."


def human_count(n: int) -> str:
    """``494032768`` as ``"494.0 M"``."""
    value = float(n)
    for unit in ("", " K", " M", " B"):
        if value < 1000:
            return f"{value:.1f}{unit}" if unit else str(n)
        value /= 1000
    return f"{value:.1f} T"


def _matching(names: Iterable[str], match: str | None) -> list[str]:
    return [n for n in names if match is None or fnmatch.fnmatchcase(n, match)]


def _totals(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    n_parameters = sum(math.prod(t["shape"]) for t in found)
    weight_bytes = sum(t["bytes"] for t in found)
    return {
        "n_tensors": len(found),
        "n_parameters": n_parameters,
        "weight_bytes": weight_bytes,
        "bits_per_weight": round(8 * weight_bytes / n_parameters, 4) if n_parameters else None,
        "types": _by_type(found),
    }


def _by_type(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    total = sum(t["bytes"] for t in found) or 1
    groups: dict[str, list[dict[str, Any]]] = {}
    for t in found:
        groups.setdefault(t["type"], []).append(t)
    rows = []
    for name, members in groups.items():
        nbytes = sum(t["bytes"] for t in members)
        rows.append(
            {
                "type": name,
                "n_tensors": len(members),
                "n_parameters": sum(math.prod(t["shape"]) for t in members),
                "bytes": nbytes,
                "share": round(nbytes / total, 6),
            }
        )
    return sorted(rows, key=lambda r: -r["bytes"])


def _selected(found: Sequence[dict[str, Any]], match: str | None) -> list[dict[str, Any]]:
    names = set(_matching([t["name"] for t in found], match))
    return [t for t in found if t["name"] in names]


def _tensor(t: TensorInfo) -> dict[str, Any]:
    return {
        "name": t.name,
        "type": t.dtype.name,
        "shape": list(t.shape),
        "offset": t.offset,
        "bytes": t.nbytes,
        "file": t.shard,
    }


def _value(value: Any, kind: ValueType, full: bool) -> dict[str, Any]:
    if not isinstance(value, GGUFArray):
        return {"type": kind.label, "value": _plain(value, kind)}
    out: dict[str, Any] = {"type": kind.label, "items": value.type.label, "count": len(value)}
    if not full and len(value) > _SHOWN:
        out["abbreviated"] = True
    out["value"] = _items(value, len(value) if full else _SHOWN)
    return out


_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", type(None): "null"}


def _json_value(value: Any, full: bool) -> dict[str, Any]:
    value = json.loads(json.dumps(value), parse_constant=str)  # JSON has no NaN or infinity; Python reads them
    if not isinstance(value, list):
        return {"type": _JSON_TYPES[type(value)], "value": value}
    out = {"type": "array", "items": "json", "count": len(value), "value": value if full else value[:_SHOWN]}
    return out | ({} if full or len(value) <= _SHOWN else {"abbreviated": True})


def _items(array: GGUFArray, n: int) -> list[Any]:
    """The first ``n`` items, and of each nested array its first ``n``."""
    try:
        items = array[:n]
    except ModelFileError:  # invalid UTF-8: show the bytes, and the rest of the file
        items = [raw.decode(errors="backslashreplace") for raw in array.raw()[:n]]
    if array.type is ValueType.ARRAY:
        return [_items(a, n) for a in items]
    return [_plain(v, array.type) for v in items]


def _plain(value: Any, kind: ValueType) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)  # JSON has no NaN or infinity
    # The fewest digits that give the same float32: 1e-06, not 9.999999974752427e-07.
    return float(str(np.float32(value))) if kind is ValueType.FLOAT32 else value


def _summary(report: dict[str, Any]) -> str:
    files = report["files"]
    why_none = shorten(printable(report["family_hint"] or report["family_error"] or ""), 60)
    rows = {
        "format": report["format"],
        "architecture": printable(report["architecture"] or "not named"),
        "family": report["family"] or f"none; {why_none}",
        "file size": f"{format_bytes(report['file_bytes'])} ({report['file_bytes']:,} bytes)",
        "holds": f"{report['n_keys']} keys, {report['n_tensors'] or 'no'} tensors",
    }
    if report["n_parameters"]:
        rows["parameters"] = f"{human_count(report['n_parameters'])} ({report['n_parameters']:,})"
        rows["weights"] = f"{format_bytes(report['weight_bytes'])}, {report['bits_per_weight']:.2f} bits per weight"
    if report.get("dialect"):
        rows["dialect"] = report["dialect"]
    unused = [
        f"{u['n_tensors']} tensors, {format_bytes(u['weight_bytes'])}: {u['why']}" for u in report.get("unused", ())
    ]
    if unused:
        rows["not loaded"] = f"\n  {'':<13} ".join(unused)
    first = printable(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    return "\n".join([first, *(f"  {name:<13} {value}" for name, value in rows.items())])


def _metadata(metadata: dict[str, dict[str, Any]], width: int) -> str:
    rows = [(printable(k), _type_label(v), _text(v)) for k, v in metadata.items()]
    key_width = min(_KEY_COLUMN, max(len(r[0]) for r in rows))
    type_width = max(4, *(len(r[1]) for r in rows))
    lines = [f"{'key':<{key_width}}  {'type':<{type_width}}  value"]
    for name, label, value in rows:
        start = f"{name:<{key_width}}  {label:<{type_width}}  "
        lines.append((start + shorten(value, max(_MIN_VALUE, width - len(start)))).rstrip())
    return "\n".join(lines)


def _type_label(entry: dict[str, Any]) -> str:
    return f"{entry['items']}[{entry['count']}]" if "items" in entry else str(entry["type"])


def _text(entry: dict[str, Any]) -> str:
    value = entry["value"]
    if "items" not in entry:
        return _scalar(value)
    return _list(value, more=len(value) < entry["count"])


def _list(items: list[Any], *, more: bool = False) -> str:
    shown = [_list(i) if isinstance(i, list) else json.dumps(i, ensure_ascii=False) for i in items]
    return printable(f"[{', '.join([*shown, '...'] if more else shown)}]")


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return printable(value)
    return printable(
        json.dumps(value, ensure_ascii=False) if isinstance(value, (bool, dict, type(None))) else str(value)
    )
