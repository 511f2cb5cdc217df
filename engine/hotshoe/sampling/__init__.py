"""Choose the next token from logits: penalties, filters, a reproducible draw, grammars, stop strings.

    sampler = Sampler(SamplingParams(temperature=0.7, seed=1), vocab_size)
    sampler.observe(prompt_ids)                 # penalties look at the prompt too
    token = sampler.sample(logits).id           # float32 (vocab_size,)
    sampler.accept(token)

The order of the steps is that of llama.cpp; see ``Sampler``.
"""

from hotshoe.sampling._grammar import Grammar, GrammarState, GrammarVocabulary
from hotshoe.sampling._params import DeviceSampling, SamplingParams
from hotshoe.sampling._sampler import Constraint, Sampled, Sampler
from hotshoe.sampling._stop import StopMatcher

__all__ = [
    "Constraint",
    "DeviceSampling",
    "Grammar",
    "GrammarState",
    "GrammarVocabulary",
    "Sampled",
    "Sampler",
    "SamplingParams",
    "StopMatcher",
]
