"""What the text models share: the sizes in config.json, the tensors every one of them has, and the keys for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotshoe.convert._plan import Plan
from hotshoe.convert._recipes import Recipe, as_is, has, plan_recipes
from hotshoe.convert._tokens import tokenizer_metadata
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["Sizes", "linear", "make_plan", "outer_recipes", "read_sizes", "refuse_quantized"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder, in the words of config.json's meaning, not of its keys."""

    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    context: int
    eps: float
    states_head_dim: bool = False  # config.json does, rather than leave it to be derived

    @property
    def q(self) -> int:
        """Width of all queries together."""
        return self.n_heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of all keys, and of all values."""
        return self.n_kv_heads * self.head_dim

    def metadata(self, arch: str, *, heads: bool = True) -> dict[str, Any]:
        """The keys. ``heads``: also the length of a head, unless readers derive it rightly from the others."""
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
) -> Sizes:
    """The defaults are the architecture's own; without them a head is hidden_size / heads, and there are as many.

    ``eps`` is the key for the norms' epsilon.

    Raises ModelFileError for sizes that are missing or no numbers, ConversionError for ones that cannot be, and for
    a checkpoint that is quantized.
    """
    refuse_quantized(checkpoint)
    n_layers = checkpoint.layers()
    dim, n_heads = checkpoint.integer("hidden_size"), checkpoint.integer("num_attention_heads")
    path = checkpoint.model / "config.json"
    if checkpoint.config.get("head_dim") is None and head_dim is None and dim % n_heads:
        raise ConversionError(f"{path}: hidden_size {dim} is not a multiple of num_attention_heads {n_heads}")
    sizes = Sizes(
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
    """Raises ConversionError for a checkpoint whose weights were quantized for another engine."""
    stated = checkpoint.config.get("quantization_config")
    if stated is None:
        return
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    if method is None and isinstance(stated, dict):
        method = next((key for key in ("load_in_4bit", "load_in_8bit") if stated.get(key)), None)
    raise ConversionError(
        f"{checkpoint.model} is quantized already ({method or 'quantization_config'} in config.json), and converting "
        "it would lose precision twice",
        hint="convert the original checkpoint, with --type q8_0 or q4_k_m if it should be small",
    )


def linear(name: str, source: str, out: int, into: int, *, bias: bool = False) -> list[Recipe]:
    """A matrix and, with ``bias``, its vector."""
    recipes = [as_is(f"{name}.weight", f"{source}.weight", (out, into))]
    return recipes + ([as_is(f"{name}.bias", f"{source}.bias", (out,))] if bias else [])


def outer_recipes(
    checkpoint: Checkpoint,
    sizes: Sizes,
    *,
    tied: bool,
    norm: tuple[str, str] = ("output_norm", "model.norm"),
    norm_plus: float = 0.0,
) -> list[Recipe]:
    """Embeddings, the last norm, and the head; ``tied`` is the architecture's default of tie_word_embeddings.

    ``norm`` is the last norm's name in the file and in the checkpoint; ``norm_plus`` is added to its weights.

    A model that gives embeddings may have no head: it needs none. Raises ConversionError for a model without a head
    that does not say how a text's embedding is made of its tokens': the file would be taken for a text model's.
    """
    recipes = [
        as_is("token_embd.weight", "model.embed_tokens.weight", (sizes.vocab, sizes.dim)),
        as_is(f"{norm[0]}.weight", f"{norm[1]}.weight", (sizes.dim,), plus=norm_plus),
    ]
    stated = checkpoint.config.get("tie_word_embeddings")
    tied = tied if stated is None else bool(stated)
    embeds = checkpoint.sentence.pooling is not None
    if not embeds and checkpoint.architecture is not None and checkpoint.architecture.endswith("Model"):
        raise ConversionError(
            f"{checkpoint.model} is a {checkpoint.architecture}, a model without a head, and there is no modules.json "
            "that says how its embeddings are pooled",
            hint="copy modules.json and the folders it names from the sentence-transformers model",
        )
    # some checkpoints hold a head although it is tied
    if has(checkpoint, "lm_head.weight") or not (tied or embeds):
        recipes.append(as_is("output.weight", "lm_head.weight", (sizes.vocab, sizes.dim)))
    return recipes


def make_plan(
    checkpoint: Checkpoint,
    arch: str,
    recipes: Iterable[Recipe],
    metadata: Mapping[str, Any],
    *,
    vocab: int,
    ignored: tuple[str, ...] = (),
) -> Plan:
    """A text model's file: what the family says, and the keys of its tokenizer, which has ``vocab`` tokens.

    ``ignored`` is how names of tensors begin that the family has no use for. Raises what reading the tokenizer raises,
    and ConversionError for tensors that are missing, not known, or of another shape.
    """
    if checkpoint.sentence.lowercase:
        raise ConversionError(
            f"{checkpoint.model / 'sentence_bert_config.json'}: do_lower_case is true; for a decoder a GGUF file "
            "cannot say that texts are lowercased",
            hint="set it to false, and give the model texts in lower case",
        )
    tensors = plan_recipes(checkpoint, recipes, ignored)
    # after the tensors: their shapes have shown that ``vocab`` is true
    keys = dict(metadata) | checkpoint.sentence.metadata(arch)
    return Plan(arch, keys | tokenizer_metadata(checkpoint, vocab), tensors)
