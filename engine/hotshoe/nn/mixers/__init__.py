"""Mixers: what stands in the place of attention in recurrent layers. Each keeps a state of fixed size.

    class Config(TextConfig):
        ssm: StateSpace = ssm_key()

    class RecurrentBlock(nn.TransformerBlock):
        attention: Mamba2 = submodule()
        mlp: GatedMLP = submodule()

All except ShortConv and RWKV7 read their sizes from ``config.ssm``.
"""

from hotshoe.nn.mixers.delta import GatedDelta
from hotshoe.nn.mixers.mamba import Mamba1, Mamba2
from hotshoe.nn.mixers.rwkv7 import RWKV7, shifted
from hotshoe.nn.mixers.short_conv import ShortConv
from hotshoe.nn.mixers.sizes import StateSpace, recurrent_key, ssm_key

__all__ = ["RWKV7", "GatedDelta", "Mamba1", "Mamba2", "ShortConv", "StateSpace", "recurrent_key", "shifted", "ssm_key"]
