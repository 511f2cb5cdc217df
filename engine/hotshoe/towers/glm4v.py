"""The encoder of GLM-4.1V, GLM-4.5V (arXiv:2507.01006) and GLM-OCR: that of Qwen2.5-VL, and a convolution that merges.

Four neighbouring patches become one row of the text model. A row has three positions: time, height and width.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotshoe.images import Size
from hotshoe.nn import Linear, RMSNorm, layers, submodule, tensor
from hotshoe.nn.basic import Norm
from hotshoe.nn.vision import ProjectorNorm, RMSTowerBlock, TowerAttention, TowerGatedMLP
from hotshoe.towers import qwen2vl
from hotshoe_core import Tensor, ops


class Attention(TowerAttention):
    # only GLM-OCR has these norms; files do not say so
    q_norm: RMSNorm | None = submodule("attn_q_norm", optional=True, shape=lambda c, i: (c.head_dim,))
    k_norm: RMSNorm | None = submodule("attn_k_norm", optional=True, shape=lambda c, i: (c.head_dim,))


class Block(RMSTowerBlock):
    attention: Attention = submodule()


class ProjectorMLP(TowerGatedMLP):
    gate: Linear = submodule("mm.gate", shape=lambda c, i: (None, c.projection_dim))
    up: Linear = submodule("mm.up", shape=lambda c, i: (None, c.projection_dim))
    down: Linear = submodule("mm.down", shape=lambda c, i: (c.projection_dim, None))
    gate_up = None


class Glm4V(qwen2vl.Qwen2VL):
    config: qwen2vl.Config
    marker = "<|image|>"
    placeholder = "<|begin_of_image|><|image|><|end_of_image|>"
    architectures = frozenset({"glm4", "glm4moe"})
    patch_bias: Tensor = tensor("v.patch_embd.bias", use="add", shape=lambda c, i: (c.dim,))
    # GLM-OCR has neither of the two
    first_norm: RMSNorm | None = submodule("v.norm_embd", optional=True, shape=lambda c, i: (c.dim,))
    table: Tensor | None = tensor(
        "v.position_embd.weight", use="interpolate", optional=True, shape=lambda c, i: (c.side**2, c.dim)
    )
    blocks: list[Block] = layers("v.blk")  # type: ignore[assignment]
    norm: Norm = submodule("v.post_ln", choose=lambda c, i: RMSNorm, shape=lambda c, i: (c.dim,))
    merger: Tensor = tensor(
        "mm.patch_merger.weight", use="conv2d", shape=lambda c, i: (c.projection_dim, c.dim, c.merge, c.merge)
    )
    merger_bias: Tensor = tensor("mm.patch_merger.bias", use="add", shape=lambda c, i: (c.projection_dim,))
    project: Linear = submodule("mm.model.fc", shape=lambda c, i: (c.projection_dim, c.projection_dim))
    row_norm: ProjectorNorm = submodule("mm.post_norm", shape=lambda c, i: (c.projection_dim,))
    mlp: ProjectorMLP = submodule()
    merge = None  # type: ignore[assignment]

    def sized(self, height: int, width: int) -> Size:
        # the processor first enlarges pictures that are smaller than one row
        unit = self.config.patch_size * self.config.merge
        scale = max(1.0, unit / height, unit / width)
        return super().sized(int(height * scale), int(width * scale))

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c = self.config
        x = self.embed(inputs["pixels"])
        h, w = x.shape[2:]
        x = x.reshape(c.dim, -1).T + self.patch_bias
        x = x if self.first_norm is None else self.first_norm(x)
        if self.table is not None:
            table = self.table.T.reshape(1, c.dim, c.side, c.side)
            x = x + ops.interpolate(table, size=(h, w), mode="bicubic").reshape(c.dim, -1).T
        x = self.norm(self.run(x.take(inputs["patches"]), inputs["positions"]))
        x = x.reshape(-1, c.merge, c.merge, c.dim).permute(0, 3, 1, 2)
        x = ops.conv2d(x, self.merger, self.merger_bias, stride=c.merge).reshape(-1, c.projection_dim)
        return self.mlp(self.row_norm(self.project(x)).gelu())
