"""Helpers for converters of text models: sizes in config.json, common tensors, and their metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotshoe.convert._layout import FileLayout
from hotshoe.convert._sources import TensorSource, as_is, has, match_sources
from hotshoe.convert._tokens import tokenizer_metadata
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = [
    "ModelSizes",
    "attention_tensors",
    "linear",
    "make_layout",
    "mlp_tensors",
    "non_layer_tensors",
    "read_sizes",
    "refuse_quantized",
]


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a text model in config.json, whatever its keys are called."""

    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ff: int
    """Hidden elements of the MLP."""
    vocab: int
    context: int
    """Tokens that the model was trained for."""
    eps: float
    """Epsilon of the norms."""
    states_head_dim: bool = False
    """True if config.json gives head_dim; otherwise it is hidden_size / num_attention_heads."""

    @property
    def q(self) -> int:
        """Elements of the queries of all heads."""
        return self.n_heads * self.head_dim

    @property
    def kv(self) -> int:
        """Elements of the keys, or of the values, of all heads."""
        return self.n_kv_heads * self.head_dim

    def metadata(self, arch: str, *, heads: bool = True) -> dict[str, Any]:
        """The GGUF keys. ``heads``: write the length of a head, unless readers derive it correctly from other keys."""
        keys: dict[str, Any] = {
            f"{arch}.block_count": self.n_layers,
            f"{arch}.context_length": self.context,
            f"{arch}.embedding_length": self.dim,
            f"{arch}.feed_forward_length": self.ff,
            f"{arch}.attention.head_count": self.n_heads,
            f"{arch}.attention.head_count_kv": self.n_kv_heads,
            f"{arch}.attention.layer_norm_rms_epsilon": self.eps,
        }
        if heads and (self.states_head_dim or self.q != self.dim):
            keys |= {f"{arch}.attention.key_length": self.head_dim, f"{arch}.attention.value_length": self.head_dim}
        return keys


def read_sizes(
    checkpoint: Checkpoint, *, head_dim: int | None = None, n_kv_heads: int | None = None, eps: str = "rms_norm_eps"
) -> ModelSizes:
    """Read the sizes of a text model from config.json.

    head_dim, n_kv_heads: the architecture's defaults, if config.json does not give them. Without a default, head_dim is
    hidden_size / num_attention_heads, and n_kv_heads is num_attention_heads.
    eps: the key of the norms' epsilon.

    Raises ModelFileError if a size is missing or not a number; ConversionError if sizes contradict each other, or if
    the checkpoint is quantized.
    """
    refuse_quantized(checkpoint)
    n_layers = checkpoint.layers()
    dim, n_heads = checkpoint.integer("hidden_size"), checkpoint.integer("num_attention_heads")
    path = checkpoint.model / "config.json"
    if checkpoint.config.get("head_dim") is None and head_dim is None and dim % n_heads:
        raise ConversionError(f"{path}: hidden_size {dim} is not a multiple of num_attention_heads {n_heads}")
    sizes = ModelSizes(
        n_layers=n_layers,
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=checkpoint.integer("num_key_value_heads", n_kv_heads or n_heads),
        head_dim=checkpoint.integer("head_dim", head_dim or dim // n_heads),
        ff=checkpoint.integer("intermediate_size"),
        vocab=checkpoint.integer("vocab_size"),
        context=checkpoint.integer("max_position_embeddings"),
        eps=checkpoint.number(eps, 1e-6),
        states_head_dim=checkpoint.config.get("head_dim") is not None,
    )
    if n_heads % sizes.n_kv_heads:
        raise ConversionError(
            f"{path}: num_attention_heads {n_heads} is not a multiple of num_key_value_heads {sizes.n_kv_heads}"
        )
    if sizes.head_dim % 2:
        raise ConversionError(f"{path}: head_dim is {sizes.head_dim}; RoPE needs an even one")
    return sizes


def refuse_quantized(checkpoint: Checkpoint) -> None:
    """Raise ConversionError if the weights of the checkpoint were quantized for another engine."""
    stated = checkpoint.config.get("quantization_config")
    if stated is None:
        return
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    if method is None and isinstance(stated, dict):
        method = next((key for key in ("load_in_4bit", "load_in_8bit") if stated.get(key)), None)
    raise ConversionError(
        f"{checkpoint.model} is quantized already ({method or 'quantization_config'} in config.json); converting it "
        "would lose precision twice",
        hint="convert the original checkpoint, with --type q8_0 or q4_k_m for a small file",
    )


def linear(name: str, source: str, n_out: int, n_in: int, *, bias: bool = False) -> list[TensorSource]:
    """A matrix of shape (n_out, n_in) and, if ``bias`` is true, its bias of shape (n_out,)."""
    tensors = [as_is(f"{name}.weight", f"{source}.weight", (n_out, n_in))]
    return tensors + ([as_is(f"{name}.bias", f"{source}.bias", (n_out,))] if bias else [])


def attention_tensors(
    block: str, source: str, sizes: ModelSizes, *, bias: bool = False, out: str = "o_proj", out_bias: bool = False
) -> list[TensorSource]:
    """The matrices of attention: queries, keys and values, with a bias each if ``bias``, and the output ``out``."""
    return [
        *linear(f"{block}.attn_q", f"{source}.q_proj", sizes.q, sizes.dim, bias=bias),
        *linear(f"{block}.attn_k", f"{source}.k_proj", sizes.kv, sizes.dim, bias=bias),
        *linear(f"{block}.attn_v", f"{source}.v_proj", sizes.kv, sizes.dim, bias=bias),
        *linear(f"{block}.attn_output", f"{source}.{out}", sizes.dim, sizes.q, bias=out_bias),
    ]


def mlp_tensors(
    block: str,
    source: str,
    dim: int,
    ff: int,
    *,
    bias: bool = False,
    names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
    suffix: str = "",
) -> list[TensorSource]:
    """The matrices of a gated MLP with ``ff`` hidden elements. ``names``: of gate, up and down in the checkpoint."""
    gate, up, down = names
    return [
        *linear(f"{block}.ffn_gate{suffix}", f"{source}.{gate}", ff, dim, bias=bias),
        *linear(f"{block}.ffn_up{suffix}", f"{source}.{up}", ff, dim, bias=bias),
        *linear(f"{block}.ffn_down{suffix}", f"{source}.{down}", dim, ff, bias=bias),
    ]


def non_layer_tensors(
    checkpoint: Checkpoint,
    sizes: ModelSizes,
    *,
    tied: bool,
    norm: tuple[str, str] = ("output_norm", "model.norm"),
    norm_plus: float = 0.0,
) -> list[TensorSource]:
    """The tensors outside the layers: token embedding, last norm, and output matrix.

    tied: the architecture's default of tie_word_embeddings.
    norm: the name of the last norm in the file and in the checkpoint.
    norm_plus: a number that is added to the weights of that norm.

    An embedding model needs no output matrix. Raises ConversionError if the checkpoint has no output matrix and no
    pooling: readers would take the file for a text model.
    """
    tensors = [
        as_is("token_embd.weight", "model.embed_tokens.weight", (sizes.vocab, sizes.dim)),
        as_is(f"{norm[0]}.weight", f"{norm[1]}.weight", (sizes.dim,), plus=norm_plus),
    ]
    stated = checkpoint.config.get("tie_word_embeddings")
    tied = tied if stated is None else bool(stated)
    embeds = checkpoint.sentence.pooling is not None
    if not embeds and checkpoint.architecture is not None and checkpoint.architecture.endswith("Model"):
        raise ConversionError(
            f"{checkpoint.model} is a {checkpoint.architecture}, a model without an output matrix, but has no "
            "modules.json that says how embeddings are pooled",
            hint="copy modules.json and the folders it names from the sentence-transformers model",
        )
    # some checkpoints hold an output matrix although it is tied
    if has(checkpoint, "lm_head.weight") or not (tied or embeds):
        tensors.append(as_is("output.weight", "lm_head.weight", (sizes.vocab, sizes.dim)))
    return tensors


def make_layout(
    checkpoint: Checkpoint,
    arch: str,
    sources: Iterable[TensorSource],
    metadata: Mapping[str, Any],
    *,
    vocab: int,
    ignored: tuple[str, ...] = (),
) -> FileLayout:
    """Make the FileLayout of a text model: the given tensors and metadata, and the metadata of its tokenizer.

    vocab: the number of tokens, which is the number of rows of the embedding.
    ignored: prefixes of the names of tensors that the model does not use.

    Raises ConversionError if tensors are missing, unknown, or of another shape, or if GGUF cannot express the
    tokenizer; ModelFileError if files of the tokenizer are missing or damaged.
    """
    if checkpoint.sentence.lowercase:
        raise ConversionError(
            f"{checkpoint.model / 'sentence_bert_config.json'}: do_lower_case is true; for a text model, a GGUF file "
            "cannot say that texts are lowercased",
            hint="set it to false, and pass texts in lower case to the model",
        )
    tensors = match_sources(checkpoint, sources, ignored)
    # after the tensors, because their shapes prove that ``vocab`` is correct
    keys = dict(metadata) | checkpoint.sentence.metadata(arch)
    return FileLayout(arch, keys | tokenizer_metadata(checkpoint, vocab), tensors)
