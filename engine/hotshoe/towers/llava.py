"""The encoder of LLaVA 1.5 (Liu et al. 2023, arXiv:2310.03744): CLIP without its last layer, and an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from hotshoe import images
from hotshoe.images import Image
from hotshoe.nn import Linear, layers, submodule, tensor
from hotshoe.nn.basic import LayerNorm, Norm
from hotshoe.nn.config import derived
from hotshoe.nn.vision import Prepared, Tower, TowerBlock, TowerConfig, patch_shape
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata


def _feature_layer(metadata: Metadata, found: SimpleNamespace, _: object) -> int:
    """The layers to compute. Files without the key hold no others."""
    key = "vision.feature_layer"
    if key not in metadata.arch:
        return int(found.n_layers)
    numbers = metadata.arch.per_layer(key, 1, int)
    if not 1 <= numbers[0] <= found.n_layers:
        raise metadata.arch.error(key, f"{numbers[0]}; expected a number of layers, at most {found.n_layers}")
    return numbers[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    n_computed: int = derived(_feature_layer)
    """The layers that are computed: the rows are the hidden states after the last of them."""


class Llava(Tower):
    config: Config
    marker = "<image>"
    placeholder = "<image>\n"
    architectures = frozenset({"llama", "phi3", "qwen2"})
    patches: Tensor = tensor("v.patch_embd.weight", use="conv2d", shape=patch_shape)
    first: Tensor = tensor("v.class_embd", use="add", shape=lambda c, i: (c.dim,))
    """What stands before the patches. Its row is dropped after the last layer."""
    positions: Tensor = tensor("v.position_embd.weight", use="add", shape=lambda c, i: (c.side**2 + 1, c.dim))
    first_norm: Norm = submodule("v.pre_ln", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    blocks: list[TowerBlock] = layers("v.blk")
    up: Linear = submodule("mm.0", shape=lambda c, i: (None, c.dim))
    down: Linear = submodule("mm.2", shape=lambda c, i: (c.projection_dim, None))

    def unused_keys(self) -> dict[str, str]:
        kinds = "the projector's type says what the file holds"
        return super().unused_keys() | {
            "has_text_encoder": kinds,
            "has_llava_projector": kinds,
            "vision.mm_projector_type": kinds,
        }

    def unused_tensors(self) -> dict[str, str]:
        return super().unused_tensors() | {"v.post_ln.*": "the rows are the hidden states before the last layer"}

    def prepare(self, image: Image) -> Prepared:
        # llama.cpp pads pictures to squares; the processor cuts them
        c = self.config
        pixels = images.center_cropped(image.pixels, c.image_size, "bicubic")
        return Prepared({"pixels": images.normalized(pixels, c.mean, c.std)[None]})

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c = self.config
        x = ops.conv2d(inputs["pixels"], self.patches, stride=c.patch_size).reshape(c.dim, -1).T
        x = ops.concat(self.first.reshape(1, c.dim), x, axis=0)
        x = self.first_norm(x + self.positions)
        for block in self.blocks[: c.n_computed]:
            x = self.run_block(block, x)
        return self.down(self.up(x[1:]).gelu())
