"""Overstated claims: nodes that a ggml library says it runs, and then ends the process on, or computes wrongly.

Found by reading the sources of the kernels, which are the same in ggml 0.20.0 to 0.21.0. All versions are treated
alike: if a later library can do more than this table says, that costs only speed. RPC claims every node, for whatever
device its server has: the claims of all libraries hold for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.native import ffi, lib

__all__ = ["Fails", "fails", "overstated"]

Fails = Mapping[int, Sequence[Callable[[Any], bool]]]
"""For each of ggml's ops, functions that say whether a library fails on a node that it claims."""


class _Claim(NamedTuple):
    libraries: tuple[str, ...]
    """By the names that they register with ggml; () for every library."""
    ops: tuple[str, ...]
    fails: Callable[[Any], bool]


_CUDA = ("CUDA", "ROCm", "MUSA", "RPC")  # built from one source
_COPIES = ("CONT", "CPY", "DUP")
_COPIED = frozenset({DType.F32.id, DType.F16.id, DType.BF16.id, DType.I32.id})
_UNWRITTEN = frozenset(
    t.id for t in (DType.IQ3_XXS, DType.IQ3_S, DType.IQ2_XXS, DType.IQ2_XS, DType.IQ2_S, DType.IQ1_S, DType.IQ1_M)
)
"""Types that no library writes: a CPU says so (ggml-cpu.cpp), and a server of RPC with a CPU ends."""

_EIGHT_BYTES = frozenset({DType.I64.id, DType.F64.id})


def _has_other_heads_than_64(node: Any) -> bool:
    return bool(node.src[0].ne[0] != 64)


def _copies_apart(node: Any) -> bool:
    """A copy of one type that is not of 2 or 4 bytes, to or from memory that is not contiguous (cpy.cu)."""
    to = node if node.src[1] == ffi.NULL else node.src[1]
    if node.src[0].type != to.type or to.type in _COPIED:
        return False
    return not (lib().ggml_is_contiguous(node.src[0]) and lib().ggml_is_contiguous(to))


_CLAIMS = (
    # Kernels are made for heads of 64, in CUDA also of 128 (wkv.cu, gla.cu).
    _Claim((), ("RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN"), _has_other_heads_than_64),
    _Claim(_CUDA, ("GATED_DELTA_NET",), lambda node: node.src[2].ne[0] not in (16, 32, 64, 128)),  # gated_delta_net.cu
    _Claim(_CUDA, ("SSM_CONV",), lambda node: node.src[1].ne[0] not in (3, 4, 5, 9, 15)),  # ssm-conv.cu
    _Claim(_CUDA, _COPIES, _copies_apart),
    _Claim(("RPC",), (*_COPIES, "SET_ROWS"), lambda node: node.type in _UNWRITTEN),
)


def overstated(library: str) -> Fails:
    """The overstated claims of a library, by the numbers of the ops."""
    found: dict[int, list[Callable[[Any], bool]]] = {}
    for claim in _CLAIMS:
        if claim.libraries and library not in claim.libraries:
            continue
        for op in claim.ops:
            found.setdefault(getattr(lib(), f"GGML_OP_{op}"), []).append(claim.fails)
    return found


def fails(claims: Fails, node: Any) -> bool:
    """Whether one of these claims is about the node. Elements of 8 bytes are never copied, whatever the op."""
    return node.type in _EIGHT_BYTES or any(fail(node) for fail in claims.get(node.op, ()))
