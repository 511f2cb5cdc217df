"""Architectures of llama.cpp, and a few of Ollama, that hotshoe does not implement, each with the reason."""

from __future__ import annotations

__all__ = ["REFUSED"]

_DIFFUSION = "it writes texts by removing noise from all tokens in rounds, which needs another runner"
_SPEECH = "it generates speech, which is another task"
_DRAFTER = "it drafts tokens for another model and reads that model's hidden states"
_OTHER_RWKV = "its time mixing differs from that of the other RWKV versions, and few people use it"

REFUSED: dict[str, str] = {
    "arctic": "a dense MLP and experts run side by side, each with its own residual",
    "arwkv7": _OTHER_RWKV,
    "bailingmoe3": "KDA layers and latent attention in one model, with gates of its own",
    "bitnet": "llama.cpp computes another activation than the published model",
    "chameleon": "its norms depend on the size, and it writes pictures as tokens",
    "clip": "it is the encoder of pictures or sounds for another model, not a model of texts",
    "codeshell": "not written yet: GPT-2's block with RoPE",
    "cogvlm": "a second set of weights for the tokens of pictures",
    "deepseek2-ocr": "it reads pictures, with an encoder that hotshoe does not have",
    "deepseek4": "hyper-connections, layers whose experts follow from a hash, and compressed keys",
    "dflash": _DRAFTER,
    "dots3note": "latent attention of two ranks, an indexer and gates",
    "dream": _DIFFUSION,
    "eagle3": _DRAFTER,
    "gemma4-assistant": _DRAFTER,
    "glm5-next": "hyper-connections, KDA and a pooled indexer",
    "gptj": "llama.cpp has the name, but no such model",
    "graniteswitch": "adapters inside the file, which tokens switch on and off",
    "grok": "three caps of logits and scales that only this model has",
    "grovemoe": "a second kind of experts that groups of experts share",
    "hrm_text": "layers that run in two nested loops",
    "hunyuan_vl": "it reads pictures, with an encoder that hotshoe does not have",
    "hy_v4": "a version after those that this release knows",
    "jais": "ALiBi with GPT-2's block and scales of its own",
    "jina-bert-v3": "not written yet: an encoder whose files come with adapters",
    "kimi-k3": "residuals that attend to the results of all layers before, and latent experts",
    "llada": _DIFFUSION,
    "llada-moe": _DIFFUSION,
    "maple": "a version after those that this release knows",
    "minimax-01": "lightning attention in seven of eight layers",
    "minimax-m3": "attention that reads chosen blocks of tokens",
    "nanbeige": "the same layers run several times",
    "neo-bert": "not written yet: an encoder with RMS norms and a packed SwiGLU",
    "olmo": "not written yet: LayerNorms without weights, and limits of queries, keys and values",
    "openelm": "numbers of heads and sizes of MLPs that differ by layer",
    "phimoe": "transformers computes LayerNorms where llama.cpp computes RMS norms with a bias, so no oracle decides",
    "plamo": "its tokenizer is a program of its own",
    "plamo2": "its tokenizer is a program of its own, and its Mamba differs from others",
    "plamo3": "its tokenizer is a program of its own",
    "plm": "latent attention with squared ReLU, used by one small model",
    "pockettts": _SPEECH,
    "qwen3tts": _SPEECH,
    "qwen4exp": "hyper-connections of low rank, an indexer of blocks, and embeddings of n-grams",
    "refact": "not written yet: ALiBi with one head of keys",
    "rnd1": _DIFFUSION,
    "rwkv6": _OTHER_RWKV,
    "rwkv6qwen2": _OTHER_RWKV,
    "smallthinker": "the router reads the input of the block, before attention",
    "solar": "layers that repeat the results of earlier ones; only Ollama's files have this form",
    "spark2_5": "a version after those that this release knows",
    "t5": "an encoder and a decoder, which needs another runner",
    "talkie": "skip connections of the embedding to each layer, and norms without weights",
    "wavtokenizer-dec": _SPEECH,
}
"""Only for architectures without a model: the reason of one that a distribution implements is not used."""
