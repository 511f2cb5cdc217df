"""Compare the time from a picture to the first token with llama.cpp's libmtmd, on the same pair of files.

    python benchmarks/pictures.py [--shape qwen2.5vl-3b|gemma3-4b] [--dtype f16|bf16|q8_0] [--sizes 1024x768,448x448]
                                  [--layers N] [--rounds 3] [--folder DIR] [--threads N] [--llama-python PYTHON]
                                  [--json]

The files have random weights: the text model as q4_k_m, the encoder in --dtype, from numbers of BF16, in which both
models were published. qwen2.5vl-3b: Qwen2.5-VL-3B, whose encoder keeps a picture's size; gemma3-4b: Gemma 3 4B, whose
encoder is SigLIP-400M at 896 x 896. Every picture is new, so nothing is found in a cache. Each engine has a process of
its own; they take turns (benchmarks/generate.py).

look      seconds from the picture's pixels to the first token, with the question "What is this?"
encode    seconds of that for the encoder: resizing, and the rows of embeddings
peak      the largest resident size of the process until then

llama.cpp runs with flash attention on and off; for each line the better one counts. Above 1.0, hotshoe is better.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import synthetic
from generate import Line, shown, take_turns
from peers import Job, MeasureError, settings
from synthetic import Kind, Shape

_DTYPES = {"f16": Kind.F16, "bf16": Kind.BF16, "q8_0": Kind.Q8_0}


@dataclass(frozen=True)
class Encoder:
    """The sizes of an encoder of pictures. ``special``: the tokens around its rows."""

    projector: str
    dim: int
    layers: int
    heads: int
    ffn: int
    image_size: int
    patch_size: int
    special: tuple[str, ...]


SHAPES = {
    "qwen2.5vl-3b": (
        Shape("qwen2vl", 2048, 36, 16, 2, 128, 11008, 151_936, "qwen2", 1e6, tied=True),
        Encoder(
            "qwen2.5vl_merger", 1280, 32, 16, 3420, 560, 14, ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
        ),
    ),
    "gemma3-4b": (
        Shape("gemma3", 2560, 34, 8, 4, 256, 10240, 262_208, "llama-bpe", 1e6, tied=True),
        Encoder("gemma3", 1152, 27, 16, 4304, 896, 14, ("<start_of_image>", "<end_of_image>", "<image_soft_token>")),
    ),
}


def main() -> int:
    args = arguments()
    table = sys.stderr if args.json else sys.stdout
    with tempfile.TemporaryDirectory() as scratch:
        text, encoder = make_pair(args.folder or Path(scratch), args.shape, args.dtype, args.layers)
        print(f"{args.shape}, encoder in {args.dtype}, {args.threads} threads", file=table, flush=True)
        lines = []
        for size, line in compare(text, encoder, args):
            if line.kind == "look":
                print(f"{size} pixels", file=table)
            lines.append({"size": size} | asdict(line) | {"summary": line.summary()})
            print("\n".join(shown(line)), file=table, flush=True)
    if args.json:
        print(json.dumps({"threads": args.threads, "lines": lines}, indent=2))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5vl-3b")
    parser.add_argument("--dtype", choices=_DTYPES, default="f16")
    parser.add_argument("--sizes", type=_sizes, default=_sizes("1024x768"), help="width x height in pixels")
    parser.add_argument("--layers", type=int, help="number of blocks of each file (default: the shape's)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the files here for the next run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-python", metavar="PYTHON")
    parser.add_argument("--json", action="store_true", help="for machines; the table goes to stderr")
    return parser.parse_args()


def _sizes(text: str) -> list[tuple[int, int]]:
    sizes = []
    for size in text.split(","):
        width, _, height = size.partition("x")
        if not (width.isdigit() and height.isdigit() and int(width) and int(height)):
            raise argparse.ArgumentTypeError(f"got {size!r}; expected width x height, such as 1024x768")
        sizes.append((int(width), int(height)))
    return sizes


def compare(text: Path, encoder: Path, args: argparse.Namespace) -> Iterator[tuple[str, Line]]:
    """The size of each picture with each line of its table, when it is finished."""
    job = Job(text, args.threads, n_ctx=4096, projector=encoder)
    # weights that are not repacked are slower in all measures of generate.py
    chosen = [s for s in settings(args.llama_python, None) if s.options.get("repack", True)]
    with ExitStack() as open_ones:
        opened = {s: open_ones.enter_context(closing(s.open(job))) for s in chosen}
        for width, height in args.sizes:
            for line in take_turns("", ["look", width, height], opened, args.rounds):
                yield f"{width} x {height}", line


def make_pair(folder: Path, name: str, dtype: str, layers: int | None = None) -> tuple[Path, Path]:
    """Write the files of a shape that are not in the folder yet; return the text model's and the encoder's."""
    shape, encoder = SHAPES[name]
    if layers:
        shape, encoder = replace(shape, layers=layers), replace(encoder, layers=layers)
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / f"{name}-{shape.layers}.gguf"
    mmproj = folder / f"mmproj-{name}-{encoder.layers}-{dtype}.gguf"
    if not text.exists():
        synthetic.make(text, "q4_k_m", replace(shape, special=encoder.special))
    if not mmproj.exists():
        make_encoder(mmproj, dtype, encoder, shape.dim)
    return text, mmproj


def make_encoder(path: Path, dtype: str, encoder: Encoder, width: int) -> None:
    """Write an encoder's file. width: elements of the rows that the text model reads."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(unfinished, "clip")
    writer.add_string("clip.projector_type", encoder.projector)
    writer.add_bool("clip.has_vision_encoder", True)
    numbers = {
        "block_count": encoder.layers,
        "embedding_length": encoder.dim,
        "feed_forward_length": encoder.ffn,
        "attention.head_count": encoder.heads,
        "image_size": encoder.image_size,
        "patch_size": encoder.patch_size,
        "projection_dim": width,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    if encoder.projector == "gemma3":
        writer.add_bool("clip.use_gelu", True)
    else:
        writer.add_bool("clip.use_silu", True)
        writer.add_uint32("clip.vision.n_wa_pattern", 8)
    rng = np.random.default_rng(0)
    for name, size in tensors(encoder, width):
        if len(size) == 1:
            writer.add_tensor(name, np.full(size, name.endswith(".weight"), np.float32))
            continue
        values = (rng.standard_normal(size, np.float32) * np.float32(size[-1] ** -0.5)).astype(np.float32)
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        kind = _DTYPES[dtype] if size[-1] % 32 == 0 else Kind.F16
        if "embd" in name:
            kind = Kind.F32
        elif "input_projection" in name:
            kind = Kind.F16
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def tensors(encoder: Encoder, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the shape of each tensor of an encoder, rows first."""
    dim, ffn = encoder.dim, encoder.ffn
    gated = encoder.projector != "gemma3"
    yield "v.patch_embd.weight", (dim, 3, encoder.patch_size, encoder.patch_size)
    if gated:
        yield "v.patch_embd.weight.1", (dim, 3, encoder.patch_size, encoder.patch_size)
    else:
        yield "v.patch_embd.bias", (dim,)
        yield "v.position_embd.weight", ((encoder.image_size // encoder.patch_size) ** 2, dim)
    matrices = {"attn_q": (dim, dim), "attn_k": (dim, dim), "attn_v": (dim, dim), "attn_out": (dim, dim)}
    matrices |= {"ffn_gate": (ffn, dim)} if gated else {}
    matrices |= {"ffn_up": (ffn, dim), "ffn_down": (dim, ffn)}
    norms = [f"v.blk.{i}.{name}" for i in range(encoder.layers) for name in ("ln1", "ln2")]
    for norm in [*norms, "v.post_ln"]:
        yield f"{norm}.weight", (dim,)
        if not gated:
            yield f"{norm}.bias", (dim,)
    for i in range(encoder.layers):
        for name, size in matrices.items():
            yield f"v.blk.{i}.{name}.weight", size
            yield f"v.blk.{i}.{name}.bias", size[:1]
    if gated:
        for name, size in {"mm.0": (4 * dim, 4 * dim), "mm.2": (width, 4 * dim)}.items():
            yield f"{name}.weight", size
            yield f"{name}.bias", size[:1]
    else:
        yield "mm.soft_emb_norm.weight", (dim,)
        yield "mm.input_projection.weight", (dim, width)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MeasureError as error:
        sys.exit(str(error))
