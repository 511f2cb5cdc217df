"""Tower: the base class of encoders that turn pictures or sounds into rows of embeddings; the block that most share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hotshoe.kvcache import UncachedView
from hotshoe.media import IMAGE, Medium
from hotshoe.nn.attention import Attention
from hotshoe.nn.basic import LayerNorm, Norm, RMSNorm
from hotshoe.nn.batch import Batch
from hotshoe.nn.config import FileConfig, derived, key
from hotshoe.nn.decoder import TransformerBlock
from hotshoe.nn.mlp import MLP, Activation, GatedMLP
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

__all__ = [
    "LayerScale",
    "Prepared",
    "ProjectorNorm",
    "RMSTowerBlock",
    "Rows",
    "Tower",
    "TowerAttention",
    "TowerBlock",
    "TowerConfig",
    "TowerGatedMLP",
    "TowerMLP",
    "TowerSizes",
    "TwoAxisAttention",
    "exact_activation",
    "patch_shape",
]

Array = np.ndarray[Any, Any]

_MAX_SIDE = 1 << 15  # pixels


class Prepared(NamedTuple):
    """A picture or a sound as its tower reads it."""

    inputs: dict[str, Array] | list[dict[str, Array]]
    """The inputs of the graph: float32 or int32 arrays. One graph computes all pictures with inputs of the same
    shapes. A list: the graph is computed for each, and their rows follow each other."""

    notes: Any = None
    """What ``expand`` needs to know of the picture, such as the number of its rows and columns."""


class Rows(NamedTuple):
    """Rows of embeddings that stand in a sequence in place of tokens."""

    array: Array
    """(n, width) float32."""

    positions: Array | None = None
    """(n,) or (streams, n) integers, counted from the first row. None: 0, 1, 2, …"""


def _channels(name: str, *, positive: bool = False) -> Any:
    """Declare a field of three floats from 0 to 1, or of three that are positive: one for each colour."""

    def get(metadata: Metadata, _: SimpleNamespace, __: Any) -> tuple[float, ...]:
        values = tuple(float(value) for value in metadata.arch.per_layer(name, 3, float))
        if not all(0 < value < np.inf if positive else 0 <= value <= 1 for value in values):
            expected = "three positive numbers" if positive else "three numbers from 0 to 1"
            raise metadata.arch.error(name, f"{list(values)}; expected {expected}")
        return values

    return derived(get)


def _activation(metadata: Metadata, _: SimpleNamespace, __: Any) -> Activation:
    if metadata.arch.get("use_silu", False):
        return "silu"
    # llama.cpp computes GELU with tanh
    return "gelu_tanh" if metadata.arch.get("use_gelu", False) else "gelu_quick"


class TowerSizes:
    """What the modules of text models ask a config for, from the fields of an encoder's config."""

    __slots__ = ()
    n_layers: int
    heads: int
    head_dim: int
    ff: int

    @property
    def n_heads(self) -> tuple[int, ...]:
        return (self.heads,) * self.n_layers

    @property
    def n_kv_heads(self) -> tuple[int, ...]:
        return self.n_heads

    @property
    def head_dims(self) -> tuple[int, ...]:
        return (self.head_dim,) * self.n_layers

    @property
    def v_dims(self) -> tuple[int, ...]:
        return self.head_dims

    @property
    def mlp_dim(self) -> tuple[int, ...]:
        return (self.ff,) * self.n_layers

    def window_for(self, layer: int) -> int:
        """0: each row sees all rows, unless the tower says otherwise."""
        return 0

    def rope_for(self, layer: int) -> RoPE | None:
        """The RoPE of a layer; None if it has none."""
        return None


def exact_activation(metadata: Metadata, found: SimpleNamespace, model: Any) -> Activation:
    """The activation of encoders whose GELU has no tanh. llama.cpp computes it with tanh, and files name both alike."""
    named = _activation(metadata, found, model)
    return "gelu" if named == "gelu_tanh" else named


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig(TowerSizes, FileConfig):
    """The sizes of an encoder of pictures: the keys ``clip.vision.*``."""

    n_layers: int = key("vision.block_count", minimum=1, maximum=1000)
    dim: int = key("vision.embedding_length", minimum=1)
    """Elements of a hidden state."""
    ff: int = key("vision.feed_forward_length", default=0)
    """Hidden elements of the MLP; 0 if the file does not say."""
    heads: int = key("vision.attention.head_count", minimum=1, maximum=lambda c: c.dim)
    head_dim: int = key("vision.attention.head_dim", minimum=1, default=lambda c: c.dim // c.heads)
    norm_eps: float = key("vision.attention.layer_norm_epsilon", minimum=0)
    projection_dim: int = key("vision.projection_dim", minimum=1)
    """Elements of a row that the text model reads."""
    image_size: int = key("vision.image_size", minimum=1, maximum=_MAX_SIDE)
    """The side of the pictures that the encoder was trained with, in pixels."""
    patch_size: int = key("vision.patch_size", minimum=1, maximum=lambda c: c.image_size)
    """The side of a patch, in pixels."""
    mean: tuple[float, ...] = _channels("vision.image_mean")
    std: tuple[float, ...] = _channels("vision.image_std", positive=True)
    activation: Activation = derived(_activation)  # noqa: RUF009
    """The activation of the MLPs."""

    @property
    def side(self) -> int:
        """Patches on each side of a square picture."""
        return self.image_size // self.patch_size


def patch_shape(config: Any, _: int) -> tuple[int, int, int, int]:
    """The shape of the convolution that reads patches."""
    return config.dim, 3, config.patch_size, config.patch_size


class LayerScale(Norm):
    """A factor for each element of a half's result, after Touvron et al. 2021, arXiv:2103.17239."""

    weight: Tensor = tensor("weight", use="mul", shape=lambda c, i: (c.dim,))

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight


def _between_patches(x: Tensor, positions: Tensor | None, mask: Tensor | None) -> tuple[Batch, Any]:
    """What attention reads besides ``x``: no more than the positions of RoPE and the mask."""
    view: Any = UncachedView(mask, positions)  # type: ignore[arg-type]
    return Batch(tokens=x, positions=positions), view  # type: ignore[arg-type]


class TowerAttention(Attention):
    """Attention between all patches of a picture."""

    out = submodule("attn_out", shape=lambda c, i: (c.dim, c.n_heads[i] * c.v_dims[i]))

    def between(self, x: Tensor) -> Tensor:
        """Attention outside of a block, without positions: (..., n, dim) to (..., n, dim)."""
        return self(x, *_between_patches(x, None, None))


class TwoAxisAttention(TowerAttention):
    """Attention with a RoPE for each axis. positions: (2, ..., n), the columns of patches and their rows."""

    def rotated(self, x: Tensor, batch: Batch, rope: RoPE) -> Tensor:
        """The columns turn the first half of a head, and the rows the second."""
        halves = x.chunk(2)
        return ops.concat(*(ops.rope(half, batch.positions[i], config=rope) for i, half in enumerate(halves)), axis=-1)


class ProjectorNorm(LayerNorm):
    """A LayerNorm with PyTorch's default epsilon, which files do not say: projectors have it."""

    eps = 1e-5


class TowerMLP(MLP):
    """An MLP with the activation that the file names."""

    def __init__(self, config: Any, *args: Any) -> None:
        super().__init__(config, *args)
        self.activation = config.activation  # type: ignore[misc]


class TowerGatedMLP(GatedMLP):
    """A gated MLP with the activation that the file names."""

    def __init__(self, config: Any, *args: Any) -> None:
        super().__init__(config, *args)
        self.activation = config.activation  # type: ignore[misc]


class TowerBlock(TransformerBlock):
    """A block of an encoder of pictures: (..., n, dim) to (..., n, dim)."""

    attention_norm: Norm = submodule("ln1", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    attention: TowerAttention = submodule()
    post_attention_norm: LayerScale | None = submodule("ls1", optional=True)
    mlp_norm: Norm = submodule("ln2", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    mlp: TowerMLP | TowerGatedMLP = submodule(choose=lambda c, i: TowerMLP)
    post_mlp_norm: LayerScale | None = submodule("ls2", optional=True)


class RMSTowerBlock(TowerBlock):
    """A TowerBlock with RMS norms and a gated MLP."""

    attention_norm: Norm = submodule("ln1", choose=lambda c, i: RMSNorm, shape=lambda c, i: (c.dim,))
    mlp_norm: Norm = submodule("ln2", choose=lambda c, i: RMSNorm, shape=lambda c, i: (c.dim,))
    mlp: TowerGatedMLP = submodule()


class Tower(Module):
    """Base class of encoders. A subclass says how a picture or a sound becomes inputs, rows and items of a sequence.

    tower.prepare(source)  a picture or a sound to the inputs of the graph, with NumPy
    tower(inputs)          the graph: inputs to rows of embeddings
    tower.expand(…)        rows to what stands in the sequence
    """

    config: Any
    compute_bound = True
    medium: ClassVar[Medium] = IMAGE
    """What the encoder reads."""
    blocks: Sequence[TowerBlock]
    marker: ClassVar[str]
    """The text that a chat template writes for a picture or a sound, usually a special token."""
    placeholder: ClassVar[str]
    """What to write into a text if the chat template writes nothing. It contains the marker once."""
    row_marker: ClassVar[str] = ""
    """The special token that stands for the rows in the text that ``expand`` returns; "" for the marker itself."""
    architectures: ClassVar[frozenset[str]]
    """``general.architecture`` of the text models that read these rows."""
    bidirectional: ClassVar[bool] = False
    """Whether every row of a picture attends to all of its rows in the text model."""

    def prepare(self, source: Any, /) -> Prepared:
        """Return the inputs of the graph for a picture (``Image``) or a sound (``Sound``).

        Raises ImageError or AudioError if the model cannot read it.
        """
        raise NotImplementedError

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of embeddings, (n, width), of the inputs that ``prepare`` named."""
        raise NotImplementedError

    def expand(self, rows: Array, notes: Any) -> list[str | Rows]:
        """Return what replaces the marker in a prompt: texts, which may hold special tokens, and rows.

        rows: (n, width) float32, what the graph computed. notes: those of ``prepare``.
        """
        return [Rows(rows)]

    @property
    def span_width(self) -> int:
        width: int = self.config.projection_dim
        return width

    @property
    def n_attended(self) -> int:
        """The most rows of a picture, if layers of the text model attend to them (cross-attention) and one token of the
        text, ``row_marker``, stands for them. 0: the rows are rows of the text."""
        return 0

    def unused_tensors(self) -> dict[str, str]:
        return {}

    def unused_keys(self) -> dict[str, str]:
        return {
            "use_gelu": "use_silu says that it is SiLU",
        }

    def run(self, x: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Compute the blocks: (..., n, dim) to (..., n, dim)."""
        for block in self.blocks:
            x = self.run_block(block, x, positions, mask)
        return x

    def run_block(
        self, block: TowerBlock, x: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Compute one block. mask: added to the scores, (n, n) or what broadcasts to (..., heads, n, n)."""
        return block(x, *_between_patches(x, positions, mask))
