"""Convert RWKV-7, as flash-linear-attention saves it: "Goose", without attention.

GGUF has the weights of the token shift, one vector for each of six uses, as one tensor. It needs the matrices of the
value mix in the first layer too, where no reader uses them: llama.cpp's converter writes those of the learning rate.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, make_layout, refuse_quantized
from hotshoe.convert._json import read_object, regular
from hotshoe.tokenizers._vocabulary import PREFIX, TokenType
from hotshoe_core.errors import ModelFileError

__all__ = ["describe"]

_CONTEXT = 2**20  # there is no limit, but readers need one; llama.cpp's converter writes this number
_VOCABULARY = "rwkv_vocab_v20230424.txt"
_END_OF_TURN = 261  # "\n\n"
_SHIFTS = "rwkvag"  # the order of the six uses in GGUF
_RANKS = {"w": "decay", "a": "iclr", "v": "value_residual_mix", "g": "gate"}
_RANK_KEYS = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "v": "v_low_rank_dim", "g": "gate_low_rank_dim"}
_NORMS = ("token_embd_norm", "attn_norm", "attn_norm_2", "time_mix_ln", "output_norm")
_NAMES: dict[str, str | tuple[str, ...]] = {
    "model.embeddings": "token_embd",
    "model.pre_norm": "token_embd_norm",
    "layers.ffn_norm": "attn_norm_2",
    "layers.attn.shift.experts": "time_mix_lerp_fused",
    "layers.attn.r_proj": "time_mix_receptance",
    "layers.attn.k_proj": "time_mix_key",
    "layers.attn.v_proj": "time_mix_value",
    "layers.attn.o_proj": "time_mix_output",
    "layers.attn.k_k": "time_mix_k_k",
    "layers.attn.k_a": "time_mix_k_a",
    "layers.attn.r_k": "time_mix_r_k",
    "layers.attn.g_norm": "time_mix_ln",
    "layers.ffn.x_k": "channel_mix_lerp_k",
    "layers.ffn.key": "channel_mix_key",
    "layers.ffn.value": "channel_mix_value",
}
for _letter in _RANKS:
    _NAMES[f"layers.attn.{_letter}_lora.lora.0"] = f"time_mix_{_letter}1"
    _NAMES[f"layers.attn.{_letter}_lora.lora.2"] = f"time_mix_{_letter}2"
    if _letter != "g":
        _NAMES[f"layers.attn.{_letter}_lora.lora.2.bias"] = f"time_mix_{_letter}0.weight"


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    refuse_quantized(checkpoint)
    checkpoint = dataclasses.replace(checkpoint, tensors=_renamed(checkpoint.tensors))
    checkpoint.expect(hidden_act="sqrelu", norm_first=True, norm_bias=True)
    checkpoint.require("attn", None)
    dim, head_dim = checkpoint.integer("hidden_size"), checkpoint.integer("head_dim", 64)
    heads, vocab = dim // head_dim, checkpoint.integer("vocab_size")
    keys = {
        "context_length": _CONTEXT,
        "embedding_length": dim,
        "block_count": checkpoint.layers(),
        "attention.layer_norm_epsilon": checkpoint.number("norm_eps", 1e-5),
        "wkv.head_size": head_dim,
        **{f"attention.{_RANKS[x]}_lora_rank": _rank(checkpoint, dim, x) for x in _RANKS},
        "feed_forward_length": checkpoint.integer("intermediate_size", 4 * dim),
        "attention.head_count": 0,  # readers need the key
    }
    matrices = [f"time_mix_{x}{i}.weight" for x in _RANKS for i in (1, 2)]
    rules = Rules(
        names=_NAMES,
        required=[f"{norm}.bias" for norm in _NORMS],
        recipes={"time_mix_r_k.weight": Recipe(lambda value: value.reshape(-1), (heads, head_dim))}
        | {name: Recipe(full_precision=name.startswith("time_mix_w")) for name in matrices}
        | {"time_mix_lerp_fused.weight": Recipe(full_precision=True)},
    )
    return make_layout(checkpoint, "rwkv7", keys, rules, vocab=vocab, tokenizer=_vocabulary)


def _rank(checkpoint: Checkpoint, dim: int, letter: str) -> int:
    """The rank of two matrices. flash-linear-attention's default is the one of the paper."""
    exponent, factor = {"w": (0.5, 1.8), "a": (0.5, 1.8), "v": (0.5, 1.3), "g": (0.8, 0.6)}[letter]
    return checkpoint.integer(_RANK_KEYS[letter], max(1, round(dim**exponent * factor / 32)) * 32)


def _renamed(tensors: dict[str, Any]) -> dict[str, Any]:
    """Name the six vectors of a token shift as if they were experts, and the first layer's norm as the model's."""

    def new(name: str) -> str:
        name = name.replace("layers.0.pre_norm", "pre_norm")
        return re.sub(r"\.attn\.x_([rwkvag])$", lambda m: f".attn.shift.experts.{_SHIFTS.index(m[1])}.weight", name)

    found = {new(name): tensor for name, tensor in tensors.items()}
    rates = {name: tensor for name, tensor in found.items() if "layers.0.attn.a_lora." in name}
    return found | {name.replace("a_lora", "v_lora"): tensor for name, tensor in rates.items()}


def _vocabulary(checkpoint: Checkpoint, n_tokens: int) -> dict[str, Any]:
    """Read the tokens, one in each line: an id, a Python literal and the number of bytes."""
    path = checkpoint.folder / _VOCABULARY
    tokens, types = ["<s>"], [TokenType.CONTROL]
    try:
        lines = regular(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot be read: {error}", path=path) from None
    for number, line in enumerate(lines, 1):
        try:
            id, rest = line.split(" ", 1)
            literal, length = rest.rsplit(" ", 1)
            value = ast.literal_eval(literal)
            token = value.encode() if isinstance(value, str) else value
            if not isinstance(token, bytes) or int(id) != number or int(length) != len(token):
                raise ValueError("expected its number, a string and the number of its bytes")
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ModelFileError(f"line {number} is {line[:60]!r}: {error}", path=path) from None
        tokens.append(repr(token)[2:-1])
        types.append(TokenType.NORMAL)
    if len(tokens) > n_tokens:
        raise checkpoint.refusal(f"vocab_size is {n_tokens}, but {_VOCABULARY} has {len(tokens) - 1} tokens")
    tokens += [f"[PAD{i}]" for i in range(len(tokens), n_tokens)]
    types += [TokenType.UNUSED] * (n_tokens - len(types))
    metadata: dict[str, Any] = {"model": "rwkv", "tokens": tokens, "token_type": [int(kind) for kind in types]}
    metadata |= {"bos_token_id": 0, "eos_token_id": 0}
    if n_tokens > _END_OF_TURN:
        metadata["eot_token_id"] = _END_OF_TURN
    settings = checkpoint.folder / "tokenizer_config.json"
    template = read_object(settings).get("chat_template") if settings.is_file() else None
    found = {PREFIX + key: value for key, value in metadata.items()}
    return found | ({"tokenizer.chat_template": template} if isinstance(template, str) else {})
