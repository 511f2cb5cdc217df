"""CpuBuilder: makes nodes that run hotshoe's C kernels, from the plugin's folder `native/`, on the CPU only.

The parameters of a node are read whenever its graph is computed: ``keep_alive`` keeps them until the graph is freed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.cpu.fusion import Pattern, find_patterns, find_siblings, operands
from hotshoe_ggml.cpu.kept_states import KEYS, KeptState, find_kept_states
from hotshoe_ggml.cpu.packed import PackedWeight, QuantizedWeight
from hotshoe_ggml.lowering.builder import Builder, Fusion, Ptr, ReadOperand
from hotshoe_ggml.lowering.table import LOWERINGS
from hotshoe_ggml.memory.layouts import Layout
from hotshoe_ggml.native import ffi, kernels

__all__ = ["CpuBuilder", "cache_types", "mask_types"]

_F32 = DType.F32.id
_PLAIN = {_F32: 4}
_I32 = DType.I32.id
_MIN_WORK_ITEMS = 4  # for each thread. With this many, all threads finish at about the same time.
_MIN_QUERIES_IN_TILES = 64  # with this many queries, the kernel takes several queries as one work item
_MAX_FEW_ROWS = 4  # of x in hotshoe_few_rows, which reads all of the other operand once for each row
_ALL_THREADS = -1  # GGML_N_TASKS_MAX
_I32_LIMITS = (-(2**31), 2**31 - 1)
_ACTIVATIONS = {"none": "GELU_ERF", "tanh": "GELU_TANH", "quick": "GELU_QUICK", "softplus": "SOFTPLUS"}
_CACHES = (DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.IQ4_NL)


@functools.cache
def mask_types() -> dict[int, int]:
    """Types that our attention takes as a mask: ggml's type number, and bytes of an element.

    F16 is left out if the CPU lacks F16C: ggml's attention is faster then.
    """
    halves = {} if ffi.string(kernels().hotshoe_kernels_isa()) == b"generic" else {DType.F16.id: 2}
    return _PLAIN | halves


@functools.cache
def cache_types() -> dict[int, int]:
    """Types that our attention takes as keys and values: ggml's type number, and bytes of an element or of a block."""
    if len(mask_types()) == 1:
        return _PLAIN
    return mask_types() | {dtype.id: dtype.block_bytes for dtype in _CACHES}


class _Rows(NamedTuple):
    """States in rows of a cache: row ``read[i]`` has the old one of sequence i, row ``written[i]`` gets the new one."""

    cache: Ptr
    read: Ptr
    written: Ptr


class CpuBuilder(Builder):
    """Makes nodes for the CPU, with hotshoe's kernels wherever they apply and ggml's ops elsewhere.

    n_threads: size of the pool that computes. scratch: HOTSHOE_SCRATCH bytes for each of its threads.
    """

    def __init__(
        self,
        context: Any,
        keep_alive: list[Any],
        *,
        flash: str,
        n_threads: int,
        scratch: Any,
    ) -> None:
        super().__init__(context, keep_alive, flash=flash)
        self.n_threads = n_threads
        self._scratch = scratch

    # Products, and what is fused into them

    def fuse(self, graph: Graph, is_mine: Callable[[Tensor], bool], read_operand: ReadOperand) -> Fusion:
        found, absorbed = find_patterns(graph, _is_packed_product, _is_gated_pair)
        nodes: dict[Tensor, Callable[[], Ptr]] = {}
        for node, pattern in found.items():
            nodes[node] = functools.partial(self._pattern, node, pattern, read_operand)
        for siblings in find_siblings(found, _kind_of_sibling):
            made: dict[Tensor, Ptr] = {}
            for node in siblings:
                nodes[node] = functools.partial(self._sibling, node, siblings, made, read_operand)
        for kept in find_kept_states(graph, is_mine):
            nodes[kept.node] = functools.partial(self._with_kept_state, kept, read_operand)
            absorbed |= kept.absorbed
        return Fusion(nodes, absorbed)

    def _pattern(self, node: Tensor, pattern: Pattern, read_operand: ReadOperand) -> Ptr:
        """Make the ggml node of a whole pattern. node: the last node of the pattern."""
        op = pattern.linear.op
        x, weight = (read_operand(op, t, i) for i, t in enumerate(operands(pattern.linear)))
        gate = None if pattern.gate is None else read_operand(op, operands(pattern.gate)[1], 1)
        if op == "linear_experts":
            chosen = self.indices(pattern.linear, read_operand(op, pattern.linear.source(2), 2))
            return self.experts_product(x, weight, chosen, pattern.activation, gate)
        bias = None if pattern.bias is None else read_operand(op, pattern.bias, 0)
        residual = None if pattern.residual is None else self.cont(read_operand(op, pattern.residual, 0))
        y = self.product(self.cont(x), weight, bias, residual, pattern.activation, gate, features=pattern.features)
        return self.reshape(y, node.shape)

    def _sibling(
        self, node: Tensor, siblings: Mapping[Tensor, Pattern], made: dict[Tensor, Ptr], read_operand: ReadOperand
    ) -> Ptr:
        """Make one ggml node for all siblings, see ``find_siblings``, unless that was done. Returns the result of one.

        Threads then wait for each other once, not after each product. made: the results by their patterns' last nodes.
        """
        if not made:
            patterns = list(siblings.values())
            weights = [read_operand("linear", operands(pattern.linear)[1], 1) for pattern in patterns]
            biases = [self.cont(self.f32(read_operand("linear", p.bias, 0))) for p in patterns if p.bias is not None]
            params = ffi.NULL
            for pattern, weight in reversed(list(zip(patterns, weights))):
                params = weight.params(pattern.activation, pattern.bias is not None, False, next=params)
                params.scratch = self._scratch
            x = self.cont(self.f32(read_operand("linear", operands(patterns[0].linear)[0], 0)))
            n = int(self.g.ggml_nelements(x)) // weights[0].k
            ne = [n * sum(weight.m for weight in weights), 1, 1, 1]
            y = self._kernel(weights[0].function, ne, [self.reshape(x, (n, weights[0].k)), *biases], params)
            start = 0
            for last, weight in zip(siblings, weights):
                result = self.call("view_2d", y, weight.m, n, 4 * weight.m, 4 * start)
                made[last] = self.reshape(result, last.shape)
                start += n * weight.m
        return made[node]

    def product(
        self,
        x: Ptr,
        weight: PackedWeight,
        bias: Ptr | None = None,
        residual: Ptr | None = None,
        activation: str = "none",
        gate: PackedWeight | None = None,
        *,
        features: int = 0,
    ) -> Ptr:
        """``act(x @ W.T + bias) + residual``, with ne ``[m, n]``. Reshape it if x has more axes.

        x: ne ``[k, ...]``, n vectors in all. weight: it must live as long as the graph. bias: m numbers. residual:
        n * m numbers in the order of the result. activation: "none" or "gelu" (with erf). gate: a weight that
        ``takes_gate`` allows; the result is then ``act(x @ gate.T) * (x @ W.T)``, without bias and residual, and
        activation is "silu" or "gelu_tanh". features: how many are computed, the first ones; 0 for all.
        """
        assert gate is None or isinstance(weight, QuantizedWeight)
        params = weight.params(activation, bias is not None, residual is not None, gate, features)
        params.scratch = self._scratch
        n = int(self.g.ggml_nelements(x)) // weight.k
        args = [self.reshape(self.f32(x), (n, weight.k))]
        if bias is not None:
            args.append(self.reshape(self.f32(bias), (weight.m,)))
        if residual is not None:
            args.append(self.reshape(self.f32(residual), (n, weight.m)))
        return self._kernel(weight.function, [features or weight.m, n, 1, 1], [self.cont(arg) for arg in args], params)

    def experts_product(
        self, x: Ptr, packed: PackedWeight, experts: Ptr, activation: str = "none", gate: PackedWeight | None = None
    ) -> Ptr:
        """Multiply each row of x by the matrix that ``experts`` names for it. The result has ne ``[m, used, n]``.

        x: ne ``[k, 1 or used, n]``. experts: I32, ne ``[used, n]``, valid for the weight and the gate. For activation
        and gate see ``product``.
        """
        args = [self.cont(self.f32(x)), self.cont(experts)]
        ne = [packed.m, experts.ne[0], experts.ne[1], 1]
        params = packed.params(activation, False, False, gate)
        params.scratch = self._scratch
        return self._kernel(f"{packed.function}_experts", ne, args, params)

    def linear_experts(self, x: Ptr, weight: Ptr, experts: Ptr, *, distinct: bool) -> Ptr:
        # ggml's product with its repacked weights requires that no row names an expert twice
        return super().linear_experts(x, weight, experts, distinct=distinct or not self._is_repacked(weight))

    def factor(self, x: Ptr) -> Ptr:
        return self.rows(x)

    def rows(self, x: Ptr) -> Ptr:
        return x if x.nb[0] == self.g.ggml_type_size(x.type) else self.cont(x)

    def _is_repacked(self, weight: Ptr) -> bool:
        """Whether the weight has the layout of ggml's CPU_REPACK, a buffer that the host cannot read as memory."""
        return weight.buffer != ffi.NULL and not self.g.ggml_backend_buffer_is_host(weight.buffer)

    def matmul(self, x: Ptr, y: Ptr, *, transpose: bool, full_precision: bool) -> Ptr:
        if transpose and y.ne[2] > 1 and y.op == self.g.GGML_OP_NONE:  # a matrix for each head
            return self._by_head(x, y, full_precision)
        if transpose or x.ne[1] > _MAX_FEW_ROWS or not _is_readable(y):
            return super().matmul(x, y, transpose=transpose, full_precision=full_precision)
        ne = [y.ne[0], x.ne[1], *(max(x.ne[i], y.ne[i]) for i in (2, 3))]
        return self._kernel("hotshoe_few_rows", ne, [x, y], ffi.NULL)

    def _by_head(self, x: Ptr, weight: Ptr, full_precision: bool) -> Ptr:
        """``x @ weight.T``, with the same bits for one row as for several, which ggml adds up in another order."""
        x = self.cont(x)
        rows = x if x.ne[1] > 1 else self.repeat(x, [x.ne[0], 2, *list(x.ne)[2:]])
        product = super().matmul(rows, weight, transpose=True, full_precision=full_precision)
        if x.ne[1] > 1:
            return product
        return self.call("view_4d", product, product.ne[0], 1, *list(product.ne)[2:], *list(product.nb)[1:], 0)

    # Attention

    def attention(
        self, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
    ) -> Ptr:
        if self.flash == "auto":
            readable = mask if mask is None else self.rows(mask if mask.type in mask_types() else self.f32(mask))
            y = self.hotshoe_attention(q, k, v, readable, sinks, scale, softcap)
            if y is not None:
                return y
        return super().attention(q, k, v, mask, sinks, scale, softcap)

    def hotshoe_attention(
        self, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
    ) -> Ptr | None:
        """Attention with our kernel.

        Shapes, in ggml's order: q [dim, heads, n, batch], k [dim, kv_heads, m, batch], v [v_dim, kv_heads, m, batch], a
        mask that broadcasts to [m, n, heads, batch], sinks [heads]; returns [v_dim, heads, n, batch]. Returns None
        unless q is F32, k and v of ``cache_types``, the mask of ``mask_types``, all with contiguous rows, the mask has
        all m columns, and a head has at most 576 elements. sinks are F32 and contiguous.
        """
        if not (_is_readable(q) and all(_is_readable(t, cache_types()) for t in (k, v))):
            return None
        if max(q.ne[0], v.ne[0]) > kernels().HOTSHOE_MAX_HEAD or q.ne[3] > kernels().HOTSHOE_MAX_TEXTS:
            return None
        if mask is not None:
            wanted = (q.ne[2], q.ne[1], q.ne[3])  # the rows, heads and batch of the scores
            if mask.ne[0] != k.ne[2] or any(mask.ne[i + 1] not in (1, size) for i, size in enumerate(wanted)):
                return None
            if not _is_readable(mask, mask_types()):
                return None
        given = {"mask": mask is not None}
        return self._attention([q, k, v] if mask is None else [q, k, v, mask], given, k.ne[2], sinks, scale, softcap)

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
        k, v = (t if t.type in cache_types() else self.f32(t) for t in (k, v))
        args, given = [q, k, v, *lists], {"ranges": True, "slopes": slopes is not None}
        return self._attention(
            args if slopes is None else [*args, slopes], given, lists[0].ne[0], sinks, scale, softcap
        )

    def _attention(
        self, args: list[Ptr], given: dict[str, bool], n_keys: int, sinks: Ptr | None, scale: float, softcap: float
    ) -> Ptr:
        """Make the kernel's node: in one pass, or in two if some threads would have no work in one.

        given: which of the kernel's optional sources are in args.
        """
        q, k, v, *_ = args
        _, heads, n, batch = q.ne
        n_parts = self._n_parts(q, k, n_keys)
        sink_args = [] if sinks is None else [sinks]
        flags = {f"has_{name}": flag for name, flag in given.items()} | {"has_sinks": bool(sink_args) and n_parts == 1}
        sizes = {"scale": scale, "softcap": softcap, "scratch": self._scratch}
        params = ffi.new("struct hotshoe_attention_params *", sizes | flags)
        if n_parts == 1:
            return self._kernel("hotshoe_attention", [v.ne[0], heads, n, batch], args + sink_args, params)
        partial = self._kernel("hotshoe_attention", [v.ne[0] + 2, heads, n, batch * n_parts], args, params)
        has_sinks = ffi.new("int32_t *", bool(sink_args))
        return self._kernel("hotshoe_attention_merge", [v.ne[0], heads, n, batch], [partial, *sink_args], has_sinks)

    def _n_parts(self, q: Ptr, k: Ptr, n_keys: int) -> int:
        """The number of parts of the keys that threads share out, or 1 if a thread computes all keys of its queries.

        A work item is one query with one head of keys. With 8 heads, 6 threads take two turns instead of 1.33; with
        one head and 2 threads, each thread unpacks all keys for its half of the queries' heads.
        """
        n_threads, items = self.n_threads, k.ne[1] * q.ne[2] * q.ne[3]
        if items % n_threads == 0 or items >= _MIN_WORK_ITEMS * n_threads or q.ne[2] >= _MIN_QUERIES_IN_TILES:
            return 1
        return -(-n_keys // int(kernels().HOTSHOE_KEY_PART))

    # Norms

    def rms_norm(self, x: Ptr, weight: Ptr | None, eps: float) -> Ptr:
        y = self._norm("hotshoe_rms_norm", x, weight, None, eps)
        return super().rms_norm(x, weight, eps) if y is None else y

    def layer_norm(self, x: Ptr, weight: Ptr | None, bias: Ptr | None, eps: float) -> Ptr:
        y = self._norm("hotshoe_layer_norm", x, weight, bias, eps)
        return super().layer_norm(x, weight, bias, eps) if y is None else y

    def _norm(self, name: str, x: Ptr, weight: Ptr | None, bias: Ptr | None, eps: float) -> Ptr | None:
        """The node, or None unless all operands are F32 with contiguous rows, and weight and bias are [ne0]."""
        args = [t for t in (x, weight, bias) if t is not None]
        if not all(map(_is_readable, args)):
            return None
        if any(t is not None and list(t.ne) != [x.ne[0], 1, 1, 1] for t in (weight, bias)):
            return None
        flags = (weight is not None, bias is not None)
        return self._kernel(name, list(x.ne), args, ffi.new("struct hotshoe_norm_params *", (eps, *flags)))

    # Recurrent layers

    def ssm_conv(self, x: Ptr, before: Ptr, weight: Ptr, bias: Ptr | None) -> Ptr:
        if weight.ne[0] > kernels().HOTSHOE_MAX_TAPS:
            return super().ssm_conv(x, before, weight, bias)
        args = [x, before, weight] if bias is None else [x, before, weight, bias]
        return self._kernel("hotshoe_ssm_conv", list(x.ne), args, ffi.NULL)

    def gated_delta(
        self, q: Ptr, k: Ptr, v: Ptr, g: Ptr, beta: Ptr, state: Ptr | _Rows, *, scale: float, tiled: bool
    ) -> Ptr:
        if k.ne[0] not in KEYS:
            return super().gated_delta(q, k, v, g, beta, state, scale=scale, tiled=tiled)
        return self._linear_attention([q, k, v, g, beta], state, (scale, tiled, True))

    def ssm_scan(self, x: Ptr, dt: Ptr, a: Ptr, b: Ptr, c: Ptr, state: Ptr | _Rows) -> Ptr:
        if b.ne[0] not in KEYS or a.ne[0] > 1:
            return super().ssm_scan(x, dt, a, b, c, state)
        return self._linear_attention([c, b, x, self.call("mul", dt, a), dt], state, (1.0, False, False))

    def _linear_attention(self, args: list[Ptr], state: Ptr | _Rows, params: tuple[float, bool, bool]) -> Ptr:
        (dv, heads, t, n), dk = args[2].ne, args[1].ne[0]
        n_kept = dk * dv * heads * n
        if isinstance(state, _Rows):
            args, n_kept = [*args, *state], n_kept if n > 1 else 0
        else:
            args = [*args, self.rows(self.f32(state))]
        ne = [dv * heads * t * n + n_kept, 1, 1, 1]
        return self._kernel("hotshoe_linear_attention", ne, args, ffi.new("struct hotshoe_recurrence_params *", params))

    def _with_kept_state(self, kept: KeptState, read_operand: ReadOperand) -> Ptr:
        """Make a recurrence whose states stay in the rows of a cache."""
        op, n = kept.node.op, len(kept.node.sources)
        operands = [read_operand(op, kept.node.source(i), i) for i in range(n - 1)]
        cache = read_operand("take", kept.read.source(0), 0)
        rows = (self.indices(node, read_operand(node.op, node.source(1), 1)) for node in (kept.read, kept.write))
        return LOWERINGS[op](self, kept.node, *operands, _Rows(cache, *rows))

    # Elements and rows

    def softplus(self, x: Ptr) -> Ptr:
        return self._activation("softplus", [x])

    def gelu(self, x: Ptr, approximate: str) -> Ptr:
        return self._activation(approximate, [x])

    def geglu(self, gate: Ptr, up: Ptr, approximate: str) -> Ptr:
        return self._activation(approximate, [gate, up])

    def _activation(self, kind: str, args: list[Ptr]) -> Ptr:
        params = ffi.new("int32_t *", getattr(kernels(), f"HOTSHOE_{_ACTIVATIONS[kind]}"))
        return self._kernel("hotshoe_activation", list(args[0].ne), args, params)

    def pointwise(
        self, op: str, ne: list[int], operands: list[Ptr], *, low: float = -math.inf, high: float = math.inf
    ) -> Ptr:
        limits = (int(min(max(limit, _I32_LIMITS[0]), _I32_LIMITS[1])) for limit in (low, high))
        params = ffi.new("struct hotshoe_pointwise_params *", (getattr(kernels(), f"HOTSHOE_{op.upper()}"), *limits))
        type = _F32 if op in ("equal", "less", "less_equal") else operands[-1].type
        return self._kernel("hotshoe_pointwise", ne, operands, params, type)

    def less(self, ne: list[int], x: Ptr, y: Ptr) -> Ptr:
        return self.pointwise("less", ne, [x, y])

    def limit(self, indices: Ptr, n: int) -> Ptr:
        return self.pointwise("clamp", list(indices.ne), [indices], low=0, high=n - 1)

    def row_max(self, x: Ptr) -> Ptr:
        return self._kernel("hotshoe_row_max", [*list(x.ne)[1:], 1], [x], ffi.NULL)

    def row_argmax(self, x: Ptr) -> Ptr:
        return self._kernel("hotshoe_row_argmax", [*list(x.ne)[1:], 1], [x], ffi.NULL, _I32)

    def argsort(self, x: Ptr, *, descending: bool) -> Ptr:
        return self._order(x, x.ne[0], descending)

    def top_k(self, x: Ptr, k: int) -> Ptr:
        return self._order(x, k, True)

    def _order(self, x: Ptr, k: int, descending: bool) -> Ptr:
        """The indices of the first k elements of each row in order: [k, ne1, ne2, ne3]."""
        params = ffi.new("struct hotshoe_order_params *", (k, descending))
        return self._kernel("hotshoe_row_order", [k, *list(x.ne)[1:]], [x], params, _I32)

    def _kernel(self, name: str, ne: list[int], args: list[Ptr], params: Any, type: int = _F32) -> Ptr:
        """A node that runs one of our kernels on all threads."""
        self.keep_alive.append(params)
        sources, function = ffi.new("struct ggml_tensor *[]", args), ffi.addressof(kernels(), name)
        return self.call("custom_4d", type, *ne, sources, len(args), function, _ALL_THREADS, params)


def _is_readable(t: Ptr, types: dict[int, int] = _PLAIN) -> bool:
    """Whether our kernels can read the tensor: it has one of these types, and contiguous rows."""
    return bool(types.get(t.type) == t.nb[0])


def _layout(node: Tensor) -> Any:
    """The layout that a product reads, known before any node is built; None if its weight is computed by a node."""
    weight = operands(node)[1]
    return weight.handle.read_by(weight, node.op, 1) if isinstance(weight.handle, Layout) else None


def _is_packed_product(node: Tensor) -> bool:
    """Whether our kernels, not ggml's, compute this ``linear`` or ``linear_experts``."""
    return isinstance(_layout(node), PackedWeight)


def _kind_of_sibling(linear: Tensor) -> bool | None:
    """What products of one node must have in common, see ``find_siblings``; None for a product of ggml."""
    layout = _layout(linear)
    return layout.separate_outliers if isinstance(layout, QuantizedWeight) else None


def _is_gated_pair(gate: Tensor, up: Tensor) -> bool:
    """Whether our kernels compute ``act(gate) * up`` as one product. gate, up: products of our kernels."""
    gate_layout, up_layout = _layout(gate), _layout(up)
    if not isinstance(up_layout, QuantizedWeight) or not isinstance(gate_layout, QuantizedWeight):
        return False
    same_input = operands(gate)[0] is operands(up)[0]
    same_experts = all(a is b for a, b in zip(gate.sources[2:], up.sources[2:]))
    return same_input and same_experts and up_layout.takes_gate(gate_layout)
