"""Quantizing GGUF files: what is kept, what is refused, and that nothing half-made stays behind."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as gguf_package
import numpy as np
import pytest

import hotshoe
import hotshoe_loader
from hotshoe.convert import convert
from hotshoe.quantize import FILE_TYPES, Importance, ImportanceMatrix, QuantizeParams, plan_quantization, quantize_model
from hotshoe_core.errors import ConversionError, ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.support.as_f16 import as_f16
from tests.support.converted import tensors
from tests.support.gguf_files import gguf_bytes, key, put, tensor, text, write_gguf
from tests.support.quantized import make, numbers

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

KJV = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
LLAMA = {"llama.block_count": 1, "llama.attention.head_count": 2}


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return make("dense-f16", tmp_path / "in.gguf")


def one(path: Path, values: np.ndarray[Any, Any], name: str = "blk.0.attn_q.weight") -> Path:
    return write_gguf(path, LLAMA, {"output.weight": numbers(512, 1).reshape(2, 256), name: values})


# --- what is written


def test_metadata_stay_byte_for_byte_and_in_order(dense: Path, tmp_path: Path) -> None:
    made = {"general.file_type", "general.quantization_version"}
    with GGUFFile(dense) as old, GGUFFile(quantize_model(dense, tmp_path / "out.gguf")) as new:
        assert [k for k in new.metadata if k not in made] == [k for k in old.metadata if k not in made]
        for key in old.metadata.keys() - made:
            assert bytes(new.entry(key)) == bytes(old.entry(key)), key
        assert new.metadata["general.file_type"] == 15
        assert new.metadata["general.quantization_version"] == 2


def test_the_numbers_are_near_and_a_model_still_writes(tmp_path: Path) -> None:
    """King James verse in 4 bits: the perplexity of held-out text rises by less than a tenth."""
    held_out = (Path(__file__).parents[1] / "data" / "kjv-held-out.txt").read_text(encoding="utf-8")[:1500]
    half = as_f16(KJV, tmp_path / "f16.gguf")
    perplexities = []
    for path in (half, quantize_model(half, tmp_path / "q4.gguf", "q4_k_m")):
        with hotshoe.load_model(path) as model:
            perplexities.append(model.score(held_out).perplexity)
    assert perplexities[0] < perplexities[1] * 1.01
    assert perplexities[1] < 1.1 * perplexities[0]
    assert (tmp_path / "q4.gguf").stat().st_size < 0.4 * half.stat().st_size


@pytest.mark.parametrize("kind", ["q4_k_m", "q8_0", "bf16"])
def test_pieces_and_threads_do_not_matter(kind: str, tmp_path: Path) -> None:
    """Three experts of more than one piece each, whose importance differs; against all rows of each at once."""
    values = numbers(3 * 2100 * 256, 5).reshape(3, 2100, 256)
    source = one(tmp_path / "in.gguf", values, "blk.0.ffn_up_exps.weight")
    weights = {"blk.0.ffn_up_exps.weight": Importance(numbers(768, 6).reshape(3, 256) ** 2 + 0.01, np.ones(3, "f4"))}
    params = QuantizeParams(imatrix=ImportanceMatrix(weights))
    found = [
        quantize_model(source, tmp_path / f"{n}.gguf", kind, params, n_threads=n).read_bytes() for n in (1, 3, None)
    ]
    assert found[0] == found[1] == found[2]
    with hotshoe.load_all().open("cpu") as backend, GGUFFile(tmp_path / "1.gguf") as file:
        dtype = file.tensors["blk.0.ffn_up_exps.weight"].dtype
        rows = [
            backend.quantize_rows(matrix, dtype, weights["blk.0.ffn_up_exps.weight"].sums[i])
            for i, matrix in enumerate(values)
        ]
        np.testing.assert_array_equal(file.data("blk.0.ffn_up_exps.weight"), np.concatenate(rows).reshape(-1))


def test_a_split_model_becomes_one_file(tmp_path: Path) -> None:
    whole = make("dense-f16", tmp_path / "whole.gguf")
    parts = tmp_path / "m.gguf"
    with GGUFFile(whole) as file:
        arrays = {name: np.array(file.array(name)) for name in file.tensors}
        keys = {k: v for k, v in file.metadata.items() if isinstance(v, (int, str)) and k != "general.architecture"}
    write_gguf(parts, keys, arrays, arch="qwen2", split_max_tensors=20)
    first = next(iter(sorted(tmp_path.glob("m-00001-of-*.gguf"))))
    with (
        GGUFFile(quantize_model(first, tmp_path / "a.gguf")) as ours,
        GGUFFile(quantize_model(whole, tmp_path / "b.gguf")) as plain,
    ):
        assert not [key for key in ours.metadata if key.startswith("split.")]
        assert list(ours.tensors) == list(plain.tensors)
        assert all(bytes(ours.data(name)) == bytes(plain.data(name)) for name in ours.tensors)


def test_progress_goes_from_zero_to_one(dense: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    quantize_model(dense, tmp_path / "out.gguf", progress=seen.append)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert len(seen) > 50


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("LlamaForCausalLM", {"hidden_size": 256, "intermediate_size": 512}),
        ("MixtralForCausalLM", {"hidden_size": 256, "intermediate_size": 256, "num_local_experts": 8}),
        ("Qwen3ForCausalLM", {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": True}),
        ("Mamba2ForCausalLM", {"hidden_size": 256, "num_heads": 32}),
    ],
)
@pytest.mark.parametrize("kind", ["q4_k_m", "q3_k_s"])
def test_converting_to_a_mix_is_converting_and_then_quantizing(
    architecture: str, changes: dict[str, Any], kind: str, folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = folder(architecture, **changes)
    two = quantize_model(convert(source, tmp_path / "f32.gguf", "f32"), tmp_path / "two.gguf", kind)
    one_go = convert(source, tmp_path / "one.gguf", kind)
    with GGUFFile(one_go) as a, GGUFFile(two) as b:
        assert a.metadata["general.file_type"] == b.metadata["general.file_type"] == FILE_TYPES[kind].number
        assert {n: t.dtype for n, t in a.tensors.items()} == {n: t.dtype for n, t in b.tensors.items()}
        assert all(bytes(a.data(name)) == bytes(b.data(name)) for name in a.tensors)
    assert {"Q4_K", "Q3_K"} & {kind for kind, _ in tensors(one_go).values()}


# --- what is refused


def test_a_quantized_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConversionError,
        match=r"27 of its tensors, such as .*, are q8_0(.|\n)*allow_requantize=True",
    ):
        quantize_model(KJV, tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []
    path = quantize_model(KJV, tmp_path / "out.gguf", params=QuantizeParams(allow_requantize=True))
    with GGUFFile(path) as file:
        assert file.tensors["blk.1.ffn_up.weight"].dtype.name == "Q4_K"
    quantize_model(KJV, tmp_path / "same.gguf", "q8_0")  # nothing would change


@pytest.mark.parametrize("kind", ["q4_k_m", "q8_0", "f16", "f32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "blk.0.attn_norm.weight"])
def test_weights_that_are_not_numbers(kind: str, value: float, name: str, tmp_path: Path) -> None:
    values = numbers(1024, 0).reshape(4, 256)
    values[3, 200] = value
    source = one(tmp_path / "in.gguf", values if "norm" not in name else values[3], name)
    with pytest.raises(ConversionError, match=rf"tensor {name} holds values that are not numbers"):
        quantize_model(source, tmp_path / "out.gguf", kind)
    assert [p.name for p in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize(("kind", "fits"), [("q4_0", False), ("q4_k_m", False), ("f16", False), ("bf16", True)])
def test_weights_too_large_for_a_scale(kind: str, fits: bool, tmp_path: Path) -> None:
    values = numbers(1024, 0).reshape(4, 256)
    values[1, 7] = 1e9
    source = one(tmp_path / "in.gguf", values)
    if fits:
        quantize_model(source, tmp_path / "out.gguf", kind)
    else:
        with pytest.raises(
            ConversionError, match=r"attn_q.weight has the value 1e\+09(.|\n)*--tensor-type blk.0.attn_q=bf16"
        ):
            quantize_model(source, tmp_path / "out.gguf", kind)


REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"file_type": "q4_km"}, r"unknown file type 'q4_km'; expected one of f32(.|\n)*did you mean 'q4_k_m'"),
    (
        {"file_type": "zzz"},
        r"unknown file type 'zzz'; expected one of f32[^\n]*\Z",
    ),  # no hint: it would be the same list
    ({"file_type": 15}, r"the file type is 15 \(int\)"),
    ({"params": {"output_type": "q9"}}, r"output type: unknown tensor type 'q9'"),
    ({"params": {"token_embedding_type": "q8_1"}}, r"token embedding type: unknown tensor type 'q8_1'; (.|\n)*'q8_0'"),
    ({"params": {"tensor_types": (("attn_v", "x"),)}}, r"tensor type 'attn_v': unknown tensor type 'x'"),
    ({"params": {"tensor_types": (("(", "q8_0"),)}}, r"'\(' is not a regular expression"),
    ({"params": {"tensor_types": ("attn_v=q8_0",)}}, r"expected pairs of a pattern and a type"),
    ({"params": {"tensor_types": (("attn_w", "q8_0"),)}}, r"matches no tensor(.|\n)*did you mean 'attn_"),
    ({"params": {"tensor_types": (("attn_norm", "q8_0"),)}}, r"matches no tensor that is quantized"),
    ({"params": {"pure": 1}}, "pure is 1"),
    ({"params": {"leave_output": True, "output_type": "q8_0"}}, "expected one of them"),
    ({"n_threads": 0}, "n_threads is 0"),
]


@pytest.mark.parametrize(("request_", "message"), REQUESTS, ids=[m for _, m in REQUESTS])
def test_requests_that_cannot_be_met(request_: dict[str, Any], message: str, dense: Path, tmp_path: Path) -> None:
    def ask(params: dict[str, Any] | None = None, **options: Any) -> None:
        quantize_model(dense, tmp_path / "out.gguf", params=QuantizeParams(**params or {}), **options)

    with pytest.raises(ConversionError, match=message):
        ask(**request_)
    assert not (tmp_path / "out.gguf").exists()


def test_a_type_that_was_asked_for_is_not_replaced(tmp_path: Path) -> None:
    source = make("odd-rows", tmp_path / "in.gguf")
    with pytest.raises(ConversionError, match=r"output.weight cannot be q6_k: its rows have 288 elements"):
        quantize_model(source, tmp_path / "out.gguf", params=QuantizeParams(output_type="q6_k"))


def test_options_for_an_output_that_the_model_lacks(tmp_path: Path) -> None:
    source = make("grouped-tied-bf16", tmp_path / "in.gguf")
    path = quantize_model(source, tmp_path / "out.gguf", params=QuantizeParams(output_type="q5_k"))
    assert tensors(path)["token_embd.weight"][0] == "Q5_K"
    both = QuantizeParams(output_type="q5_k", token_embedding_type="q8_0")
    with pytest.raises(ConversionError, match=r"has no output.weight(.|\n)*token_embedding_type alone"):
        quantize_model(source, tmp_path / "x.gguf", params=both)
    with pytest.raises(ConversionError, match=r"its token embedding is the output matrix(.|\n)*token_embedding_type"):
        quantize_model(source, tmp_path / "x.gguf", params=QuantizeParams(leave_output=True))


def test_where_it_may_be_written(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="is the file to read"):
        quantize_model(dense, tmp_path / "." / "in.gguf", overwrite=True)
    (tmp_path / "link.gguf").hardlink_to(dense)
    with pytest.raises(ConversionError, match="is the file to read"):
        quantize_model(dense, tmp_path / "link.gguf", overwrite=True)
    with pytest.raises(ConversionError, match=r"exists already(.|\n)*overwrite=True"):
        quantize_model(dense, tmp_path / "link.gguf")
    with pytest.raises(ConversionError, match="is a folder"):
        quantize_model(dense, tmp_path)
    with pytest.raises(ConversionError, match="does not exist"):
        quantize_model(dense, tmp_path / "nowhere" / "out.gguf")
    with pytest.raises(ModelFileError, match=r"is a folder(.|\n)*hotshoe convert"):
        quantize_model(tmp_path, tmp_path / "out.gguf")


def test_bfloat16_that_is_not_a_number_and_stays_bfloat16(tmp_path: Path) -> None:
    values = numbers(1024, 0).reshape(4, 256)
    values[2, 3] = np.inf
    raw = gguf_package.quants.quantize(values, gguf_package.GGMLQuantizationType.BF16)
    weights = {"blk.0.attn_q.weight": (raw, gguf_package.GGMLQuantizationType.BF16)}
    source = write_gguf(tmp_path / "in.gguf", LLAMA, weights)
    with pytest.raises(ConversionError, match=r"blk.0.attn_q.weight holds values that are not numbers"):
        quantize_model(source, tmp_path / "out.gguf", "bf16")


def test_an_empty_tensor(tmp_path: Path) -> None:
    parts = [key("general.architecture", 8, text("llama")), key("llama.block_count", 4, struct.pack("<I", 1))]
    rows = [tensor("blk.0.attn_q.weight", (256, 0)), tensor("blk.0.attn_k.weight", (256, 2))]
    source = put(tmp_path, gguf_bytes(parts, rows, numbers(512, 0).tobytes()), "in.gguf")
    with GGUFFile(quantize_model(source, tmp_path / "out.gguf")) as file:
        found = {name: (info.shape, info.dtype.name) for name, info in file.tensors.items()}
    assert found == {"blk.0.attn_k.weight": ((2, 256), "Q4_K"), "blk.0.attn_q.weight": ((0, 256), "Q4_K")}


def test_a_file_without_tensors(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "in.gguf", LLAMA)
    with pytest.raises(ModelFileError, match="has no tensors"):
        quantize_model(source, tmp_path / "out.gguf")


def test_without_a_plugin_that_can(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy writes q8_0, and no K-quants: the error says what to install."""
    expected = quantize_model(dense, tmp_path / "by-ggml.gguf", "q8_0").read_bytes()
    plain = hotshoe_loader.load_all(allow="none-of-them")
    monkeypatch.setattr(hotshoe_loader, "load_all", lambda **options: plain)
    with pytest.raises(ConversionError, match=r"reference.*cannot write q4_k, q6_k(.|\n)*pip install \S+ggml-cpu"):
        quantize_model(dense, tmp_path / "out.gguf", "q4_k_m")
    assert not (tmp_path / "out.gguf").exists()
    assert quantize_model(dense, tmp_path / "out.gguf", "q8_0").read_bytes() == expected


@pytest.mark.parametrize("block", ["", "ggml-cpu"])
def test_a_required_gpu_is_for_models(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    """Quantizing computes on the CPU, also where a variable says that models may use GPUs only."""
    monkeypatch.setenv("HOTSHOE_REQUIRE", "gpu")
    monkeypatch.setenv("HOTSHOE_BLOCK", block)
    assert quantize_model(dense, tmp_path / "out.gguf", "q8_0").exists()


# --- nothing half-made stays


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing(dense: Path, tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"mine")

    def stop(fraction: float) -> None:
        if fraction > 0.5:
            raise error("stop")

    with pytest.raises(error, match="stop"):
        quantize_model(dense, target, progress=stop, overwrite=True)
    assert target.read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]


FULL_DISK = """
import resource, signal, sys
from hotshoe.quantize import quantize_model
from hotshoe_core.errors import ConversionError

import hotshoe
hotshoe.load_all()  # whose cache is a file, too
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
try:
    quantize_model(sys.argv[1], sys.argv[2])
except ConversionError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are Unix's")
@pytest.mark.parametrize("room", [0, 5_000, 20_000])
def test_a_full_disk_leaves_nothing_behind(dense: Path, tmp_path: Path, room: int) -> None:
    target = tmp_path / "out" / "m.gguf"
    target.parent.mkdir()
    command = [sys.executable, "-c", FULL_DISK, str(dense), str(target), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"cannot write {target}: "), done.stderr
    assert "check the free space" in done.stdout
    assert list(target.parent.iterdir()) == []


# --- importance


def test_a_matrix_of_another_model(dense: Path, tmp_path: Path) -> None:
    other = ImportanceMatrix({"enc.blk.0.attn_q.weight": Importance(np.ones((1, 256), "f4"), np.ones(1, "f4"))})
    with pytest.raises(
        ConversionError, match=r"has 1 entries, but none for a tensor of this model(.|\n)*hotshoe imatrix"
    ):
        quantize_model(dense, tmp_path / "out.gguf", params=QuantizeParams(imatrix=other))
    wide = ImportanceMatrix({"blk.0.attn_q.weight": Importance(np.ones((1, 512), "f4"), np.ones(1, "f4"))})
    with pytest.raises(
        ConversionError, match=r"512 values for blk.0.attn_q.weight; expected 256: it belongs to another"
    ):
        quantize_model(dense, tmp_path / "out.gguf", params=QuantizeParams(imatrix=wide))


def test_types_that_need_a_matrix(dense: Path, tmp_path: Path) -> None:
    for kind in ("iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m", "iq3_xxs", "q2_k_s"):
        with pytest.raises(ConversionError, match=rf"{kind} needs an importance matrix(.|\n)*hint: hotshoe imatrix"):
            quantize_model(dense, tmp_path / "out.gguf", kind)
        assert plan_quantization(dense, kind).lacking
    some = {"blk.0.attn_q.weight": Importance(np.ones((1, 256), "f4"), np.ones(1, "f4"))}
    with pytest.raises(ConversionError, match=r"iq1_s needs(.|\n)*blk.0.attn_k.weight and"):
        quantize_model(dense, tmp_path / "out.gguf", "iq1_s", QuantizeParams(imatrix=ImportanceMatrix(some)))
    params = QuantizeParams(token_embedding_type="iq2_xs")
    with pytest.raises(ConversionError, match=r"token_embd.weight would be iq2_xs"):  # ggml would abort
        quantize_model(dense, tmp_path / "out.gguf", "q4_k_m", params)


def test_the_converter_says_how_to_get_there(folder: Callable[..., Path], tmp_path: Path) -> None:
    source = folder("LlamaForCausalLM", hidden_size=256, intermediate_size=512)
    with pytest.raises(ConversionError, match=r"iq2_xs needs an importance matrix(.|\n)*hotshoe quantize with --imatr"):
        convert(source, tmp_path / "out.gguf", "iq2_xs")


def test_importance_makes_the_columns_it_names_better(tmp_path: Path) -> None:
    values = numbers(64 * 256, 3).reshape(64, 256)
    source = one(tmp_path / "in.gguf", values)
    importance = np.full((1, 256), 1e-3, np.float32)
    importance[0, ::8] = 1
    errors = []
    for i, imatrix in enumerate(
        (None, ImportanceMatrix({"blk.0.attn_q.weight": Importance(importance, np.ones(1, "f4"))}))
    ):
        path = quantize_model(source, tmp_path / f"{i}.gguf", "q3_k_s", QuantizeParams(imatrix=imatrix))
        errors.append(((tensors(path)["blk.0.attn_q.weight"][1] - values)[:, ::8] ** 2).mean())
    assert errors[1] < 0.8 * errors[0]


def test_every_type_of_ggml_is_offered() -> None:
    """The types of whole files in the gguf package, except guesses and removed ones."""
    names = {t.name.lower().removeprefix("mostly_").removeprefix("all_"): t.value for t in gguf_package.LlamaFileType}
    known = {name: kind.number for name, kind in FILE_TYPES.items()}
    missing = {name for name, number in names.items() if number not in known.values()}
    assert missing <= {"guessed", "nvfp4"}  # llama.cpp's tool does not make files of nvfp4
    assert all(names[name] == number for name, number in known.items() if name in names)
