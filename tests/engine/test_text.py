"""TextModel against transformers: tiny models of every architecture, converted by hotshoe."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import (
    ChatTemplateError,
    ClosedError,
    DTypeError,
    HotshoeError,
    InputEmptyError,
    InputTooLongError,
    OptionError,
    SamplingError,
)
from hotshoe_core.tensors.tensor import nodes_created
from tests.support.text_models import assert_close, load, transformers_logits
from tests.support.tiny_text import ARCHITECTURES, VOCAB_SIZE

IDS = np.random.default_rng(0).integers(0, 250, 40).tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_files_of_llama_cpps_converter(architecture: str, device: str, data: Path) -> None:
    expected = np.load(data / "llamacpp" / "expected.npz")
    ids = expected["ids"].tolist()
    with load(data / "llamacpp" / f"{architecture}.gguf", device) as model:
        # for Gemma the converter leaves out the rows of ids that no token has
        n = 314 if architecture.startswith("Gemma3") else VOCAB_SIZE
        assert_close(model.logits(ids), expected[architecture][:, :n])
        assert model.tokenizer.decode(model.tokenizer.encode("the camera")) == "the camera"


ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("LlamaForCausalLM", {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        "LlamaForCausalLM",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "yarn": ("Qwen2ForCausalLM", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    "yarn, its magnitude given": (
        "Qwen2ForCausalLM",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.4},
    ),
}


@pytest.mark.parametrize("scaling", ROPES)
def test_rope_scaling(scaling: str, device: str, folder: Callable[..., Path], gguf: Callable[..., Path]) -> None:
    architecture, parameters = ROPES[scaling]
    changes = {"rope_parameters": {"rope_theta": 10000.0, **parameters}}
    expected = transformers_logits(folder(architecture, **changes), IDS)
    with load(gguf(architecture, **changes), device) as model:
        assert_close(model.logits(IDS), expected)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a sliding window": ("MistralForCausalLM", {"sliding_window": 8}),
    "tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "weights of experts as they are": ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}),
    "another scale of scores": ("Gemma3ForCausalLM", {"query_pre_attn_scalar": 100}),
    "heads wider than the model": ("LlamaForCausalLM", {"head_dim": 32}),
    "a part of each head rotates": ("Phi3ForCausalLM", {"partial_rotary_factor": 0.5}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, device: str, folder: Callable[..., Path], gguf: Callable[..., Path]) -> None:
    architecture, changes = VARIANTS[variant]
    expected = transformers_logits(folder(architecture, **changes), IDS)
    with load(gguf(architecture, **changes), device) as model:
        assert_close(model.logits(IDS), expected)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_pieces_agree_with_the_whole(architecture: str, device: str, gguf: Callable[..., Path]) -> None:
    with load(gguf(architecture), device) as model:
        whole = model.logits(IDS)
    with load(gguf(architecture), device, n_batch=7) as model:
        assert_close(model.logits(IDS), whole, 1e-4)
        with model.sequence(IDS[:25]) as first, model.sequence(IDS) as second:
            assert_close(first.append(), whole[24], 1e-4)
            assert_close(second.append(), whole[-1], 1e-4)  # begins as the first does
            other = first.fork()
            assert_close(other.append(*IDS[25:30]), whole[29], 1e-4)
            other.truncate(27)
            assert_close(other.append(5, 6, 7), model.logits([*IDS[:27], 5, 6, 7])[-1], 1e-4)
            assert_close(first.append(IDS[25]), whole[25], 1e-4)  # and is as it was


@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
def test_smaller_caches_stay_close(kv_dtype: str, device: str, gguf: Callable[..., Path]) -> None:
    path = gguf("Qwen3ForCausalLM")  # heads of 32 elements
    with load(path, device) as model, load(path, device, kv_dtype=kv_dtype) as small:
        expected, ours = model.logits(IDS), small.logits(IDS)
        assert np.linalg.norm(ours - expected) <= 2e-2 * np.linalg.norm(expected)
        if device == "cpu":  # NumPy has no blocks: the reference keeps their values as float32
            assert small.memory().total < model.memory().total


@pytest.mark.parametrize(("dtype", "least"), [("f16", 2e-3), ("q8_0", 5e-2)])
def test_files_of_smaller_types(dtype: str, least: float, gguf: Callable[..., Path]) -> None:
    """Both backends read the same weights: ggml rounds activations to 8 bits for q8_0."""
    devices = [d.name for d in hotshoe.load_all().devices]
    if "cpu" not in devices:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    path = gguf("LlamaForCausalLM", dtype)
    with load(path, "cpu") as ours, load(path, "reference") as reference:
        expected = reference.logits(IDS)
        assert np.linalg.norm(ours.logits(IDS) - expected) <= least * np.linalg.norm(expected)


def test_a_step_builds_and_lowers_nothing(device: str, gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), device, n_ctx=64) as model, model.sequence() as sequence:
        sequence.append(*IDS[:10])
        sequence.append(IDS[10])
        padding = model._cache.padding
        counters = model.backend.counters
        before = (nodes_created(), counters.compiled, counters.lowered)
        sequence.append(IDS[11])
        if padding > len(IDS):  # else the cache's length has grown by a step, and the graph with it
            assert (nodes_created(), counters.compiled, counters.lowered) == before
        else:
            assert padding == 1


# Generation


def test_greedy_is_the_argmax_of_the_logits(model: TextModel) -> None:
    done = model.generate(IDS[:8], max_tokens=12, temperature=0)
    ids = [*IDS[:8], *done.tokens]
    assert done.tokens == model.logits(ids).argmax(axis=1)[7:-1].tolist()
    assert (done.n_prompt, done.finish_reason, len(done.tokens)) == (8, "length", 12)
    assert done.text == model.tokenizer.decode(done.tokens)


def test_a_stream_is_the_completion_in_pieces(model: TextModel) -> None:
    options = {"max_tokens": 20, "seed": 3, "temperature": 1.5, "min_p": 0.0}
    stream = model.stream("the quick", **options)
    text = "".join(stream)
    done = model.generate("the quick", **options)
    assert (text, stream.completion.tokens) == (done.text, done.tokens)
    assert model.generate("the quick", **(options | {"seed": 4})).tokens != done.tokens
    assert done.seed == 3


def test_stop_tokens_and_texts(model: TextModel) -> None:
    free = model.generate(IDS[:8], max_tokens=12, temperature=0)
    at = next(i for i in range(1, 12) if free.tokens[i] not in free.tokens[:i])
    stopped = model.generate(IDS[:8], max_tokens=12, temperature=0, stop_tokens=[free.tokens[at]])
    assert (stopped.tokens, stopped.finish_reason) == (free.tokens[:at], "stop")
    part = free.text[3:5]
    stopped = model.generate(IDS[:8], max_tokens=12, temperature=0, stop=[part])
    assert stopped.text == free.text[: free.text.index(part)]
    assert stopped.finish_reason == "stop"


def test_the_second_call_reuses_the_prompt(model: TextModel) -> None:
    first = model.generate(IDS[:20], max_tokens=4, temperature=0)
    second = model.generate(IDS[:20], max_tokens=4, temperature=0)
    assert (first.n_cached, second.n_cached) == (0, 19)
    assert first.tokens == second.tokens


def test_a_full_context_ends_the_generation(gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), hotshoe.load_all().devices[0].name, n_ctx=16) as model:
        done = model.generate(IDS[:10], temperature=0)
        assert (done.finish_reason, len(done.tokens)) in (("context", 7), ("stop", len(done.tokens)))
        with pytest.raises(InputTooLongError, match="17 tokens were given; the context holds 16"):
            model.generate(IDS[:17])
        assert model.generate(IDS[:4], max_tokens=2, temperature=0).tokens


def test_an_interrupted_step_leaves_a_usable_model(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.generate(IDS[:8], max_tokens=6, temperature=0).tokens
    stream = model.stream(IDS[:9], max_tokens=6, temperature=0)
    context = type(model.backend.new_context())
    start = context.start

    def interrupted(*args: Any) -> Any:
        start(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(context, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert model.generate(IDS[:8], max_tokens=6, temperature=0).tokens == expected
    left = model.stream(IDS[:8], max_tokens=50, temperature=0)
    next(left)
    left.close()
    assert left.completion.finish_reason == "cancelled"
    assert model.generate(IDS[:8], max_tokens=6, temperature=0).tokens == expected


def test_threads_take_turns(model: TextModel) -> None:
    prompts = [IDS[:5], IDS[5:12], IDS[2:9]]
    expected = [model.generate(p, max_tokens=5, temperature=0).tokens for p in prompts]
    got: dict[int, list[int]] = {}

    def work(i: int) -> None:
        got[i] = model.generate(prompts[i], max_tokens=5, temperature=0).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [got[i] for i in range(3)] == expected


def test_score_is_the_likelihood_of_the_logits(model: TextModel) -> None:
    text = "the quick brown fox"
    ids = model.tokenizer.encode(text)
    logits = model.logits(ids).astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = sum(logs[i, ids[i + 1]] for i in range(len(ids) - 1))
    score = model.score(text)
    assert score.log_likelihood == pytest.approx(expected, rel=1e-6)
    assert score.perplexity == pytest.approx(np.exp(-expected / (len(ids) - 1)), rel=1e-6)


def test_wrong_input(model: TextModel, gguf: Callable[..., Path], data: Path) -> None:
    with pytest.raises(SamplingError, match=r"'temprature'[\s\S]*temperature"):
        model.generate("x", temprature=1)
    with pytest.raises(SamplingError, match="top_p is 2"):
        model.generate("x", top_p=2)
    with pytest.raises(InputEmptyError, match="no tokens"):
        model.logits([])
    with pytest.raises(HotshoeError, match="9999"):
        model.logits([9999])
    with pytest.raises(DTypeError, match="q9_0"):
        hotshoe.load_model(gguf("LlamaForCausalLM"), kv_dtype="q9_0")
    with pytest.raises(HotshoeError, match="for text models only"):
        hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", kv_dtype="f32")
    model.close()
    with pytest.raises(ClosedError, match="load_model"):
        model.generate("x")


def test_the_command_line(gguf: Callable[..., Path], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(gguf("LlamaForCausalLM"))
    assert main(["run", path, "the", "quick", "--temperature", "0", "--max-tokens", "5", "-v"]) == 0
    out = capsys.readouterr()
    with hotshoe.load_model(path) as model:
        assert isinstance(model, TextModel)
        assert out.out == model.generate("the quick", max_tokens=5, temperature=0).text + "\n"
    assert "5 tokens at" in out.err
    assert main(["run", str(data / "bert-tiny-llamacpp.gguf"), "x"]) == 2
    assert "hotshoe embed" in capsys.readouterr().err
    assert main(["embed", path, "x"]) == 2
    assert "hotshoe run" in capsys.readouterr().err
    assert main(["run", path, "x", "--top-p", "7"]) == 2
    assert "--top-p is 7" in capsys.readouterr().err


def test_a_users_seterr_changes_nothing(device: str, gguf: Callable[..., Path]) -> None:
    def everything() -> tuple[Any, ...]:
        with load(gguf("LlamaForCausalLM"), device) as model:
            wild = {"temperature": 1e-30, "top_k": 0, "top_p": 1, "min_p": 0}
            done = [model.generate([5, 6], max_tokens=6, seed=1, **options).tokens for options in ({}, wild)]
            return (*done, model.score("the cat"), model.logits([5, 6, 7]).tolist())

    expected = everything()
    with np.errstate(all="raise"):
        assert everything() == expected


def test_a_prompt_that_a_template_blew_up_is_not_tokenized(
    model: TextModel, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotshoe.chat import ChatTemplate

    source = "{{ messages[0].content }}{% for i in range(99) %}{{ 'x' * 100000 }}{% endfor %}"
    model.__dict__["chat_template"] = ChatTemplate(source)
    monkeypatch.setattr(type(model.tokenizer), "encode", None)
    with pytest.raises(InputTooLongError, match=r"made a prompt of 9,900,002 characters; the context holds 128 tokens"):
        model.chat([{"role": "user", "content": "Hi"}])


def test_chat(gguf: Callable[..., Path]) -> None:
    with load(gguf("Qwen2ForCausalLM"), hotshoe.load_all().devices[0].name) as model:
        messages = [{"role": "user", "content": "hello camera"}]
        stream = model.stream_chat(messages, max_tokens=6, temperature=0)
        text = "".join(stream)
        prompt = model.tokenizer.encode("<|user|>hello camera<|end|>", add_special=False)
        assert model.chat_prompt(messages) == "<|user|>hello camera<|end|>"
        assert text == model.generate(prompt, max_tokens=6, temperature=0).text
        assert model.chat(messages, max_tokens=6, temperature=0).text == text
        with pytest.raises(ChatTemplateError, match="tools"):
            model.chat(messages, tools=[{"type": "function"}])
        with pytest.raises(ChatTemplateError, match="enable_thinking"):
            model.chat_prompt(messages, enable_thinking=False)


def test_the_chat_command(
    gguf: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "hello",
        "/stats",
        "/retry",
        "/undo",
        "/bogus",
        "/help",
        '"""two',
        'lines"""',
        "/clear",
        "/undo",
        "/quit",
        "x",
    ]
    given = iter(lines)
    monkeypatch.setattr("builtins.input", lambda prompt="": next(given))
    assert main(["chat", str(gguf("Qwen2ForCausalLM")), "--max-tokens", "4", "--temperature", "0"]) == 0
    assert list(given) == ["x"]
    out = capsys.readouterr()
    with load(gguf("Qwen2ForCausalLM"), hotshoe.load_all().devices[0].name, n_ctx=None, kv_dtype="f16") as model:
        options = {"max_tokens": 4, "temperature": 0}
        first = model.chat([{"role": "user", "content": "hello"}], **options).text
        other = model.chat([{"role": "user", "content": "two\nlines"}], **options).text
    assert out.out == f"{first}\n{first}\n{other}\n"
    assert "unknown command /bogus" in out.err
    assert "tokens at" in out.err
    assert "no message can be taken back" in out.err


def test_the_bench_command(gguf: Callable[..., Path], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(gguf("LlamaForCausalLM"))
    assert main(["bench", path, "-p", "8,4", "-n", "3", "-d", "0,5", "-s", "1,2", "-r", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [t["test"] for t in report["tests"]] == [
        f"{kind}{times}{depth}" for depth in ("", " @ d5") for times in ("", " x2") for kind in ("pp8", "pp4", "tg3")
    ]
    assert [t["tokens"] for t in report["tests"][:6]] == [8, 4, 3, 16, 8, 6]
    assert all(len(t["rates"]) == 2 and min(t["rates"]) > 0 for t in report["tests"])
    assert (report["architecture"], report["kv_dtype"], report["bytes"]) == ("llama", "f16", Path(path).stat().st_size)
    assert main(["bench", path, "-p", "8", "-n", "0", "-r", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[-1].split()[0], len(lines)) == ("pp8", 5)
    assert main(["bench", str(data / "bert-tiny-llamacpp.gguf"), "-r", "1"]) == 0
    assert "embed 32x" in capsys.readouterr().out
    assert main(["bench", str(data / "bert-tiny-llamacpp.gguf"), "-p", "64"]) == 2
    assert "--prompt is for text models" in capsys.readouterr().err
    assert main(["bench", path, "-p", "100000"]) == 2
    assert "trained for" in capsys.readouterr().err


def test_a_chat_that_outgrows_the_context(
    gguf: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter(["the camera " * 8, "the flash", "the dog " * 9, "word " * 200])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(given, "/quit"))
    assert main(["chat", str(gguf("Qwen2ForCausalLM")), "--ctx", "64", "--max-tokens", "3", "--temperature", "0"]) == 0
    errors = capsys.readouterr().err
    assert errors.count("the oldest message and its answer were forgotten") >= 1
    assert "the context holds 64" in errors  # the last message alone is too long


def test_an_error_in_a_chat_names_options_of_the_command_only(
    gguf: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: TextModel, messages: object, *tools: object, **options: object) -> None:
        raise ChatTemplateError("the role tool_call is unknown; max_tokens is 3")

    given = iter(["hello"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(given, "/quit"))
    monkeypatch.setattr(TextModel, "chat_prompt", fail)
    assert main(["chat", str(gguf("Qwen2ForCausalLM"))]) == 0
    assert "error: the role tool_call is unknown; --max-tokens is 3" in capsys.readouterr().err


@pytest.mark.parametrize(("n_ctx", "hint"), [(32, "use a larger n_ctx, or shorten the "), (None, "shorten the ")])
def test_a_larger_context_is_advised_only_if_the_model_was_trained_for_it(
    gguf: Callable[..., Path], n_ctx: int | None, hint: str
) -> None:
    with load(gguf("Qwen2ForCausalLM"), "reference", n_ctx=n_ctx) as model:
        with pytest.raises(InputTooLongError) as of_text:
            model.generate([1] * (model.n_ctx + 1))
        with pytest.raises(InputTooLongError) as of_chat:
            model.chat([{"role": "user", "content": "word " * 64 * model.n_ctx}])
    end = "" if n_ctx else f"; the model was trained for at most {model.n_ctx} tokens"
    assert (of_text.value.hint, of_chat.value.hint) == (f"{hint}text{end}", f"{hint}conversation{end}")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_threads", "did you mean 'n_threads'"),
        ("gpu_layers", "did you mean 'n_gpu_layers'"),
        ("params", r"give each option by its name: load_model\(path, n_threads=4, kv_dtype='q8_0'\)"),
        ("nctx", "did you mean 'n_ctx'"),
    ],
)
def test_an_unknown_option_of_load_model_is_refused_with_a_hint(name: str, hint: str) -> None:
    options: Any = {name: 2}
    with pytest.raises(OptionError, match=rf"there is no option '{name}'\n.*hint: {hint}"):
        hotshoe.load_model("model.gguf", **options)


def test_the_repr_of_a_stream_says_how_to_get_the_text(gguf: Callable[..., Path]) -> None:
    with load(gguf(next(iter(ARCHITECTURES))), "reference") as model, model.stream([1, 2], max_tokens=3) as stream:
        next(stream)  # after one token or more: a token may be part of a character
        n = len(stream.completion.tokens)
        assert repr(stream) == f"<Stream of {n} tokens so far; iterate over it, or see .completion>"
