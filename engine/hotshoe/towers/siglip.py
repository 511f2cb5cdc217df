"""SigLIP (Zhai et al. 2023, arXiv:2303.15343): the encoder of pictures that several models share."""

from __future__ import annotations

from hotshoe.nn import layers, submodule, tensor
from hotshoe.nn.basic import LayerNorm, Norm
from hotshoe.nn.vision import Tower, TowerBlock, TowerConfig, patch_shape
from hotshoe_core import Tensor, ops


class SigLIP(Tower):
    """The encoder: patches with biases, learned positions, blocks, a norm."""

    config: TowerConfig
    patches: Tensor = tensor("v.patch_embd.weight", use="conv2d", shape=patch_shape)
    patch_bias: Tensor = tensor("v.patch_embd.bias", use="add", shape=lambda c, i: (c.dim,))
    positions: Tensor = tensor("v.position_embd.weight", use="add", shape=lambda c, i: (c.side**2, c.dim))
    blocks: list[TowerBlock] = layers("v.blk")
    norm: Norm = submodule("v.post_ln", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))

    def encode(self, pixels: Tensor, positions: Tensor, rotated: Tensor | None = None) -> Tensor:
        """(n, 3, h, w) to (n, patches, dim).

        positions: what is added to each patch, (patches, dim). rotated: the positions of RoPE, if there is one.
        """
        x = ops.conv2d(pixels, self.patches, self.patch_bias, stride=self.config.patch_size)
        x = x.reshape(*x.shape[:2], -1).permute(0, 2, 1)
        return self.norm(self.run(x + positions, rotated))
