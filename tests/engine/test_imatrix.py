"""Importance matrices: what a model's matrices read, against transformers; and the two formats of llama.cpp."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as gguf_package
import numpy as np
import pytest

import hotshoe
from hotshoe.convert import convert
from hotshoe.quantize import Importance, ImportanceMatrix, QuantizeParams, collect_importance, quantize_model
from hotshoe_core.errors import ConversionError, InputTooLongError, InputTypeError, ModelFileError
from tests.support.as_f16 import as_f16
from tests.support.gguf_files import write_gguf
from tests.support.tiny_text import end_texts_with

TEXT = "the quick brown fox jumps over the lazy dog; hello world, hello models. " * 12
CHUNK = 40

Array = np.ndarray[Any, Any]


def collect(path: Path, device: str, **options: Any) -> ImportanceMatrix:
    with hotshoe.load_model(path, device) as model:
        return collect_importance(model, TEXT, chunk_size=CHUNK, **options)


def read_by_transformers(folder: Path, path: Path, device: str, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """What goes into modules, over all chunks: positional arguments as arrays, by the modules' names."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with hotshoe.load_model(path, device) as model:
        ids = model.tokenizer.encode(TEXT)
        begins = model.tokenizer.encode("")[:1]
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    found: dict[str, list[list[Array]]] = {}
    for name, module in reference.named_modules():
        if wanted(name):
            module.register_forward_pre_hook(
                lambda _, args, name=name: found.setdefault(name, []).append([a.numpy() for a in args])
            )
    with torch.no_grad():
        for start in range(0, len(ids) - CHUNK + 1, CHUNK):
            reference(torch.tensor([begins + ids[start + len(begins) : start + CHUNK]]))
    return {name: [np.concatenate(parts) for parts in zip(*calls)] for name, calls in found.items()}


def require_close(found: Importance, rows: Array, chosen: Array | None = None, n_experts: int = 1) -> None:
    """rows (n, columns), or (n, k, columns) with experts chosen for each, (n, k)."""
    rows = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
    picks = np.zeros(len(rows), int) if chosen is None else chosen.reshape(-1)
    counts = np.bincount(picks, minlength=n_experts)
    sums = np.stack([(rows[picks == e] ** 2).sum(axis=0) for e in range(n_experts)])
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_allclose(found.sums, sums, rtol=2e-2, atol=2e-3 * sums.max())


PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def test_a_decoder_against_transformers(folder: Callable[..., Path], gguf: Callable[..., Path], device: str) -> None:
    path, source = gguf("LlamaForCausalLM"), folder("LlamaForCausalLM")
    theirs = read_by_transformers(source, path, device, lambda name: name.endswith("_proj"))
    ours = collect(path, device)
    assert set(ours.weights) == {f"blk.{i}.{part}.weight" for i in range(3) for part in PARTS}
    assert (ours.n_chunks, ours.chunk_size) == (len(next(iter(theirs.values()))[0]), CHUNK)
    for i in range(3):
        for part, name in PARTS.items():
            require_close(ours.weights[f"blk.{i}.{part}.weight"], theirs[f"layers.{i}.{name}"][0])


def test_the_sums_of_llamacpp(tmp_path: Path) -> None:
    """Of the shipped model in f16, over the same text in the same chunks, as tools/record_imatrix.py recorded them."""
    pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")
    root = Path(__file__).parents[2]
    path = as_f16(root / "examples" / "models" / "kjv-3m-q8_0.gguf", tmp_path / "f16.gguf")
    text = (root / "tests" / "data" / "kjv-held-out.txt").read_text(encoding="utf-8")
    with hotshoe.load_model(path, "cpu", n_ctx=256) as model:
        ours = collect_importance(model, text, chunk_size=256, n_chunks=4)
    theirs = np.load(root / "tests" / "data" / "imatrix-llamacpp.npz")
    assert set(ours.weights) == set(theirs.files)
    for name, (sums, counts) in ours.weights.items():
        *expected, n_rows = theirs[name]
        assert counts == n_rows == 1024
        np.testing.assert_allclose(sums[0], expected, rtol=0, atol=1e-3 * max(expected), err_msg=name)


def test_experts_against_transformers(folder: Callable[..., Path], gguf: Callable[..., Path], device: str) -> None:
    """Each expert counts the rows that were sent to it; what goes into its down projection is computed here."""
    path, source = gguf("Qwen3MoeForCausalLM"), folder("Qwen3MoeForCausalLM")
    theirs = read_by_transformers(source, path, device, lambda name: name.endswith(("mlp.experts", "mlp.gate")))
    ours = collect(path, device)
    for i in range(2):
        rows, chosen = theirs[f"layers.{i}.mlp.experts"][:2]
        each = np.repeat(rows.reshape(-1, 1, rows.shape[-1]), chosen.shape[-1], axis=1)
        require_close(ours.weights[f"blk.{i}.ffn_gate_exps.weight"], each, chosen, 4)
        require_close(ours.weights[f"blk.{i}.ffn_up_exps.weight"], each, chosen, 4)
        require_close(ours.weights[f"blk.{i}.ffn_gate_inp.weight"], theirs[f"layers.{i}.mlp.gate"][0])
        weights = {t.name: t.data for t in gguf_package.GGUFReader(path).tensors}
        gate, up = (weights[f"blk.{i}.ffn_{part}_exps.weight"][chosen] for part in ("gate", "up"))  # (n, k, out, in)
        g, u = (np.einsum("nkoi,nki->nko", w, each) for w in (gate, up))
        require_close(ours.weights[f"blk.{i}.ffn_down_exps.weight"], g / (1 + np.exp(-g)) * u, chosen, 4)


def test_latent_attention_counts_each_head(gguf: Callable[..., Path], device: str) -> None:
    ours = collect(gguf("DeepseekV2ForCausalLM"), device)
    weight = ours.weights["blk.0.attn_k_b.weight"]
    assert weight.sums.shape == (1, 4 * 16)  # heads, and the elements of a key that RoPE does not rotate
    assert weight.counts == ours.n_chunks * CHUNK
    assert (weight.sums > 0).all()


def test_an_encoder_counts_every_token(minilm_gguf: Callable[[str], Path], device: str) -> None:
    ours = collect(minilm_gguf("f16"), device, n_chunks=2)
    assert len(ours.weights) == 6 * 6
    assert all(weight.counts == 2 * CHUNK for weight in ours.weights.values())
    assert ours.weights["blk.5.ffn_down.weight"].sums.shape == (1, 1536)


@pytest.mark.parametrize("architecture", ["Mamba2ForCausalLM", "Lfm2ForCausalLM", "Gemma3ForCausalLM"])
def test_every_kind_of_layer_is_collected(architecture: str, gguf: Callable[..., Path], device: str) -> None:
    """All matrices that products read; and once more gives the same."""
    path = gguf(architecture)
    ours = collect(path, device, n_chunks=2)
    with hotshoe.load_model(path, device) as model:
        again = collect_importance(model, TEXT, chunk_size=CHUNK, n_chunks=2)
        products = {
            name for name in model.weights
            if name.startswith("blk.") and name.endswith("weight") and len(model.weights[name].shape) > 1
        }  # fmt: skip
    assert set(ours.weights) == {n for n in products if not any(part in n for part in ("norm", "conv1d", "conv.conv"))}
    for name, weight in ours.weights.items():
        assert weight.counts == 2 * CHUNK, name
        np.testing.assert_array_equal(weight.sums, again.weights[name].sums)


def test_the_model_is_as_before(gguf: Callable[..., Path], device: str) -> None:
    with hotshoe.load_model(gguf("LlamaForCausalLM"), device) as model:
        before = model.logits(model.tokenizer.encode(TEXT[:60]))
        collect_importance(model, TEXT, chunk_size=CHUNK)
        np.testing.assert_array_equal(model.logits(model.tokenizer.encode(TEXT[:60])), before)
        assert model.engine.jobs == ()


@pytest.mark.parametrize(("pre", "begins"), [("spaces", True), ("qwen2", False)])
def test_chunks_begin_as_texts_do(pre: str, begins: bool, folder: Callable[..., Path], tmp_path: Path) -> None:
    """Each with the token that begins a text, if there is one; what ends a text stands at its end alone."""
    source = shutil.copytree(folder("LlamaForCausalLM", pre=pre), tmp_path / "hf")
    if not begins:
        end_texts_with(source, "<|end|>")
    path = convert(source, tmp_path / "m.gguf", "f32")
    with hotshoe.load_model(path, "reference") as model:
        seen: list[list[int]] = []
        model.engine.forget = lambda: None  # type: ignore[method-assign]
        extend = model.engine.extend

        def extended(sequences: Any, items: Any) -> Any:
            seen.extend(list(added) for added in items)
            return extend(sequences, items)

        model.engine.extend = extended  # type: ignore[method-assign]
        ids = model.tokenizer.encode(TEXT)
        collect_importance(model, TEXT, chunk_size=CHUNK)
    expected = [ids[i : i + CHUNK] for i in range(0, len(ids) - CHUNK + 1, CHUNK)]
    assert seen == ([[ids[0], *chunk[1:]] for chunk in expected] if begins else expected)
    assert len(seen) > 2


def test_invalid_texts(gguf: Callable[..., Path]) -> None:
    with hotshoe.load_model(gguf("LlamaForCausalLM"), "reference") as model:
        with pytest.raises(InputTooLongError, match=r"the text has \d+ tokens; expected at least 200"):
            collect_importance(model, "short", chunk_size=200)
        with pytest.raises(InputTooLongError, match=r"but the context holds 256(.|\n)*chunk_size=256"):
            collect_importance(model, TEXT, chunk_size=257)
        with pytest.raises(InputTypeError, match="text is 3"):
            collect_importance(model, 3)  # type: ignore[arg-type]
    with hotshoe.load_model(gguf("LlamaForCausalLM"), "reference", n_batch=16) as model:
        with pytest.raises(InputTooLongError, match=r"a graph takes at most 16(.|\n)*n_batch=40"):
            collect_importance(model, TEXT, chunk_size=40)


# --- files


@pytest.fixture
def matrix() -> ImportanceMatrix:
    rng = np.random.default_rng(0)
    weights = {
        "blk.1.ffn_up_exps.weight": Importance(rng.random((3, 8), np.float32), np.array([2, 0, 5], np.float32)),
        "blk.0.attn_q.weight": Importance(rng.random((1, 8), np.float32), np.array([7], np.float32)),
        "blk.0.attn_k_b.weight": Importance(rng.random((1, 24), np.float32), np.array([7], np.float32)),
    }
    return ImportanceMatrix(weights, ("a text.txt",), 3, 512)


def test_a_file_that_is_written_can_be_read(matrix: ImportanceMatrix, tmp_path: Path) -> None:
    matrix.write(tmp_path / "m.gguf")
    found = ImportanceMatrix.read(tmp_path / "m.gguf")
    assert (found.datasets, found.n_chunks, found.chunk_size) == (("a text.txt",), 3, 512)
    assert found.path == tmp_path / "m.gguf"
    assert found.weights.keys() == matrix.weights.keys()
    for name, (sums, counts) in matrix.weights.items():
        np.testing.assert_array_equal(found.weights[name].sums, sums)
        np.testing.assert_array_equal(found.weights[name].counts, counts)


def test_the_layout_is_llamacpps(matrix: ImportanceMatrix, tmp_path: Path) -> None:
    """Keys, order and shapes as its save_imatrix writes them, by the gguf package's reader."""
    matrix.write(tmp_path / "m.gguf")
    reader = gguf_package.GGUFReader(tmp_path / "m.gguf")
    keys = [key for key in reader.fields if not key.startswith("GGUF.")]
    assert keys == ["general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"]
    assert [(t.name, t.shape.tolist(), t.tensor_type.name) for t in reader.tensors] == [
        ("blk.0.attn_k_b.weight.in_sum2", [24], "F32"),
        ("blk.0.attn_k_b.weight.counts", [1], "F32"),
        ("blk.0.attn_q.weight.in_sum2", [8], "F32"),
        ("blk.0.attn_q.weight.counts", [1], "F32"),
        ("blk.1.ffn_up_exps.weight.in_sum2", [8, 3], "F32"),
        ("blk.1.ffn_up_exps.weight.counts", [1, 3], "F32"),
    ]


def older(entries: dict[str, tuple[int, Array]], tail: bytes = b"") -> bytes:
    raw = struct.pack("<i", len(entries))
    for name, (n_calls, sums) in entries.items():
        raw += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", n_calls, sums.size)
        raw += sums.astype("<f4").tobytes()
    return raw + tail


def test_the_older_format(tmp_path: Path) -> None:
    sums = np.arange(1, 9, dtype=np.float32)
    tail = struct.pack("<ii", 5, 8) + b"text.txt"
    (tmp_path / "m.dat").write_bytes(older({"blk.0.attn_q.weight": (4, sums), "blk.0.attn_k.weight": (0, sums)}, tail))
    found = ImportanceMatrix.read(tmp_path / "m.dat")
    assert (found.n_chunks, found.datasets) == (5, ("text.txt",))
    np.testing.assert_array_equal(found.weights["blk.0.attn_q.weight"].mean, sums / 4)
    np.testing.assert_array_equal(found.weights["blk.0.attn_k.weight"].mean, sums)
    (tmp_path / "old.dat").write_bytes(older({"a": (2, sums)}))  # of before it named the text
    assert ImportanceMatrix.read(tmp_path / "old.dat").n_chunks == 0


def test_an_expert_that_saw_nothing_counts_all_columns_alike(matrix: ImportanceMatrix) -> None:
    sums, mean = matrix.weights["blk.1.ffn_up_exps.weight"].sums, matrix.weights["blk.1.ffn_up_exps.weight"].mean
    np.testing.assert_array_equal(mean.reshape(3, 8), [sums[0] / 2, np.ones(8), sums[2] / 5])


def test_a_damaged_file_of_the_older_format(tmp_path: Path) -> None:
    raw = older({"blk.0.attn_q.weight": (4, np.ones(8)), "b": (1, np.ones(4))}, struct.pack("<ii", 5, 3) + b"abc")
    whole = {len(raw), len(raw) - 11, len(raw) - 7}  # with both, without both, without the second
    for n in range(len(raw)):
        (tmp_path / "m.dat").write_bytes(raw[:n])
        if n in whole:
            ImportanceMatrix.read(tmp_path / "m.dat")
        else:
            with pytest.raises(ModelFileError, match="this is not an importance matrix"):
                ImportanceMatrix.read(tmp_path / "m.dat")
    for at in range(0, len(raw), 4):
        (tmp_path / "m.dat").write_bytes(raw[:at] + b"\xff\xff\xff\x7f" + raw[at + 4 :])
        with contextlib.suppress(ModelFileError):  # a number of calls may be anything
            ImportanceMatrix.read(tmp_path / "m.dat")


def _replaced(arrays: dict[str, Any], **keys: Any) -> Callable[[Path], Path]:
    return lambda path: write_gguf(path, keys, arrays)


ONES = np.ones(8, np.float32)
BAD_FILES: list[tuple[Callable[[Path], object], str]] = [
    (_replaced({"blk.0.attn_q.weight": ONES}), "this is a model, not an importance matrix"),
    (_replaced({"a.in_sum2": ONES}), "the tensor is missing; expected F32"),
    (_replaced({"a.in_sum2": ONES.astype("f2"), "a.counts": ONES[:1]}), "the tensor is F16; expected F32"),
    (_replaced({"a.in_sum2": ONES, "a.counts": ONES[:3]}), "8 sums and 3 counts"),
    (_replaced({"a.in_sum2": ONES * np.nan, "a.counts": ONES[:1]}), "negative or not numbers"),
    (_replaced({"a.in_sum2": -ONES, "a.counts": ONES[:1]}), "negative or not numbers"),
    (lambda path: path.write_bytes(b"<!doctype html>"), "this is not an importance matrix"),
    (lambda path: path.write_bytes(b""), "this is not an importance matrix"),
    (lambda path: None, "No such file"),
]


@pytest.mark.parametrize(("make", "message"), BAD_FILES, ids=[m for _, m in BAD_FILES])
def test_files_that_are_not_an_importance_matrix(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    make(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match=rf"m.gguf(.|\n)*{message}(.|\n)*hint: make one: hotshoe imatrix"):
        ImportanceMatrix.read(tmp_path / "m.gguf")


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's devices")
def test_pipes_and_devices_are_neither_read_nor_replaced(matrix: ImportanceMatrix, tmp_path: Path) -> None:
    """A device without an end took all memory."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ModelFileError, match="it is a pipe, socket, device or folder; expected a file"):
            ImportanceMatrix.read(path)
    with pytest.raises(ConversionError, match="is a device, pipe or socket"):
        matrix.write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    matrix.write(str(tmp_path / "new.gguf"))
    assert ImportanceMatrix.read(str(tmp_path / "new.gguf")).weights.keys() == matrix.weights.keys()


def test_a_file_quantized_with_one_says_so(gguf: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")
    model = gguf("LlamaForCausalLM", hidden_size=256, intermediate_size=512)
    collect(model, "cpu", dataset="text.txt").write(tmp_path / "m.gguf")
    params = QuantizeParams(imatrix=tmp_path / "m.gguf")
    path = quantize_model(model, tmp_path / "q.gguf", "q3_k_m", params)
    reader = gguf_package.GGUFReader(path)
    found = {key: reader.fields[key].contents() for key in reader.fields if key.startswith("quantize.")}
    assert found == {
        "quantize.imatrix.file": str(tmp_path / "m.gguf"),
        "quantize.imatrix.dataset": "text.txt",
        "quantize.imatrix.entries_count": 21,
        "quantize.imatrix.chunks_count": ImportanceMatrix.read(tmp_path / "m.gguf").n_chunks,
    }
    assert {t.tensor_type.name for t in reader.tensors} == {"F32", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
    with hotshoe.load_model(path, "cpu") as loaded:
        assert np.isfinite(loaded.logits(loaded.tokenizer.encode(TEXT[:40]))).all()
