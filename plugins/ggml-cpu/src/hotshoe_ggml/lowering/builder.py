"""Builder: makes ggml nodes. Its subclasses may override the ops in its second half to use other kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.ops.bounds import are_within
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import MAX_AXES, extents

__all__ = ["F32", "Builder", "Fusion", "Ptr", "ReadOperand"]

Ptr = Any  # struct ggml_tensor *
F32 = DType.F32
_LIFT = 2.0**40  # a power of two loses no digits
_LEAST = -1e38  # CUDA's argmax finds only numbers above -FLT_MAX
_WIDE = 8192  # elements of a row from which on parts of it are compared first

ReadOperand = Callable[[str, Tensor, int], Any]
"""``read_operand(op, tensor, operand)`` returns what operand number ``operand`` of the op reads: see Layout.read_by."""


class Fusion(NamedTuple):
    """Groups of nodes of a graph that a builder makes together, not one by one with their lowerings."""

    nodes: dict[Tensor, Callable[[], Ptr]]
    """For the last node of each group, a function that makes the whole group. Groups may share a ggml node."""

    absorbed: set[Tensor]
    """The other nodes of the groups. Nothing is built for them."""


class Builder:
    """Makes ggml nodes in one ``ggml_context``, only with ggml's own ops.

    flash: whether attention is ggml's flash attention: "on", "off" or "auto". supports: whether the device runs a node;
    CpuBuilder does not ask. keep_alive: the builder adds objects that must live as long as the graph.
    """

    def __init__(
        self, context: Any, keep_alive: list[Any], *, flash: str, supports: Callable[[Ptr], bool] = lambda node: True
    ) -> None:
        self.context = context
        self.g = lib()
        self.flash = flash
        self._supports = supports
        self.keep_alive = keep_alive

    def fuse(self, graph: Graph, is_mine: Callable[[Tensor], bool], read_operand: ReadOperand) -> Fusion:
        """Find groups of nodes that this builder makes together. is_mine: tells which nodes belong to this builder."""
        return Fusion({}, set())

    def new(self, shape: Shape, dtype: DType) -> Ptr:
        return self.g.ggml_new_tensor(self.context, dtype.id, MAX_AXES, extents(shape))

    def call(self, name: str, *args: Any) -> Ptr:
        """The node that ``ggml_<name>`` makes."""
        return getattr(self.g, "ggml_" + name)(self.context, *args)

    def cont(self, x: Ptr) -> Ptr:
        """``x`` in contiguous memory, with the strides that follow from its sizes."""
        if not self.g.ggml_is_contiguous(x):
            return self.call("cont", x)
        # the stride of an axis of size 1 has no meaning, but some ggml ops check it
        return x if self._usual_strides(x) else self.call("reshape_4d", x, *x.ne)

    def rows(self, x: Ptr) -> Ptr:
        """``x`` with each row contiguous; there may be gaps between rows."""
        if not x.view_src:  # ggml's strides follow from the sizes, except those of a view
            return x
        return self._usual_where_1(x) if x.nb[0] == self.g.ggml_type_size(x.type) else self.cont(x)

    def factor(self, x: Ptr) -> Ptr:
        """``x`` as the factor of a product: rows as ``rows`` makes them, at addresses that all kernels can read.

        CUDA's kernels read pairs of elements, and do not check where they begin (mmvf.cu).
        """
        if not x.view_src:
            return x
        x = self.rows(x)
        ne0, ne1, ne2, ne3 = x.ne
        if ne0 % 2 or self.g.ggml_is_quantized(x.type):
            return x
        size, nb1, nb2, nb3 = x.nb
        pair = 2 * size
        between = x.view_offs % pair or (ne1 > 1 and nb1 % pair) or (ne2 > 1 and nb2 % pair) or (ne3 > 1 and nb3 % pair)
        return self.call("cont", x) if between else x

    def _usual_where_1(self, x: Ptr) -> Ptr:
        """``x``, with the strides that follow from its sizes for axes of size 1.

        They have no meaning, but CUDA computes others from them: of joined axes (binbcast.cu), and for cuBLAS.
        """
        ne0, ne1, ne2, ne3 = x.ne  # without a loop: this is called for most nodes of a graph
        _, nb1, nb2, nb3 = x.nb
        usual1 = self.g.ggml_row_size(x.type, ne0) if ne1 == 1 else nb1
        usual2 = usual1 * ne1 if ne2 == 1 else nb2
        usual3 = usual2 * ne2 if ne3 == 1 else nb3
        if usual1 == nb1 and usual2 == nb2 and usual3 == nb3:
            return x
        return self.call("view_4d", x, ne0, ne1, ne2, ne3, usual1, usual2, usual3, 0)

    def _usual_strides(self, x: Ptr) -> bool:
        ne0, ne1, ne2, _ = x.ne
        nb0, nb1, nb2, nb3 = x.nb
        row = self.g.ggml_row_size(x.type, ne0)
        usual: bool = nb1 == row and nb2 == row * ne1 and nb3 == nb2 * ne2 and nb0 == self.g.ggml_type_size(x.type)
        return usual

    def f32(self, x: Ptr) -> Ptr:
        return x if x.type == F32.id else self.call("cast", x, F32.id)

    def reshape(self, x: Ptr, shape: Shape) -> Ptr:
        ne = extents(shape)
        if list(x.ne) == ne:
            return x
        return self.call("reshape_4d", x if self.g.ggml_is_contiguous(x) else self.call("cont", x), *ne)

    def swap(self, x: Ptr, a: int, b: int) -> Ptr:
        """A view of ``x`` with two of ggml's axes exchanged."""
        order = list(range(MAX_AXES))
        order[a], order[b] = b, a
        return self.call("permute", x, *order)

    def column(self, x: Ptr, i: int, axis: int = 0) -> Ptr:
        """A view of element ``i`` of one of ggml's axes, which stays with size 1."""
        ne = list(x.ne)
        ne[axis] = 1
        return self.call("view_4d", x, *ne, x.nb[1], x.nb[2], x.nb[3], i * x.nb[axis])

    def repeat(self, x: Ptr, ne: list[int]) -> Ptr:
        return x if list(x.ne) == ne else self.call("repeat_4d", self.rows(x), *ne)

    def binary(self, op: str, ne: list[int], x: Ptr, y: Ptr) -> Ptr:
        """add, sub, mul or div of F32 operands that broadcast to ne."""
        x, y = self.rows(x), self.rows(y)
        if list(x.ne) != ne:  # ggml repeats only its second operand
            if op in ("add", "mul") and list(y.ne) == ne:
                x, y = y, x
            else:
                x = self.repeat(x, ne)
        return self.call(op, x, y)

    def indices(self, node: Tensor, native: Ptr, which: int = 0) -> Ptr:
        """The ``which``-th operand that ``node`` uses as indices, contiguous and within the axis that it indexes.

        ggml aborts on an index out of range, or reads beyond the tensor. Indices that are fed are checked when they
        are fed; indices that the graph computes are proved to fit, or limited.
        """
        source, indices, axis = TABLE[node.op].indexed[which]
        n = node.source(source).shape[axis]
        return self.cont(native) if are_within(node.source(indices), n) else self.limit(native, n)

    # Ops that a subclass may override to use other kernels. Lowerings pass F32 operands with contiguous rows, unless
    # the op's docstring says otherwise.

    def limit(self, indices: Ptr, n: int) -> Ptr:
        """I32 indices, limited to 0 … n - 1."""
        floats = self.call("clamp", self.call("cast", self.cont(indices), F32.id), 0.0, float(n - 1))
        return self.call("cast", floats, DType.I32.id)

    def pointwise(
        self, op: str, ne: list[int], operands: list[Ptr], *, low: float = -math.inf, high: float = math.inf
    ) -> Ptr:
        """An elementwise op that ggml lacks, by core's name. Operands broadcast to ne. low, high: limits of "clamp"."""
        raise UnsupportedOpError(f"ggml has no {op} for these types")

    def less(self, ne: list[int], x: Ptr, y: Ptr) -> Ptr:
        """1 where x < y, else 0. F32 operands of any strides broadcast to ne."""
        # equal infinities: their difference, NaN, is not above 0
        return self.call("step", self.binary("sub", ne, y, x))

    def softplus(self, x: Ptr) -> Ptr:
        """log(1 + exp(x)). x is contiguous."""
        return self.call("softplus", x)

    def gelu(self, x: Ptr, approximate: str) -> Ptr:
        """gelu(x), by erf ("none"), tanh ("tanh") or a sigmoid ("quick"). x is contiguous."""
        return self.call({"none": "gelu_erf", "tanh": "gelu", "quick": "gelu_quick"}[approximate], x)

    def geglu(self, gate: Ptr, up: Ptr, approximate: str) -> Ptr:
        """gelu(gate) * up. Both are contiguous."""
        name = {"none": "geglu_erf_split", "tanh": "geglu_split", "quick": "geglu_quick_split"}
        return self.call(name[approximate], gate, up)

    def rms_norm(self, x: Ptr, weight: Ptr | None, eps: float) -> Ptr:
        """x / sqrt(mean(x²) + eps) * weight over rows. weight: [ne0]."""
        y = self.call("rms_norm", x, eps)
        return y if weight is None else self.call("mul", y, self.f32(weight))

    def layer_norm(self, x: Ptr, weight: Ptr | None, bias: Ptr | None, eps: float) -> Ptr:
        """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over rows. weight, bias: [ne0]."""
        y = self.call("norm", x, eps)
        y = y if weight is None else self.call("mul", y, self.f32(weight))
        return y if bias is None else self.call("add", y, self.f32(bias))

    def row_max(self, x: Ptr) -> Ptr:
        """The largest element of each row of a matrix."""
        # CUDA's argmax of a row without a number above -FLT_MAX is -1, and get_rows would read before the row
        index = self.reshape(self.limit(self.call("argmax", x), x.ne[0]), (x.ne[1], 1))
        return self.call("get_rows", self.reshape(x, (x.ne[1], x.ne[0], 1)), index)

    def row_argmax(self, x: Ptr) -> Ptr:
        """The first index of the largest element of each row."""
        n, n_rows = x.ne[0], x.ne[1] * x.ne[2] * x.ne[3]
        x, part = self.reshape(x, (n_rows, n)), _part_of(n)
        # A GPU's argmax returns the index of any of equal elements. With n, n - 1, …, 1 for those and 0 for smaller
        # elements, the first has the largest value.
        largest = self._max_of_parts(self._above_least(x), part) if part else self.row_max(x)
        less = self.call("step", self.call("neg", self.call("sub", x, self.reshape(largest, (n_rows, 1)))))
        left = self.call("mul", self.call("scale_bias", less, 1.0, -1.0), self.call("arange", -float(n), 0.0, 1.0))
        if not part:
            return self.call("argmax", left)
        most = self.reshape(self._max_of_parts(left, part), (n_rows,))
        any_left = self.call("step", most)  # none in a row of -inf, whose index is 0
        return self.call("cast", self.call("sub", self.call("scale", any_left, float(n)), most), DType.I32.id)

    def _above_least(self, x: Ptr) -> Ptr:
        return self.call("clamp", self.call("cont", x), _LEAST, math.inf)  # ggml_clamp writes to its operand

    def _max_of_parts(self, x: Ptr, part: int) -> Ptr:
        """The largest element of each row of a matrix, whose elements are numbers above -FLT_MAX.

        Parts of rows come first: CUDA gives a row to one block of threads, which takes 36 microseconds for 128,000
        elements.
        """
        n, n_rows = x.ne[0], x.ne[1]
        for size, count in ((part, n // part * n_rows), (n // part, n_rows)):
            index = self.reshape(self.call("argmax", self.reshape(x, (count, size))), (count, 1))
            x = self.call("get_rows", self.reshape(x, (count, size, 1)), index)
        return x

    def argsort(self, x: Ptr, *, descending: bool) -> Ptr:
        """The indices that sort each row."""
        order = self.g.GGML_SORT_ORDER_DESC if descending else self.g.GGML_SORT_ORDER_ASC
        return self.call("argsort", self.cont(x), order)

    def top_k(self, x: Ptr, k: int) -> Ptr:
        """The indices of the k largest elements of each row, largest first."""
        return self.cont(self.call("argsort_top_k", self.cont(x), k))  # ggml_top_k does not sort them

    def matmul(self, x: Ptr, y: Ptr, *, transpose: bool, full_precision: bool) -> Ptr:
        """x @ y, or x @ y.T. y has any layout."""
        y = self.factor(y if transpose else self.call("transpose", y))
        y = self.f32(y) if y.type == DType.F64.id else y
        batch = [max(x.ne[2], y.ne[2]), max(x.ne[3], y.ne[3])]
        if [x.ne[2], x.ne[3]] != batch:  # ggml repeats only its first operand, which is our y
            x = self.repeat(x, [x.ne[0], x.ne[1], *batch])
        product = self.call("mul_mat", y, self.factor(x))
        if full_precision:
            self.g.ggml_mul_mat_set_prec(product, self.g.GGML_PREC_F32)
        return product

    def linear_experts(self, x: Ptr, weight: Ptr, experts: Ptr, *, distinct: bool) -> Ptr:
        """Multiply each row of x by the matrix that ``experts`` names. distinct: no row names an expert twice.

        ggml's kernels for devices sort the rows by expert, and expect each expert at most once in a row.
        """
        weight = self.factor(weight)
        if distinct or experts.ne[0] == 1:
            return self.call("mul_mat_id", weight, x, experts)
        return self.one_choice_at_a_time(x, weight, experts)

    def one_choice_at_a_time(self, x: Ptr, weight: Ptr, experts: Ptr) -> Ptr:
        """``linear_experts`` as one product for each choice, so that no product has an expert twice."""
        n = experts.ne[0]
        columns = [self.cont(self.column(experts, j)) for j in range(n)]
        rows = [x if x.ne[1] == 1 else self.cont(self.column(x, j, axis=1)) for j in range(n)]
        parts = [self.call("mul_mat_id", weight, row, column) for row, column in zip(rows, columns)]
        return functools.reduce(lambda joined, part: self.call("concat", joined, part, 1), parts)

    def ssm_conv(self, x: Ptr, before: Ptr, weight: Ptr, bias: Ptr | None) -> Ptr:
        """The causal convolution of x (channels, t, n), after the steps ``before``. weight, bias: contiguous."""
        steps = self.call("concat", self.cont(before), self.cont(x), 1)
        y = self.call("ssm_conv", self.cont(self.swap(steps, 0, 1)), weight)
        return y if bias is None else self.call("add", y, bias)

    def ssm_scan(self, x: Ptr, dt: Ptr, a: Ptr, b: Ptr, c: Ptr, state: Ptr) -> Ptr:
        """Core's ``ssm_scan``: its outputs, and then the new states, in one axis. dt is after the softplus.

        In ggml's order: x (head_dim, heads, t, n), dt (1, heads, t, n), a (1 or d_state, heads), b and c
        (d_state, groups, t, n), and the state (d_state, head_dim, heads, n), of any type and strides.
        """
        x, b, c, state = (self.cont(operand) for operand in (x, b, c, self.f32(state)))
        # ggml applies a softplus to dt, but none above 20
        dt, x, a = self.call("scale", dt, _LIFT), self.call("scale", x, 1 / _LIFT), self.call("scale", a, 1 / _LIFT)
        (dim, heads, t, n), d_state = x.ne, state.ne[0]
        rows = self.call("argsort", self.call("arange", 0.0, float(n), 1.0), self.g.GGML_SORT_ORDER_ASC)
        y = self.call("ssm_scan", state, x, self.reshape(dt, (n, t, heads)), a, b, c, rows, 1)
        return self.reshape(y, ((t + d_state) * heads * dim * n,))

    def gated_delta(self, q: Ptr, k: Ptr, v: Ptr, g: Ptr, beta: Ptr, state: Ptr, *, scale: float, tiled: bool) -> Ptr:
        """Core's ``gated_delta_rule``: its outputs, and then the new states, in one axis.

        In ggml's order: q and k (dk, k_heads, t, n), v (dv, heads, t, n), g (1 or dk, heads, t, n) and beta
        (1, heads, t, n), both contiguous, and the state (dk, dv, heads, n), of any type and strides.
        """
        state = self.cont(self.f32(state))
        (dk, k_heads, t, n), (dv, heads) = k.ne, list(v.ne)[:2]
        dim = max(dk, dv)
        if k_heads != heads and not tiled:  # ggml repeats the keys in turns
            q, k = (self._repeat_heads(x, heads // k_heads) for x in (q, k))
        factor = scale * dim**0.5  # ggml divides by √dim
        if factor != 1:
            q = self.call("scale", self.cont(q), factor)
        if dk != dv:  # ggml wants square states; elements of zeros change nothing
            q, k, v = (self.call("pad", x, dim - x.ne[0], 0, 0, 0) for x in (q, k, v))
            g = self.call("pad", g, dim - dk, 0, 0, 0) if g.ne[0] > 1 else g
            state = self.call("pad", state, dim - dk, dim - dv, 0, 0)
        result = self.call("gated_delta_net", q, k, v, g, beta, state, 1)
        if dk == dv:
            return self.reshape(result, ((t + dk) * heads * dv * n,))
        n_rows, row = n * t * heads, 4 * dim
        y = self.call("view_2d", result, dv, n_rows, row, 0)
        new = self.call("view_3d", result, dk, dv, n * heads, row, dim * row, n_rows * row)
        return self.call("concat", self.reshape(y, (n_rows * dv,)), self.reshape(new, (n * heads * dv * dk,)), 0)

    def _repeat_heads(self, x: Ptr, times: int) -> Ptr:
        dim, heads, t, n = x.ne
        separate = self.reshape(x, (n * t, heads, 1, dim))
        return self.reshape(self.repeat(separate, [dim, times, heads, n * t]), (n, t, heads * times, dim))

    def softmax(self, x: Ptr, mask: Ptr | None, scale: float) -> Ptr:
        """softmax(x * scale + mask) over rows. x is contiguous."""
        if mask is None:
            return self.call("soft_max_ext", x, ffi.NULL, scale, 0.0)
        # ggml repeats the mask over its two slowest axes; the row count and length must be x's
        mask = mask if mask.type == DType.F16.id else self.f32(mask)
        mask = self.cont(self.repeat(mask, [x.ne[0], x.ne[1], mask.ne[2], mask.ne[3]]))
        return self.call("soft_max_ext", x, mask, scale, 0.0)

    def cached_attention(
        self,
        q: Ptr,
        k: Ptr,
        v: Ptr,
        lists: tuple[Ptr, Ptr],
        sinks: Ptr | None,
        slopes: Ptr | None,
        *,
        scale: float,
        softcap: float,
    ) -> Ptr:
        """Attention that reads lists of cells: cells, ne ``[l]``, and ranges, ne ``[3, n]``. ggml has none."""
        raise UnsupportedOpError("ggml has no attention that reads lists of cells")

    def attention(
        self, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
    ) -> Ptr:
        """Attention, from q (dim, heads, rows, batch), k and v (dim, kv_heads, cells, batch) in ggml's order.

        With "auto" it is flash attention if the cache is in half precision or quantized, and the device has a kernel
        for its type and these heads.
        """
        q, k, v = (self.swap(x, 1, 2) for x in (q, k, v))  # (dim, rows, heads, batch)
        if self.flash == "on" or (self.flash == "auto" and k.type != F32.id):
            fused = self._flash_attention(q, k, v, mask, sinks, scale, softcap)
            if self.flash == "on" or self._supports(fused):
                return fused
        # ggml repeats k over the heads of a group by itself
        scores = self.call("mul_mat", self.factor(k), self.factor(q))
        self.g.ggml_mul_mat_set_prec(scores, self.g.GGML_PREC_F32)
        if softcap:
            scores = self.call("scale", self.call("tanh", self.call("scale", scores, scale / softcap)), softcap)
            scale = 1.0
        weights = self.softmax(scores, mask, scale)
        if sinks is not None:
            self.g.ggml_soft_max_add_sinks(weights, sinks)
        values = self.call("cont", self.swap(self.f32(v), 0, 1))
        y = self.call("mul_mat", values, weights)
        return self.cont(self.swap(y, 1, 2))

    def _flash_attention(
        self, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
    ) -> Ptr:
        if mask is not None:
            ne = [k.ne[1], q.ne[1], mask.ne[2], mask.ne[3]]
            if mask.type != DType.F16.id or list(mask.ne) != ne:
                mask = self.call("cast", self.repeat(self.f32(mask), ne), DType.F16.id)
            mask = self.cont(mask)
        y = self.call("flash_attn_ext", q, k, v, ffi.NULL if mask is None else mask, scale, 0.0, softcap)
        self.g.ggml_flash_attn_ext_set_prec(y, self.g.GGML_PREC_F32)
        if sinks is not None:
            self.g.ggml_flash_attn_ext_add_sinks(y, sinks)
        return y


@functools.lru_cache
def _part_of(n: int) -> int:
    """The size of equal parts of a wide row, about its square root; 0 for a row that is not divided."""
    return 0 if n < _WIDE else next((size for size in range(math.isqrt(n), 15, -1) if n % size == 0), 0)
