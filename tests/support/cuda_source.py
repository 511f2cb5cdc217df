"""What ggml 0.20.2's CUDA library says that it runs, and what its kernels run, transcribed from src/ggml-cuda.

It says more than its kernels do, and GGML_ABORT ends the process. So tests without a GPU can build graphs for "CUDA"
and look for nodes that would end it, or be wrong. What a GPU did with the kit is here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.native import ffi, lib

__all__ = ["claims", "runs"]

F32, F16, BF16, I32, I64 = (getattr(DType, name).id for name in ("F32", "F16", "BF16", "I32", "I64"))
HALVES = {F16, BF16}
NO_PRODUCT = {DType.Q8_1.id, DType.TQ1_0.id, DType.TQ2_0.id, DType.I8.id, DType.I16.id, I32, I64, DType.F64.id}
NO_ROWS = NO_PRODUCT - {I32} | {DType.Q8_K.id, DType.NVFP4.id}
WRITTEN = {F32, F16, BF16} | {getattr(DType, name).id for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")}
READ = WRITTEN - {DType.IQ4_NL.id}
VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
HEADS = (40, 64, 72, 80, 96, 112, 128, 256)
UNARY = (
    "ABS", "SGN", "NEG", "STEP", "GELU", "SILU", "RELU", "SIGMOID", "HARDSIGMOID", "HARDSWISH", "GELU_ERF",
    "GELU_QUICK", "TANH", "EXP", "EXPM1", "SOFTPLUS", "ELU", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC",
)  # fmt: skip
ALWAYS = (
    "ADD_ID", "ADD1", "SCALE", "SQR", "SQRT", "SIN", "COS", "CLAMP", "LOG", "CONT", "DIAG_MASK_INF", "SOFT_MAX",
    "CONV_TRANSPOSE_2D", "POOL_2D", "TOP_K", "ARGSORT", "PAD", "UPSCALE", "ARANGE", "TIMESTEP_EMBEDDING", "LEAKY_RELU",
    "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN", "GATED_DELTA_NET", "FILL", "CUMSUM", "TRI", "DIAG", "SOLVE_TRI",
    "ARGMAX",
)  # fmt: skip


def _op(node: Any) -> str:
    return str(ffi.string(lib().ggml_op_name(node.op)).decode())


def _flat(x: Any) -> bool:
    return bool(lib().ggml_is_contiguous(x))


def _dense(x: Any) -> bool:
    """Whether the elements of each row are contiguous."""
    return bool(x.nb[0] == lib().ggml_type_size(x.type))


def _flat_above_rows(x: Any) -> bool:
    return _dense(x) and all(x.ne[i + 1] == 1 or x.nb[i + 1] == x.nb[i] * x.ne[i] for i in (1, 2))


def _types(*tensors: Any) -> set[int]:
    return {int(t.type) for t in tensors}


def claims(node: Any) -> bool:
    """ggml_backend_cuda_device_supports_op of ggml-cuda.cu."""
    op, a, b = _op(node), node.src[0], node.src[1]
    if op in VIEWS or op in ALWAYS:
        return True
    rule = _CLAIMS.get(op)
    return rule is not None and rule(node, a, b)


def _claims_copy(node: Any, a: Any, b: Any) -> bool:
    pair = int(a.type), int(b.type)
    floats = {F32, *HALVES}
    if set(pair) <= floats or pair in ((F32, I32), (I32, F32), (I32, I32)):
        return True
    if (pair[0] == F32 and pair[1] in WRITTEN) or (pair[1] == F32 and pair[0] in READ):
        return True
    return pair[0] == pair[1] and _flat(a) and _flat(b)


def _claims_attention(node: Any, q: Any, k: Any) -> bool:
    v, mask = node.src[2], node.src[3]
    types = {F16, BF16, DType.Q4_0.id, DType.Q8_0.id}
    same = bool(k.ne[0] in HEADS and v.ne[0] == k.ne[0] and k.type == v.type)
    return same and int(k.type) in types and (mask == ffi.NULL or mask.ne[2] == 1)


def _claims_scan(node: Any, state: Any, b: Any) -> bool:
    if node.src[3].ne[0] == 1:
        return bool(state.ne[0] in (128, 256) and state.ne[1] % 16 == 0)
    return bool(state.ne[0] == 16 and state.ne[1] == 1 and state.ne[2] % 128 == 0 and node.src[4].ne[1] == 1)


def _claims_concat(node: Any, a: Any, b: Any) -> bool:
    return len(_types(a, b, node)) == 1 and (not lib().ggml_is_quantized(a.type) or (_flat(a) and _flat(b)))


def _claims_unary(node: Any, a: Any, b: Any) -> bool:
    return ffi.string(lib().ggml_unary_op_name(lib().ggml_get_unary_op(node))).decode() in UNARY and _flat(a)


_CLAIMS: dict[str, Callable[[Any, Any, Any], bool]] = {
    "UNARY": _claims_unary,
    "GLU": lambda node, a, b: _flat_above_rows(a),
    **dict.fromkeys(
        ("MUL_MAT", "MUL_MAT_ID"),
        lambda node, a, b: (
            _dense(a) and _dense(b) and (b.type != F16 or a.type == F16) and int(a.type) not in NO_PRODUCT
        ),
    ),
    "OUT_PROD": lambda node, a, b: _types(node, a, b) == {F32},
    "GET_ROWS": lambda node, a, b: (
        int(a.type) not in NO_ROWS
        and (int(a.type) not in (DType.IQ4_NL.id, DType.MXFP4.id) or a.ne[0] % 256 == 0)
    ),
    "SET_ROWS": lambda node, a, b: (
        (a.type == F32 and int(node.type) in WRITTEN) or (a.type == F16 and node.type == F16)
    )
    and int(b.type) in (I32, I64),
    "SET": lambda node, a, b: len(_types(node, a, b)) == 1 and int(node.type) in (F32, I32),
    "CPY": _claims_copy,
    "DUP": lambda node, a, b: int(a.type) not in (I32, DType.I16.id),
    "REPEAT": lambda node, a, b: int(a.type) in (F32, F16),
    "CONCAT": _claims_concat,
    "CONV_TRANSPOSE_1D": lambda node, a, b: _types(a, b) == {F32},
    **dict.fromkeys(("NORM", "RMS_NORM", "L2_NORM", "SUM"), lambda node, a, b: _dense(a)),
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), lambda node, a, b: _types(node, a, b) <= {F32, F16}),
    "SSM_SCAN": _claims_scan,
    "SSM_CONV": lambda node, a, b: a.ne[1] % 128 == 0,
    "ROLL": lambda node, a, b: a.type == F32 and _flat(a),
    "ROPE": lambda node, a, b: _dense(a) and (a.ne[3] == 1 or a.nb[3] == a.nb[2] * a.ne[2]),
    **dict.fromkeys(("IM2COL", "IM2COL_3D", "CONV_2D", "ACC"), lambda node, a, b: _flat(a) and _flat(b)),
    "CONV_2D_DW": lambda node, a, b: a.type == F32,
    **dict.fromkeys(("SUM_ROWS", "MEAN", "GROUP_NORM"), lambda node, a, b: _flat(a)),
    "FLASH_ATTN_EXT": _claims_attention,
}  # fmt: skip


def runs(node: Any) -> bool:
    """Whether the kernel of a claimed node computes it: the GGML_ABORTs and GGML_ASSERTs in the other files."""
    rule = _RUNS.get(_op(node))
    return rule is None or rule(node, node.src[0], node.src[1])


def _runs_copy(node: Any, a: Any, b: Any) -> bool:
    """cpy.cu. What it copies as rows of bytes is not looked for: it is right only where the rest is right too."""
    to = node if b == ffi.NULL else b
    if a.type == to.type and _flat(a) and _flat(to):
        return True
    pair = int(a.type), int(to.type)
    return (
        set(pair) <= {F32, *HALVES}
        or pair in ((F32, I32), (I32, F32), (I32, I32))
        or (pair[0] == F32 and pair[1] in WRITTEN)
        or (pair[1] == F32 and pair[0] in READ)
    )


def _usual_where_1(x: Any) -> bool:
    """Whether axes of size 1 have the strides that follow from the sizes before them."""
    usual = lib().ggml_row_size(x.type, x.ne[0])
    for i in range(1, 4):
        if x.ne[i] == 1 and x.nb[i] != usual:
            return False
        usual = x.nb[i] * x.ne[i]
    return True


def _in_pairs(x: Any) -> bool:
    """Whether pairs of elements are aligned (mmvf.cu reads float2 and half2). Rows of odd length are left to cuBLAS."""
    pair = 2 * lib().ggml_type_size(x.type)
    return x.ne[0] % 2 == 1 or x.view_offs % pair == 0 == sum(x.nb[i] % pair for i in range(1, 4) if x.ne[i] > 1)


def _runs_product(node: Any, a: Any, b: Any) -> bool:
    """mmvf.cu reads pairs; ggml_cuda_mul_mat_cublas_impl of ggml-cuda.cu gives cuBLAS the strides of axes of size 1."""
    if not _usual_where_1(b) or (not lib().ggml_is_quantized(a.type) and not _usual_where_1(a)):
        return False
    return bool(lib().ggml_is_quantized(a.type)) or (_in_pairs(a) and _in_pairs(b))


def _runs_experts(node: Any, a: Any, b: Any) -> bool:
    return b.type == F32 and _dense(node.src[2]) and (bool(lib().ggml_is_quantized(a.type)) or _in_pairs(a))


def _broadcasts(node: Any, a: Any, b: Any) -> bool:
    """binbcast.cu joins axes of contiguous operands by their strides, also those of axes of size 1."""
    return all(x == ffi.NULL or not _flat(x) or _usual_where_1(x) for x in (a, b))


def _floats(node: Any, a: Any, b: Any) -> bool:
    return a.type == node.type and int(a.type) in (F32, F16)


def _of_f32(node: Any, a: Any, b: Any) -> bool:
    return bool(a.type == F32)


def _flat_f32(node: Any, a: Any, b: Any) -> bool:
    return a.type == F32 and _flat(a)


def _heads(node: Any, a: Any, b: Any) -> bool:
    return a.ne[0] in (64, 128)


def _has_numbers(x: Any) -> bool:
    """Whether no row is only NaN and -inf: limited by clamp.cu, products of Builder.row_argmax, or their rows."""
    while _op(x) not in ("CLAMP", "MUL"):
        if _op(x) not in ("GET_ROWS", "RESHAPE"):
            return False
        x = x.src[0]
    return True


def _runs_rows(node: Any, a: Any, b: Any) -> bool:
    """getrows.cu. argmax.cu gives -1 for a row of NaN or of -inf."""
    first = b
    while first.view_src != ffi.NULL:
        first = first.view_src
    if _op(first) == "ARGMAX" and not _has_numbers(first.src[0]):
        return False
    return b.type == I32 and b.ne[3] == 1 and _dense(a) and _dense(b)


_RUNS: dict[str, Callable[[Any, Any, Any], bool]] = {
    **dict.fromkeys(("CPY", "CONT", "DUP"), _runs_copy),
    "UNARY": _floats,
    "GLU": lambda node, a, b: _floats(node, a, b) and (b == ffi.NULL or (a.type == b.type and _flat_above_rows(b))),
    "CLAMP": _floats,
    **dict.fromkeys(("SQR", "SQRT", "SIN", "COS", "LOG"), _floats),
    **dict.fromkeys(
        ("SCALE", "NORM", "RMS_NORM", "L2_NORM", "GROUP_NORM", "SOFT_MAX", "PAD", "UPSCALE", "POOL_2D", "SUM_ROWS"),
        _of_f32,
    ),
    **dict.fromkeys(("ARGMAX", "ARGSORT", "TOP_K", "MEAN", "SUM"), _flat_f32),
    "GET_ROWS": _runs_rows,
    "ROPE": lambda node, a, b: _floats(node, a, b) and a.ne[0] % 2 == 0,
    "MUL_MAT": _runs_product,
    "MUL_MAT_ID": _runs_experts,
    **dict.fromkeys(("REPEAT", "ADD", "SUB", "MUL", "DIV"), _broadcasts),
    "CONV_TRANSPOSE_1D": lambda node, a, b: _flat(a) and _flat(b),
    "CONV_TRANSPOSE_2D": lambda node, a, b: int(a.type) in (F32, F16) and b.type == F32 and _flat(a) and _flat(b),
    "CONV_2D_DW": lambda node, a, b: b.type == F32,
    **dict.fromkeys(("IM2COL", "IM2COL_3D"), lambda node, a, b: b.type == F32),
    "TRI": lambda node, a, b: a.type == node.type and int(a.type) in (F32, *HALVES),
    "DIAG": lambda node, a, b: _flat(a) and int(a.type) in (F32, F16),
    "CUMSUM": _of_f32,
    "GATED_DELTA_NET": lambda node, q, k: node.src[2].ne[0] in (16, 32, 64, 128) and _dense(q) and _dense(k),
    "SSM_CONV": lambda node, a, b: b.ne[0] in (3, 4, 5, 9, 15) and a.nb[0] == 4 and a.nb[1] == 4 * a.ne[0],
    **dict.fromkeys(("RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN"), _heads),
}
