"""Misuse of the API: wrong types, values, shapes and orders. Each works or is refused, and the model stays right."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hotshoe
from hotshoe.chat import ChatTemplate
from hotshoe.placement import PlacementParams
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.params import RunnerParams
from hotshoe.runner.reranker import RerankModel
from hotshoe.runner.text import TextModel
from hotshoe.sampling import Sampler, SamplingParams, StopMatcher
from hotshoe_core import BackendParams, DType, Tensor, constant, ops
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import ClosedError, HotshoeError
from tests.fuzz.fault import Fault
from tests.fuzz.odd import OwnError, World, odd

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS: tuple[int, ...] = (1_000_016, 1_000_126, 1_004_744, 1_000_864)
SHARE = 50

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
TEXT = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"
TINY = DATA / "llamacpp" / "LlamaForCausalLM.gguf"
ENCODER = DATA / "bert-tiny-llamacpp.gguf"
RERANKER = DATA / "llamacpp" / "BertForSequenceClassification.gguf"
PROMPT = "In the beginning"
PATIENCE = 15.0


_world: list[World] = []


def setup() -> None:
    device = hotshoe.load_all().devices[0].name
    model, other = (
        hotshoe.load_model(p, d, n_ctx=96, max_sequences=6, n_batch=32)
        for p, d in ((TEXT, device), (TINY, "reference"))
    )
    encoder, reranker = hotshoe.load_model(ENCODER, device), hotshoe.load_model(RERANKER, "reference")
    assert isinstance(model, TextModel)
    assert isinstance(other, TextModel)
    assert isinstance(encoder, EmbeddingModel)
    assert isinstance(reranker, RerankModel)
    greedy = model.generate(PROMPT, temperature=0, max_tokens=6).text
    backends = (hotshoe.load_all().open(device), open_reference())
    _world[:] = [World(model, other, encoder, reranker, backends, greedy, encoder.embed(["the cat", "a dog"]))]


def run(seed: int) -> str:
    rng, world = random.Random(seed), _world[0]
    outcomes = [rng.choice(SCENES)(rng, world) for _ in range(rng.randint(1, 4))]
    _require_sound(world)
    return "refused" if "refused" in outcomes else "answered"


def _require_sound(world: World) -> None:
    model = world.model
    if model.engine.jobs:
        raise Fault("leak", f"{len(model.engine.jobs)} jobs stay in the engine")
    text = model.generate(PROMPT, temperature=0, max_tokens=6).text
    if text != world.greedy:
        raise Fault("different", f"the greedy text is {text!r}; it was {world.greedy!r}")
    if not np.array_equal(world.encoder.embed(["the cat", "a dog"]), world.vectors):
        raise Fault("different", "the encoder's vectors are others than they were")


class Call(NamedTuple):
    """A public callable, good arguments, and the errors besides ours that its docstring tells of."""

    of: Callable[[World], Callable[..., Any]]
    good: Callable[[random.Random, World], tuple[list[Any], dict[str, Any]]]
    told: tuple[type[BaseException], ...] = ()
    use: Callable[[Any], Any] | None = None  # what is done with the result


def attempt(rng: random.Random, world: World, name: str, call: Call) -> str:
    """Call it with arguments of which some are odd. Faults: an untyped error, an unsound one."""
    args, kwargs = call.good(rng, world)
    for i in range(len(args)):
        if rng.random() < 0.4:
            args[i] = odd(rng, world)
    for key in kwargs:
        if rng.random() < 0.4:
            kwargs[key] = odd(rng, world)
    words = f"{name}({', '.join([_short(a) for a in args] + [f'{k}={_short(v)}' for k, v in kwargs.items()])})"

    def body() -> None:
        result = call.of(world)(*args, **kwargs)
        if call.use is not None:
            call.use(result)

    return judge(words, body, call.told)


def judge(words: str, body: Callable[[], object], told: tuple[type[BaseException], ...] = ()) -> str:
    try:
        body()
    except HotshoeError as error:
        _require_fit(words, error)
        return "refused"
    except OwnError:
        return "refused"
    except told:
        return "refused"
    except Exception as error:
        traceback = error.__traceback__
        depth = 0
        while traceback is not None:
            depth, last, traceback = depth + 1, traceback, traceback.tb_next
        if isinstance(error, TypeError) and "argument" in str(error) and depth <= 4:
            return "refused"  # Python's own, for a wrong signature
        place = f"{Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
        raise Fault("untyped", f"{words}: {type(error).__name__}: {error} at {place}") from error
    return "answered"


def _require_fit(words: str, error: HotshoeError) -> None:
    text = str(error)
    if not all(line.isprintable() for line in text.split("\n")):
        raise Fault("escape", f"{words}: control characters in {text!r}")
    back = pickle.loads(pickle.dumps(error))
    if (type(back), str(back), back.hint) != (type(error), text, error.hint):
        raise Fault("different", f"{words}: pickled it is another: {back!r}")
    if len(text) < 12:
        raise Fault("untyped", f"{words}: it says no more than {text!r}")


def _short(value: Any) -> str:
    try:
        return repr(value)[:60]
    except Exception:
        return type(value).__name__


# The table


def _prompt(rng: random.Random, world: World) -> Any:
    return rng.choice(("the", "", [5, 6], [], ["a", "b"], [[5], [6, 7]], np.array([5, 6]), "x" * 400))


def _options(rng: random.Random, world: World) -> dict[str, Any]:
    every = {
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "penalty_window": 8,
        "logit_bias": {5: 1.0},
        "seed": 1,
        "context_shift": 4,
        "stop": ["a"],
        "stop_tokens": [7],
        "logprobs": 2,
        "max_tokens": 2,
    }
    return {"max_tokens": 2} | {name: every[name] for name in rng.sample(sorted(every), rng.randint(0, 3))}


def _sampled(rng: random.Random, world: World) -> tuple[list[Any], dict[str, Any]]:
    return [np.linspace(-1, 1, 8, dtype=rng.choice(("f4", "f8", "i4")))[: rng.choice((8, 8, 7))]], {}


def _sampler() -> Sampler:
    return Sampler(SamplingParams(seed=1, repetition_penalty=1.5), 8)


def _messages(rng: random.Random, world: World) -> Any:
    return [{"role": rng.choice(("user", "system", "x")), "content": rng.choice(("Hi", None, ["a"], odd(rng, world)))}]


def _tensor(rng: random.Random, world: World) -> Tensor:
    shape = tuple(rng.choice((1, 2, 3, 8)) for _ in range(rng.randint(0, 4)))
    dtype = rng.choice((DType.F32, DType.F32, DType.F16, DType.I32))
    return rng.choice(world.backends).new_context().input("x", shape, dtype)


def _forms(rng: random.Random, world: World) -> dict[str, Any]:
    """A grammar, or none: its text and its schema are often no valid ones."""
    schema = {"properties": {"a": {"type": odd(rng, world)}}, "required": rng.choice((["a"], ["b"], odd(rng, world)))}
    forms = {"json_schema": schema, "regex": rng.choice(("[0-9]{2}", "(", "a*")), "grammar": 'root ::= "a" | b'}
    return {name: forms[name] if rng.random() < 0.2 else None for name in forms}


def _read_all(stream: Any) -> None:
    with stream:
        for _ in range(4):
            next(stream, None)


NO: Callable[[random.Random, World], tuple[list[Any], dict[str, Any]]] = lambda rng, world: ([], {})  # noqa: E731
CALLS: dict[str, Call] = {
    "model.generate": Call(
        lambda w: w.model.generate,
        lambda r, w: ([_prompt(r, w)], {"params": None, "batch_size": 2} | _forms(r, w) | _options(r, w)),
    ),
    "model.stream": Call(
        lambda w: w.model.stream,
        lambda r, w: ([_prompt(r, w)], {"params": None} | _forms(r, w) | _options(r, w)),
        use=_read_all,
    ),
    "model.chat": Call(lambda w: w.model.chat, lambda r, w: ([_messages(r, w)], {"tools": None} | _options(r, w))),
    "model.stream_chat": Call(
        lambda w: w.model.stream_chat, lambda r, w: ([_messages(r, w)], {"tools": None} | _options(r, w)), use=_read_all
    ),
    "model.score": Call(lambda w: w.model.score, lambda r, w: (["the cat"], {})),
    "model.logits": Call(lambda w: w.model.logits, lambda r, w: ([[5, 6]], {})),
    "model.sequence": Call(lambda w: w.model.sequence, lambda r, w: ([[5, 6]], {}), use=lambda s: s.close()),
    "model.extend": Call(
        lambda w: w.model.extend, lambda r, w: ([[(odd(r, w), [5]), (w.model.sequence([5]), [6])]], {})
    ),
    "sequence.append": Call(lambda w: w.model.sequence([5]).append, lambda r, w: ([5, 6], {})),
    "sequence.truncate": Call(lambda w: w.model.sequence([5, 6]).truncate, lambda r, w: ([1], {})),
    "sequence.shift": Call(lambda w: w.model.sequence([5, 6, 7]).shift, lambda r, w: ([1, 1], {})),
    "EmbeddingSpan": Call(
        lambda w: EmbeddingSpan,
        lambda r, w: ([np.ones((2, 3))], {"hash": b"", "positions": None, "bidirectional": True}),
    ),
    "encoder.embed": Call(
        lambda w: w.encoder.embed,
        lambda r, w: ([r.choice(("the", ["a", "b"], []))], {"truncate": False, "batch_size": 2, "progress": None}),
    ),
    "encoder.hidden_states": Call(lambda w: w.encoder.hidden_states, lambda r, w: (["the cat"], {})),
    "reranker.rank": Call(
        lambda w: w.reranker.rank,
        lambda r, w: (["the", ["a", "b"]], {"top_n": 1, "truncate": True, "batch_size": 2, "progress": None}),
    ),
    "reranker.scores": Call(
        lambda w: w.reranker.scores,
        lambda r, w: ([[("a", "b")]], {"truncate": True, "batch_size": 2}),
    ),
    "tokenizer.encode": Call(
        lambda w: w.model.tokenizer.encode,
        lambda r, w: (["the"], {"add_special": True, "parse_special": True, "max_length": 4}),
    ),
    "tokenizer.encode_batch": Call(
        lambda w: w.model.tokenizer.encode_batch, lambda r, w: ([["the"]], {"max_length": 4})
    ),
    "tokenizer.encode_pair": Call(
        lambda w: w.encoder.tokenizer.encode_pair, lambda r, w: (["a", "b"], {"max_length": 9})
    ),
    "tokenizer.decode": Call(lambda w: w.model.tokenizer.decode, lambda r, w: ([[5, 6]], {}), (IndexError,)),
    "tokenizer.token": Call(lambda w: w.model.tokenizer.token, lambda r, w: ([5], {}), (IndexError,)),
    "tokenizer.piece": Call(lambda w: w.model.tokenizer.piece, lambda r, w: ([5], {}), (IndexError,)),
    "tokenizer.stream": Call(lambda w: w.model.tokenizer.stream().add, lambda r, w: ([5], {}), (IndexError,)),
    "SamplingParams": Call(lambda w: SamplingParams, lambda r, w: ([], _options(r, w))),
    "Sampler": Call(lambda w: Sampler, lambda r, w: ([SamplingParams(), 8], {})),
    "Sampler.sample": Call(lambda w: _sampler().sample, _sampled),
    "Sampler.distribution": Call(lambda w: _sampler().distribution, _sampled),
    "Sampler.sample_from": Call(
        lambda w: Sampler(SamplingParams(seed=1, top_k=2), 8).sample_from,
        lambda r, w: ([np.array([5, 6]), np.array([1.0, 2.0])], {}),
    ),
    "Sampler.accept": Call(lambda w: _sampler().accept, lambda r, w: ([5], {})),
    "Sampler.observe": Call(lambda w: _sampler().observe, lambda r, w: ([[5]], {})),
    "StopMatcher": Call(lambda w: StopMatcher, lambda r, w: ([["a"]], {})),
    "RunnerParams": Call(
        lambda w: RunnerParams,
        lambda r, w: ([], {"n_batch": 8, "n_ubatch": 8, "max_sequences": 2, "n_sequences": 1, "kv_dtype": "f16"}),
    ),
    "PlacementParams": Call(
        lambda w: PlacementParams,
        lambda r, w: (
            [],
            {
                "n_gpu_layers": 1,
                "tensor_split": (1, 2),
                "cpu_moe": 0,
                "kv_offload": True,
                "layer_devices": None,
                "fallback": True,
            },
        ),
    ),
    "placements": Call(lambda w: w.model.placements, lambda r, w: ([2], {})),
    "BackendParams": Call(
        lambda w: lambda **given: hotshoe.load_all().open("cpu", BackendParams(**given)),
        lambda r, w: ([], {"n_threads": 1, "mmap": True, "repack": True, "flash_attention": "auto", "allocate": True}),
        use=lambda backend: backend.close(),
    ),
    "load_model": Call(
        lambda w: hotshoe.load_model,
        lambda r, w: (
            [r.choice((TINY, ENCODER, "nothing.gguf", DATA))],
            {"device": "reference", "n_ctx": 16, "n_threads": None, "n_batch": None, "n_gpu_layers": 0, "task": None}
            | {"progress": None},
        ),
        use=lambda model: model.close(),
    ),
    "load_tokenizer": Call(lambda w: hotshoe.load_tokenizer, lambda r, w: ([TINY], {})),
    "ChatTemplate": Call(
        lambda w: ChatTemplate, lambda r, w: (["{{ messages }}", "<s>"], {"special_tokens": {"a": "b"}, "roles": ["x"]})
    ),
    "ChatTemplate.render": Call(
        lambda w: ChatTemplate("{{ messages }}{{ tools }}{{ documents }}{{ x }}").render,
        lambda r, w: ([_messages(r, w)], {"tools": [{}], "documents": [{}], "add_generation_prompt": True, "x": 1}),
    ),
    "context.input": Call(
        lambda w: w.backends[1].new_context().input, lambda r, w: ([r.choice(("x", "é")), (2, 3), DType.F32], {})
    ),
    "context.forward": Call(lambda w: w.backends[1].new_context().forward, lambda r, w: ([_tensor(r, w)], {})),
    "backend.state": Call(
        lambda w: w.backends[0].state,
        lambda r, w: ([(2, 3), DType.F32, "s"], {"layer": -1}),
        use=lambda tensor: tensor.owner.release([tensor]),
    ),
    "constant": Call(lambda w: constant, lambda r, w: ([[1.0, 2.0]], {})),
    "DType.parse": Call(lambda w: DType.parse, lambda r, w: (["f16"], {})),
}


def one_call(rng: random.Random, world: World) -> str:
    name = rng.choice(sorted(CALLS))
    return attempt(rng, world, name, CALLS[name])


def after_close(rng: random.Random, world: World) -> str:
    """A model, a stream, a sequence, a context and a backend, used after their end, in any order, and closed again."""
    model = hotshoe.load_model(TINY, rng.choice(("reference", "cpu")), n_ctx=16)
    assert isinstance(model, TextModel)
    sequence, stream, backend = model.sequence([5]), model.stream([5, 6], max_tokens=3), model.backend
    context = backend.new_context()
    x = context.input("x", (2,))
    y = x * 2.0
    context.forward(y)
    uses: dict[str, Callable[[], object]] = {
        "generate": lambda: model.generate([5], max_tokens=2),
        "logits": lambda: model.logits([5]),
        "score": lambda: model.score("the"),
        "sequence": lambda: model.sequence([5]),
        "forget": model.forget,
        "extend": lambda: model.extend([(sequence, [5])]),
        "append": lambda: sequence.append(5),
        "next": lambda: next(stream),
        "reserve": context.reserve,
        "compute": lambda: context.compute({x: [1, 2]}),
        "read": lambda: context.read(y),
        "state": lambda: backend.state((2,), DType.F32, "s"),
        "new_context": lambda: backend.new_context().input("x", (1,)),
        "load": lambda: backend.load([]),
        "fork": sequence.fork,
        "truncate": lambda: sequence.truncate(0),
        "memory": model.memory,
        "repr": lambda: repr((model, sequence, stream, context, backend, x, y)),
        "shift": lambda: sequence.shift(0, 1),
        "weights": lambda: model.weights,
        "placements": context.placements,
    }
    closers = [model.close, backend.close, context.close, sequence.close, stream.close]
    outcomes = []
    for _ in range(rng.randint(2, 10)):
        if rng.random() < 0.4:
            closer = rng.choice(closers)
            outcomes.append(judge(f"{closer.__qualname__}()", closer))
        else:
            name = rng.choice(sorted(uses))
            outcomes.append(judge(f"{name} after {outcomes}", uses[name], (StopIteration,)))
    model.close()
    for name in ("generate", "logits", "sequence", "forget", "extend", "append"):
        try:
            uses[name]()
        except ClosedError:
            continue
        raise Fault("wrong verdict", f"{name} of a closed model raises no ClosedError")
    return "refused" if "refused" in outcomes else "answered"


def of_an_op(rng: random.Random, world: World) -> str:
    """An op over tensors, and over some objects that are not tensors."""
    name = rng.choice([n for n in ops.__all__ if n not in ("RoPE", "Recurrence")])
    x = _tensor(rng, world)
    args = [x if rng.random() < 0.6 else _tensor(rng, world) for _ in range(rng.randint(1, 4))]
    kwargs = {
        k: rng.choice((1, 2, -1, 0, (1, 2), 1.5)) for k in rng.sample(("axis", "eps", "k", "shift", "n", "shape"), 1)
    }
    given: list[Any] = [a if rng.random() < 0.8 else odd(rng, world) for a in args]
    more = kwargs if rng.random() < 0.4 else {}
    words = f"ops.{name}({', '.join(map(_short, given))}, {more})"
    return judge(words, lambda: getattr(ops, name)(*given, **more), (TypeError, ZeroDivisionError))


def of_a_tensor(rng: random.Random, world: World) -> str:
    """A method of a tensor, an operator or an index, with anything."""
    x = _tensor(rng, world)
    names = [n for n in dir(Tensor) if not n.startswith("_") and callable(getattr(Tensor, n))]
    name = rng.choice((*names, "[]", "+", "@"))
    given = [odd(rng, world) for _ in range(rng.randint(0, 2))]
    calls: dict[str, Callable[[], object]] = {
        "[]": lambda: x[tuple(given)],
        "+": lambda: x + odd(rng, world),
        "@": lambda: x @ odd(rng, world),
    }
    body = calls.get(name, lambda: getattr(x, name)(*given))
    return judge(f"{x!r}.{name}({', '.join(map(_short, given))})", body, (TypeError, ZeroDivisionError))


def of_a_context(rng: random.Random, world: World) -> str:
    """The steps of a context in any order, with values that fit or do not; what it computes is right."""
    backend = rng.choice(world.backends)
    with backend.new_context() as context:
        x = context.input("x", (2, 3))
        y = x * 2.0 + 1.0
        state = backend.state((2, 3), DType.F32, "s")
        values = np.arange(6, dtype=np.float32).reshape(2, 3)
        steps: dict[str, Callable[[], object]] = {
            "forward": lambda: context.forward(y),
            "reserve": context.reserve,
            "compute": lambda: context.compute({x: rng.choice((values, values.tolist(), odd(rng, world)))}),
            "feeds": lambda: context.compute(odd(rng, world)),
            "read": lambda: context.read(y),
            "read out": lambda: context.read(y, odd(rng, world)),
            "read odd": lambda: context.read(odd(rng, world)),
            "input": lambda: context.input(odd(rng, world), odd(rng, world), odd(rng, world)),
            "update": lambda: context.update(rng.choice((state, odd(rng, world))), rng.choice((y, odd(rng, world)))),
            "fed": lambda: context.fed(rng.choice((x, odd(rng, world)))),
            "graph": context.graph,
            "memory": context.memory,
        }
        outcomes = []
        for _ in range(rng.randint(1, 8)):
            name = rng.choice(sorted(steps))
            outcomes.append(judge(f"context.{name} on {backend.name}", steps[name]))
    backend.release([state])
    with backend.new_context() as context:
        x = context.input("x", (2, 3))
        y = x * 2.0 + 1.0
        got = context.forward(y).compute({x: values}).read(y)
    if not np.array_equal(got, values * 2 + 1):
        raise Fault("different", f"2x + 1 is {got} on {backend.name}")
    return "refused" if "refused" in outcomes else "answered"


def of_two_threads(rng: random.Random, world: World) -> str:
    """Misuse in one thread while another generates: it gets its text."""
    texts: list[str] = []
    thread = threading.Thread(
        target=lambda: texts.append(world.model.generate(PROMPT, temperature=0, max_tokens=6).text), daemon=True
    )
    thread.start()
    try:
        outcome = one_call(rng, world)
    finally:
        thread.join(PATIENCE)
    if texts != [world.greedy]:
        raise Fault("different", f"another thread got {texts}; expected {world.greedy!r}")
    return outcome


SCENES = (*[one_call] * 6, after_close, of_an_op, of_a_tensor, of_a_context, of_two_threads)
