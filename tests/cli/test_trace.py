"""``hotshoe trace`` and ``hotshoe compare``: tiny models with one planted error each, and transformers' activations."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe.cli.compare import compare
from hotshoe.convert import convert
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import TraceError
from hotshoe_core.gguf import GGUFFile
from hotshoe_core.inspect.trace import trace
from hotshoe_core.inspect.tracefile import read_trace
from tests.support.tiny_bert import edit_json

TEXT = "the quick brown fox jumps"
ROOT = Path(__file__).parents[2]


KINDS = pytest.mark.parametrize("kind", ["npz", "jsonl"])


@pytest.fixture
def kind(device: str) -> str:
    """The suffix of traces: with all numbers, or with statistics only. One for each device, in tests that take one."""
    return "npz" if device == "reference" else "jsonl"


def record(model: Path, output: Path, device: str, *options: str) -> Path:
    options = options or ("--kv-dtype", "f32")
    assert main(["trace", str(model), TEXT, "-o", str(output), "--device", device, *options]) == 0
    return output


def verdict(a: Path, b: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["compare", str(a), str(b), *options])
    return code, capsys.readouterr().out


def first(text: str) -> str | None:
    found = re.search(r"^the first is (\S+)", text, re.MULTILINE)
    return found and found[1]


def planted(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A GGUF file of the same checkpoint, with some tensors changed."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file({k: v.clone().contiguous() for k, v in weights.items()}, target / "model.safetensors", {"format": "pt"})
    return convert(target, target / "planted.gguf", "f32")


def swap_up_and_gate(weights: dict[str, Any]) -> None:
    layer = "model.layers.1.mlp"
    weights[f"{layer}.up_proj.weight"], weights[f"{layer}.gate_proj.weight"] = (
        weights[f"{layer}.gate_proj.weight"],
        weights[f"{layer}.up_proj.weight"],
    )


@KINDS
def test_two_devices_agree(
    gguf: Callable[..., Path], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cpu" not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    model = gguf("LlamaForCausalLM")
    traces = [record(model, tmp_path / f"{d}.{kind}", d) for d in ("reference", "cpu")]
    assert re.search(r"cpu\.\w+: \d+ nodes of \d+ tokens, on cpu\n$", capsys.readouterr().out)
    code, text = verdict(*traces, capsys)
    assert code == 0, text
    assert re.search(r"^\d\d nodes agree within 0\.001$", text, re.MULTILINE)
    assert "in one file only: cache.lists.all, cache.ranges.all, blk.0.cached_attention and " in text  # cpu reads lists


def test_a_wrong_eps_is_named(
    device: str, folder: Callable[..., Path], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder("LlamaForCausalLM")
    right = record(convert(source, tmp_path / "right.gguf", "f32"), tmp_path / f"right.{kind}", device)
    edit_json(source, "config.json", rms_norm_eps=0.1)
    wrong = record(convert(source, tmp_path / "wrong.gguf", "f32"), tmp_path / f"wrong.{kind}", device)
    edit_json(source, "config.json", rms_norm_eps=1e-6)
    code, text = verdict(right, wrong, capsys)
    assert (code, first(text)) == (1, "blk.0.attn_norm.rms_norm")
    assert "  its eps is 1e-06 in A and 0.1 in B\n" in text
    assert "token_embd.take, which is equal" in text


def test_a_swapped_weight_is_named(
    device: str,
    folder: Callable[..., Path],
    gguf: Callable[..., Path],
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = record(gguf("LlamaForCausalLM"), tmp_path / f"right.{kind}", "reference")
    bad = planted(folder("LlamaForCausalLM"), tmp_path / "bad", swap_up_and_gate)
    code, text = verdict(right, record(bad, tmp_path / f"bad.{kind}", device), capsys)
    assert (code, first(text)) == (1, "blk.1.ffn_gate.linear")
    inputs = text.partition("it is computed from\n")[2].splitlines()
    assert re.match(r"    blk\.1\.ffn_norm\.rms_norm, which (is equal|differs by )", inputs[0])
    assert inputs[1] == "    blk.1.ffn_gate.weight"


@KINDS
def test_values_that_are_not_finite_in_one_only(
    gguf: Callable[..., Path], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = gguf("LlamaForCausalLM")
    with GGUFFile(good) as file:
        at = file.tensors["blk.2.ffn_down.weight"].offset
    data = bytearray(good.read_bytes())
    data[at : at + 4] = np.float32("nan").tobytes()
    (tmp_path / "bad.gguf").write_bytes(data)
    right = record(good, tmp_path / f"right.{kind}", "reference")
    wrong = record(tmp_path / "bad.gguf", tmp_path / f"wrong.{kind}", "reference")
    code, text = verdict(right, wrong, capsys, "--tolerance", "1e9")
    assert (code, first(text)) == (1, "blk.2.ffn_down.linear")
    assert re.search(r"wrong\.\w+ it holds \d+ NaN and 0 infinities", text)


def graph(path: Path, build: Callable[[Any], Any], fed: list[float]) -> Path:
    with open_reference().new_context() as ctx:
        x = ctx.input("x", (len(fed),))
        ctx.forward(build(x))
        with trace(path):
            ctx.compute({x: fed})
    return path


@KINDS
def test_shapes_made_by_the_model_differ_and_given_shapes_are_not_compared(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_rows_of(size: int) -> Callable[[Any], Any]:
        return lambda x: x.reshape(-1, size).exp().sum(keepdims=True).sum(axis=0)

    a = graph(tmp_path / f"a.{kind}", with_rows_of(6), [1.0] * 12)
    code, text = verdict(a, graph(tmp_path / f"b.{kind}", with_rows_of(4), [1.0] * 12), capsys)
    assert (code, first(text)) == (1, "reshape")
    assert re.search(r"it is 2 x 6 in \S+ and 3 x 4 in ", text)
    code, text = verdict(a, graph(tmp_path / f"c.{kind}", with_rows_of(6), [1.0] * 6 + [1.0] * 12), capsys)
    assert (code, first(text)) == (1, "sum#2")
    assert "4 not compared, because shapes differ: x, reshape, exp and 1 more" in text


@KINDS
def test_different_inputs_are_reported(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (graph(tmp_path / f"{n}.{kind}", lambda x: x + 1.0, [1.0, n]) for n in (2.0, 3.0))
    code, text = verdict(a, b, capsys)
    assert (code, first(text)) == (1, "x")
    assert "the two runs had different inputs" in text


# Against transformers


def activations(folder: Path, path: Path, change: Callable[[Any], None] = lambda model: None) -> Path:
    """The outputs of each module of a transformers model, recorded by forward hooks, as a researcher does it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bert = json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    auto = transformers.AutoModel if bert else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    change(model)
    found: dict[str, np.ndarray] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: Any, args: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            if isinstance(output, torch.Tensor):
                found[name] = output.detach().float().numpy()

        return keep

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(hook(name))
    with torch.no_grad():
        model(**tokenizer(TEXT, return_tensors="pt"))
    np.savez(path, **found)
    return path


EXPECTED = {  # of each layer: projections, norms, the block; and the embedding, the last norm and the output
    "LlamaForCausalLM": 3 * 10 + 3,
    "Qwen2ForCausalLM": 3 * 10 + 3,
    "Qwen3ForCausalLM": 3 * 12 + 3,
    "Gemma3ForCausalLM": 7 * 12 + 3,  # its heads come before the tokens in transformers, so not their norms
}


@pytest.mark.parametrize("architecture", EXPECTED)
def test_a_trace_and_transformers_activations_agree(
    architecture: str,
    device: str,
    folder: Callable[..., Path],
    gguf: Callable[..., Path],
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = record(gguf(architecture), tmp_path / f"ours.{kind}", device)
    theirs = activations(folder(architecture), tmp_path / "theirs.npz")
    options: list[str] = []
    if architecture.startswith("Gemma"):  # its embedding is a module that scales too
        (tmp_path / "map.json").write_text(json.dumps({"model.embed_tokens": "affine"}))
        options = ["--map", str(tmp_path / "map.json")]
    code, text = verdict(ours, theirs, capsys, *options)
    assert code == 0, text
    agreed = re.search(r"^(\d+) nodes agree", text, re.MULTILINE)
    assert agreed is not None
    assert int(agreed[1]) >= EXPECTED[architecture]
    if not options:
        assert verdict(theirs, ours, capsys)[0] == 0  # either may come first


def test_an_encoder_and_transformers_activations_agree(
    device: str, data: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = convert(data / "bert-tiny", tmp_path / "m.gguf", "f32")
    ours = record(model, tmp_path / f"ours.{kind}", device, "--flash-attention", "auto")
    code, text = verdict(ours, activations(data / "bert-tiny", tmp_path / "theirs.npz"), capsys)
    assert code == 0, text
    assert int(re.findall(r"^(\d+) nodes agree", text, re.MULTILINE)[0]) >= 2 * 9


@pytest.mark.parametrize(
    ("wrong", "node"),
    [
        ("model.layers.1.self_attn.k_proj", "blk.1.attn_k.linear"),
        ("model.layers.2.post_attention_layernorm", "blk.2.ffn_norm.rms_norm"),
        ("lm_head", "output.linear"),
    ],
)
def test_the_first_module_that_transformers_computes_differently_is_named(
    wrong: str,
    node: str,
    device: str,
    folder: Callable[..., Path],
    gguf: Callable[..., Path],
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def change(model: Any) -> None:
        weight = model.get_submodule(wrong).weight.data
        weight[: len(weight) // 2] *= 1.5

    ours = record(gguf("LlamaForCausalLM"), tmp_path / f"ours.{kind}", device)
    code, text = verdict(ours, activations(folder("LlamaForCausalLM"), tmp_path / "theirs.npz", change), capsys)
    assert (code, first(text)) == (1, node)
    assert f"{wrong}" in text


def test_queries_with_the_halves_of_heads_swapped_differ(
    folder: Callable[..., Path], gguf: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the order of an interleaved RoPE is recognised, not another one."""
    ours = record(gguf("LlamaForCausalLM"), tmp_path / "ours.npz", "reference")
    theirs = dict(np.load(activations(folder("LlamaForCausalLM"), tmp_path / "theirs.npz")))
    q = theirs["model.layers.0.self_attn.q_proj"]
    theirs["model.layers.0.self_attn.q_proj"] = q.reshape(*q.shape[:2], -1, 2, 8)[..., ::-1, :].reshape(q.shape)
    np.savez(tmp_path / "swapped.npz", **theirs)
    code, text = verdict(ours, tmp_path / "swapped.npz", capsys)
    assert (code, first(text)) == (1, "blk.0.attn_q.linear")


@KINDS
def test_unknown_names_are_matched_by_shape_and_order(
    folder: Callable[..., Path],
    gguf: Callable[..., Path],
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = record(gguf("Qwen2ForCausalLM"), tmp_path / f"ours.{kind}", "reference")
    theirs = dict(np.load(activations(folder("Qwen2ForCausalLM"), tmp_path / "theirs.npz")))
    wanted = [k for k in theirs if re.search(r"layernorm|layers\.\d+$|norm$|lm_head|down_proj", k)]
    values = {f"activation {i}": theirs[name] for i, name in enumerate(wanted)}
    np.savez(tmp_path / "numbers.npz", **values)
    assert verdict(ours, tmp_path / "numbers.npz", capsys)[0] == 0
    at = wanted.index("model.layers.1.mlp.down_proj")
    np.savez(tmp_path / "wrong.npz", **(values | {f"activation {at}": values[f"activation {at}"] * 1.1}))
    code, text = verdict(ours, tmp_path / "wrong.npz", capsys)
    assert code == 1
    assert f"= activation {at}" in text


def test_a_map_gives_names(
    folder: Callable[..., Path], gguf: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = record(gguf("LlamaForCausalLM"), tmp_path / "ours.npz", "reference")
    theirs = dict(np.load(activations(folder("LlamaForCausalLM"), tmp_path / "theirs.npz")))
    np.savez(tmp_path / "own.npz", final=theirs["model.norm"], up=theirs["model.layers.0.mlp.up_proj"])
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"final": "output_norm.rms_norm", "up": "blk.0.ffn_up"}))
    code, text = verdict(ours, tmp_path / "own.npz", capsys, "--map", str(names), "--full")
    assert code == 0
    assert re.findall(r"^(\S+) .*= (\w+)$", text, re.MULTILINE) == [
        ("blk.0.ffn_up.linear", "up"),
        ("output_norm.rms_norm", "final"),
    ]
    names.write_text(json.dumps({"final": "blk.0.ffn_up"}))
    assert main(["compare", str(ours), str(tmp_path / "own.npz"), "--map", str(names)]) == 2
    assert "nothing in" in capsys.readouterr().err


# The page


def test_the_commands_of_the_debugging_page(folder: Callable[..., Path], tmp_path: Path) -> None:
    """Run every program and command of the page in order. Numbers are not compared: CPUs round differently."""
    shutil.copytree(folder("LlamaForCausalLM"), tmp_path / "my-model")
    page = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done: list[tuple[int, str]] = []
    for language, code in re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL):
        if language == "python":
            (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
        elif language == "sh":
            command = ["bash", "-e", "-c", code]
            ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
            assert "rror" not in ran.stderr, (code, ran.stderr)
            done.append((ran.returncode, ran.stdout))
        else:
            digits = r"\d\.\de[-+]\d\d"
            assert re.sub(digits, "#", code).rstrip() in re.sub(digits, "#", done[-1][1])
    assert [code for code, _ in done] == [0, 0, 0, 1, 1, 0, 0, 0]
    assert "its eps is 1e-06 in A and 0.1 in B" in done[4][1]
    assert done[6][1].startswith("<Tensor blk.1.ffn_gate.weight F32[96, 64]>\n")
    with read_trace(tmp_path / "second.jsonl") as second, read_trace(tmp_path / "prompt.jsonl") as prompt:
        assert second.nodes["tokens"].statistics is not None
        assert second.nodes["tokens"].statistics.first == (2.0,)
        assert prompt.nodes["tokens"].shape == (13,)


# Misuse


@pytest.fixture
def two(gguf: Callable[..., Path], tmp_path: Path) -> Path:
    model = gguf("LlamaForCausalLM")
    record(model, tmp_path / "a.jsonl", "reference")
    assert main(["trace", str(model), "hello", "-o", str(tmp_path / "short.jsonl"), "--device", "reference"]) == 0
    np.savez(tmp_path / "own.npz", x=np.zeros((3, 5)))
    np.savez(tmp_path / "other.npz", x=np.zeros((3, 5)))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "theirs.json").write_text('{"y": "output"}')
    (tmp_path / "ours.json").write_text('{"x": "outptu"}')
    return tmp_path


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("a.jsonl", "none.jsonl"), "cannot be read"),
        (("own.npz", "other.npz"), "is a trace"),
        (("a.jsonl", "own.npz"), "its names are unknown: x"),
        (("a.jsonl", "short.jsonl"), "trace the same text"),
        (("a.jsonl", "a.jsonl", "--tolerance", "-1"), "expected a number of 0 or more"),
        (("a.jsonl", "a.jsonl", "--tolerance", "nan"), "expected a number of 0 or more"),
        (("a.jsonl", "own.npz", "--map", "none.json"), "cannot be read"),
        (("a.jsonl", "own.npz", "--map", "broken.json"), "is not valid JSON"),
        (("a.jsonl", "own.npz", "--map", "list.json"), "expected an object of names"),
        (("a.jsonl", "own.npz", "--map", "deep.json"), "is not valid JSON"),
        (("a.jsonl", "own.npz", "--map", os.devnull), "expected a file"),
        (("a.jsonl", "own.npz", "--map", "theirs.json"), "has no 'y', which the map names"),
        (("a.jsonl", "own.npz", "--map", "ours.json"), "did you mean 'output'"),
        (("own.npz", "a.jsonl", "--map", "ours.json"), "swap the two files"),
    ],
)
def test_what_cannot_be_compared(
    args: tuple[str, ...], words: str, two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two)
    capsys.readouterr()
    assert main(["compare", *args]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert words in out.err
    assert "Traceback" not in out.err


def test_the_api_needs_a_trace_too(two: Path) -> None:
    with read_trace(two / "own.npz") as a, read_trace(two / "other.npz") as b:
        with pytest.raises(TraceError, match="is a trace"):
            compare(a, b)


def test_trace_refuses_a_file_it_cannot_write(gguf: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(gguf("LlamaForCausalLM")), "x", "-o", "/no/folder/t.npz", "--device", "reference"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_variable_traces_any_program(
    gguf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSHOE_TRACE", str(tmp_path / "t.npz"))
    with hotshoe.load_model(gguf("LlamaForCausalLM"), "reference") as model:
        ids = model.tokenizer.encode(TEXT)
        model.generate(TEXT, max_tokens=3, temperature=0)  # type: ignore[union-attr]
    with read_trace(tmp_path / "t.npz") as found:
        np.testing.assert_array_equal(found.array("tokens"), ids)  # the prompt, not a token of the answer
        assert found.about["architecture"] == "llama"


def test_control_characters_do_not_reach_the_terminal(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (two / "a.jsonl").read_text().replace("blk.0.attn_q.linear", "blk.0.\\u001b[31m.linear")
    (two / "odd.jsonl").write_text(lines)
    code, text = verdict(two / "odd.jsonl", two / "odd.jsonl", capsys, "--full")
    assert code == 0
    assert "\x1b" not in text
    assert "\\x1b[31m" in text
