"""Text models small enough to make in a test: random weights, a tokenizer of some hundred tokens, no download.

``make_tiny("Qwen3ForCausalLM", folder, tie_word_embeddings=True)`` writes a Hugging Face folder with transformers,
always the same for the same arguments. Weights are wide enough that attention, norms and biases matter to the logits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS

__all__ = [
    "COMMON",
    "MLA",
    "ARCHITECTURES",
    "CHAT_TEMPLATE",
    "MORE_ARCHITECTURES",
    "SENTENCES",
    "VOCAB_SIZE",
    "end_texts_with",
    "make_tiny",
    "make_tokenizer",
    "state_dict",
]

VOCAB_SIZE = 320  # more than the tokenizer has, as in published models
CHAT_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "the camera has a hot shoe; the flash is on the camera",
    "hello world, hello models: write a model once, run it on whatever there is",
    "3 33 333 numbers 12 2024 and Some Upper Case Words",
)
_SPECIAL = ("<|begin|>", "<|end|>")
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
"""The config of every tiny text model, unless the model says otherwise."""
# config class, and what differs from COMMON
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("LlamaConfig", {}),
    "MistralForCausalLM": ("MistralConfig", {"sliding_window": None}),
    "Qwen2ForCausalLM": ("Qwen2Config", {}),
    "Qwen3ForCausalLM": ("Qwen3Config", {"head_dim": 32}),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        {
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "num_hidden_layers": 2,
        },
    ),
    "Gemma3ForCausalLM": (
        "Gemma3TextConfig",
        {
            "head_dim": 32,
            "sliding_window": 16,
            "num_hidden_layers": 7,  # the pattern repeats after six
            "query_pre_attn_scalar": 32,
        },
    ),
    "Phi3ForCausalLM": (
        "Phi3Config",
        {"original_max_position_embeddings": 256, "sliding_window": None, "resid_pdrop": 0.0},
    ),
}
# as ARCHITECTURES: those that differ from the others by more than sizes, in their layers or in what they keep
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
MORE_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "MixtralForCausalLM": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "DeepseekV2ForCausalLM": (
        "DeepseekV2Config",
        MLA | {"q_lora_rank": None, "n_routed_experts": 4, "n_shared_experts": 2, "n_group": 1, "topk_group": 1},
    ),
    "DeepseekV3ForCausalLM": (
        "DeepseekV3Config",
        MLA
        | {"q_lora_rank": 16, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2}
        | {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "norm_topk_prob": True},
    ),
    "Mamba2ForCausalLM": (
        "Mamba2Config",
        {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2, "conv_kernel": 4},
    ),
    "Lfm2ForCausalLM": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32}),
}


def make_tiny(
    architecture: str, folder: Path, *, pre: str = "qwen2", seed: int = 0, dtype: str = "float32", **changes: Any
) -> Path:
    """Writes config.json, model.safetensors and tokenizer files; ``changes`` go to the config.

    ``pre`` is the tokenizer: a byte-level one's ``tokenizer.ggml.pre``, or "spaces" for BPE with byte_fallback.
    Skips the test where torch or transformers is missing.
    """
    torch = pytest.importorskip("torch", reason="the tests of text models make theirs with torch")
    transformers = pytest.importorskip("transformers", reason="the tests of text models make theirs with transformers")
    config_class, own = (ARCHITECTURES | MORE_ARCHITECTURES)[architecture]
    config = getattr(transformers, config_class)(**COMMON | own | changes)
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith(("norm.weight", "norm_f.weight")):
                value.copy_(noise * 0.2 + (0.0 if architecture.startswith("Gemma") else 1.0))
            elif value.ndim < 2:
                value.copy_(noise * 0.2)
            else:
                value.copy_(noise * (1.0 if "embed" in name else 1.5 / value.shape[-1] ** 0.5))
        for name, value in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                value.copy_(torch.randn(value.shape, generator=generator) * 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    make_tokenizer(folder, pre)
    return folder


def make_tokenizer(folder: Path, pre: str = "qwen2", *, bos: bool | None = None) -> None:
    """Writes tokenizer.json and tokenizer_config.json; ``bos``: whether a text gets one (as ``pre`` has it)."""
    from tokenizers import AddedToken, processors

    inner = _spaces() if pre == "spaces" else _bytes(pre)
    inner.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<|odd|>", normalized=False)])
    if bos if bos is not None else pre == "spaces" or PRE_TOKENIZERS[pre].add_bos:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{_SPECIAL[0]} $A", pair=f"{_SPECIAL[0]} $A $B", special_tokens=[(_SPECIAL[0], 0)]
        )
    elif pre != "spaces":
        inner.post_processor = processors.ByteLevel(trim_offsets=False)
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[1],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def end_texts_with(folder: Path, token: str) -> None:
    """Makes tokenizer.json put this token after a text, as the tokenizers of embedding models do."""
    from tokenizers import Tokenizer, processors

    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.post_processor = processors.TemplateProcessing(
        single=f"$A {token}", pair=f"$A {token} $B {token}", special_tokens=[(token, inner.token_to_id(token))]
    )
    inner.save(str(folder / "tokenizer.json"))


def state_dict(folder: Path) -> dict[str, Any]:
    """The checkpoint's tensors as float32, by another reader than hotshoe's."""
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= {name: value.to(torch.float32).numpy() for name, value in safetensors.load_file(path).items()}
    return found


def _bytes(pre: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    kind = PRE_TOKENIZERS[pre]
    inner = Tokenizer(models.BPE(ignore_merges=kind.ignore_merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), behavior="isolated") for split in kind.splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=310, special_tokens=[*_SPECIAL], initial_alphabet=sorted(alphabet), show_progress=False
    )
    inner.train_from_iterator(SENTENCES, trainer)
    return inner


def _spaces() -> Any:
    """Like Llama 2's tokenizer.json: spaces are U+2581, letters without a token are bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = [*_SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ("▁the", "▁he", "er", "ar")
    letters = sorted({letter for word in words for letter in word})
    merges = [("h", "e"), ("e", "r"), ("▁", "t"), ("▁t", "he"), ("▁", "he"), ("a", "r")]
    tokens += letters + [a + b for a, b in merges]
    model = models.BPE(
        {token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    inner = Tokenizer(model)
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([*_SPECIAL, "<unk>"])
    return inner
