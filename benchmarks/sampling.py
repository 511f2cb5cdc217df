"""Measure the milliseconds to choose one of 151,936 tokens: greedy, the default chain, and other options.

    python benchmarks/sampling.py

The cases take turns; the least of several rounds counts. Logits are normal with a few high ones, like a model's.
"""

from __future__ import annotations

import time

import numpy as np

from hotshoe.sampling import Sampler, SamplingParams

VOCABULARY = 151_936
CASES = {
    "greedy": SamplingParams(temperature=0),
    "default chain": SamplingParams(seed=1),
    "default chain, penalties over 64 tokens": SamplingParams(seed=1, repetition_penalty=1.1, frequency_penalty=0.1),
    "default chain, 20 biases": SamplingParams(seed=1, logit_bias=dict.fromkeys(range(20), 1.0)),
    "default chain, 5 logprobs": SamplingParams(seed=1, logprobs=5),
    "default chain, typical_p 0.9": SamplingParams(seed=1, typical_p=0.9),
    "top_p alone": SamplingParams(seed=1, top_k=0, min_p=0),
    "min_p alone": SamplingParams(seed=1, top_k=0, top_p=1),
    "temperature alone": SamplingParams(seed=1, top_k=0, top_p=1, min_p=0),
}


def main() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, VOCABULARY).astype(np.float32)
    logits[rng.integers(0, VOCABULARY, 200)] += rng.gamma(3, 3, 200).astype(np.float32)
    samplers = {name: Sampler(params, VOCABULARY) for name, params in CASES.items()}
    for sampler in samplers.values():
        sampler.observe(range(1000, 1064))
    best = dict.fromkeys(samplers, float("inf"))
    for _ in range(10):
        for name, sampler in samplers.items():
            sampler.sample(logits)
            start = time.perf_counter()
            for _ in range(20):
                sampler.sample(logits)
            best[name] = min(best[name], (time.perf_counter() - start) / 20)
    for name, seconds in best.items():
        print(f"{name:<42}{seconds * 1e3:8.3f} ms")


if __name__ == "__main__":
    main()
