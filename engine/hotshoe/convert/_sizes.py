"""Read what config.json says about the sizes of a text model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotshoe.convert._blocks import Scaled
from hotshoe.convert._checkpoint import REQUIRED
from hotshoe.convert._safetensors import FLOATS
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["ModelSizes", "read_sizes", "refuse_quantized"]

_READ = ("fp8", "fbgemm_fp8", "mxfp4", "modelopt", "compressed-tensors")  # methods that leave codes and scales


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a text model in config.json, whatever its keys are called."""

    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ff: int
    """Hidden elements of the MLP; 0 if config.json does not say."""
    vocab: int
    context: int
    """Tokens that the model was trained for."""
    eps: float
    """Epsilon of the norms."""
    has_layer_norms: bool = False
    """True if the norms are LayerNorms, otherwise they are RMS norms."""
    states_head_dim: bool = False
    """True if config.json gives head_dim; otherwise it is hidden_size / num_attention_heads."""

    @property
    def q(self) -> int:
        """Elements of the queries of all heads."""
        return self.n_heads * self.head_dim

    def keys(self, *, heads: bool = True) -> dict[str, Any]:
        """The GGUF keys. ``heads``: write the length of a head, unless readers derive it correctly from other keys."""
        keys: dict[str, Any] = {
            "block_count": self.n_layers,
            "context_length": self.context,
            "embedding_length": self.dim,
            **({"feed_forward_length": self.ff} if self.ff else {}),
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            f"attention.layer_norm_{'' if self.has_layer_norms else 'rms_'}epsilon": self.eps,
        }
        if heads and (self.states_head_dim or self.q != self.dim):
            keys |= {"attention.key_length": self.head_dim, "attention.value_length": self.head_dim}
        return keys


def read_sizes(
    checkpoint: Checkpoint,
    *,
    head_dim: int | None = None,
    n_kv_heads: int | None = None,
    eps: str = "rms_norm_eps",
    layer_norm_eps: str = "",
    default_eps: Any = REQUIRED,
    dense: bool = True,
) -> ModelSizes:
    """Read the sizes of a text model from config.json.

    head_dim, n_kv_heads: the architecture's defaults, if config.json does not give them. Without a default, head_dim is
    hidden_size / num_attention_heads, and n_kv_heads is num_attention_heads.
    eps: the key of the norms' epsilon, and ``default_eps`` the architecture's default.
    layer_norm_eps: the key, if the norms are LayerNorms.
    dense: False if config.json may lack intermediate_size, because all layers have experts.

    Raises ModelFileError if a size is missing or not a number; ConversionError if sizes contradict each other, or if
    the checkpoint is quantized.
    """
    refuse_quantized(checkpoint)
    n_layers = checkpoint.layers()
    dim, n_heads = checkpoint.integer("hidden_size"), checkpoint.integer("num_attention_heads")
    if checkpoint.config.get("head_dim") is None and head_dim is None and dim % n_heads:
        raise checkpoint.refusal(f"hidden_size {dim} is not a multiple of num_attention_heads {n_heads}")
    has_mlp = dense or checkpoint.config.get("intermediate_size") is not None
    sizes = ModelSizes(
        n_layers=n_layers,
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=checkpoint.integer("num_key_value_heads", n_kv_heads or n_heads),
        head_dim=checkpoint.integer("head_dim", head_dim or dim // n_heads),
        ff=checkpoint.integer("intermediate_size") if has_mlp else 0,
        vocab=checkpoint.integer("vocab_size"),
        context=checkpoint.integer("max_position_embeddings"),
        eps=checkpoint.number(layer_norm_eps or eps, default_eps),
        has_layer_norms=bool(layer_norm_eps),
        states_head_dim=checkpoint.config.get("head_dim") is not None,
    )
    if n_heads % sizes.n_kv_heads:
        raise checkpoint.refusal(
            f"num_attention_heads {n_heads} is not a multiple of num_key_value_heads {sizes.n_kv_heads}"
        )
    if sizes.head_dim % 2:
        raise checkpoint.refusal(f"head_dim is {sizes.head_dim}; RoPE needs an even one")
    return sizes


def refuse_quantized(checkpoint: Checkpoint) -> None:
    """Raise ConversionError if the weights of the checkpoint were quantized for another engine.

    FP8, MXFP4 and NVFP4 are read: see ``hotshoe.convert._blocks``.
    """
    stated = checkpoint.config.get("quantization_config")
    if stated is None:
        return
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    if method in _READ and all(isinstance(t, Scaled) or t.dtype in FLOATS for t in checkpoint.tensors.values()):
        return
    if method is None and isinstance(stated, dict):
        method = next((key for key in ("load_in_4bit", "load_in_8bit") if stated.get(key)), None)
    raise ConversionError(
        f"{checkpoint.model} is quantized already ({method or 'quantization_config'} in config.json); converting it "
        "would lose precision twice",
        hint="convert the original checkpoint, with --type q8_0 or q4_k_m for a small file",
    )
