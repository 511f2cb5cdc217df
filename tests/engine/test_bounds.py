"""What a model that serves for long keeps: the memory of its graphs, its store and its jobs is bounded."""

from __future__ import annotations

import gc
import random
from pathlib import Path

from hotshoe.runner.contexts import ContextCache
from hotshoe.runner.jobs import Job
from hotshoe.runner.text import TextModel
from hotshoe.sampling import SamplingParams
from hotshoe_core import Context, Tensor
from tests.support.text_models import load

VERSE = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"


def weight(model: TextModel) -> int:
    contexts: ContextCache = model._forward.contexts
    return sum(map(contexts._weight, contexts.signatures))


def test_what_is_kept_is_bounded() -> None:
    """Without the garbage collector, which the server lets run rarely: what is done must not refer to itself."""
    draw = random.Random(3)
    options = {"n_ctx": 256, "n_sequences": 2, "n_ubatch": 32, "n_batch": 64, "max_sequences": 8}
    with load(VERSE, "cpu", prefix_memory=1 << 19, **options) as model:
        contexts, store = model._forward.contexts, model.engine._slots.store
        assert store is not None
        params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 4, 9)]
        gc.collect()
        gc.disable()
        try:
            for _ in range(60):
                prompts = [[draw.randrange(3, 250) for _ in range(draw.randrange(1, 120))] for _ in params]
                model.generate(prompts, params)
                assert weight(model) <= contexts._capacity
                assert store.memory_bytes <= 1 << 19
            found = gc.get_objects()
            kept = [o for o in found if type(o) is Context and o.backend is model.backend]
            assert contexts.n_built > 2 * len(contexts.signatures)  # most of them were closed
            assert len(kept) == len(contexts.signatures)
            n_tensors = sum(type(o) is Tensor and o.context is not None and o.context not in kept for o in found)
            assert n_tensors == 0
            assert not [o for o in found if issubclass(type(o), Job)]
            assert not model.engine.jobs
        finally:
            gc.enable()
