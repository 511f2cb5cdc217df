"""DeviceBuilder: makes nodes in the order in which ggml's libraries for GPUs fuse them.

CUDA and Vulkan write rotated keys into a cache of F32 or F16 in one kernel, if ROPE, VIEW and SET_ROWS follow each
other, perhaps after RMS_NORM and MUL, and the indices are I64 (ggml_cuda_should_fuse_rope_set_rows in ggml-cuda.cu,
ggml_vk_can_fuse_rope_set_rows in ggml-vulkan.cpp).

They compute the routing of a mixture of experts in one kernel, if its nodes follow each other exactly: SOFT_MAX or a
sigmoid, RESHAPE, perhaps ADD, ARGSORT, VIEW, GET_ROWS, and to normalize RESHAPE, SUM_ROWS, CLAMP, DIV, RESHAPE
(ggml_cuda_topk_moe_fusion in ggml-cuda.cu, topk_moe_early_softmax_norm in ggml-vulkan.cpp).

It sums what the experts give by element if there are many rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.ops.bounds import are_within
from hotshoe_core.tensors.tensor import Shape, Tensor
from hotshoe_ggml.lowering.builder import F32, Builder, Fusion, Ptr, ReadOperand

__all__ = ["MOST_TERMS", "DeviceBuilder"]

_LEAST_SUM = 2.0**-24
"""A lower limit that changes no sum: the largest of n probabilities is 1/n or more, and n is an int of 16 bits."""

MOST_TERMS = 16
"""The most terms of a weighted sum that is computed by element, not as a matrix product."""

_FEWEST_SUMS = 8
"""The fewest rows for which that is done."""


class _Routing(NamedTuple):
    """The nodes of core that route: scores, what is chosen by, the choice, its weights, and how they are normalized."""

    scores: Tensor
    choice: Tensor
    """The scores, or their sum with a correction."""
    chosen: Tensor
    weights: Tensor
    total: Tensor | None = None
    clamp: Tensor | None = None
    normalized: Tensor | None = None


class DeviceBuilder(Builder):
    """Makes the nodes of units without kernels of ours."""

    def fuse(self, graph: Graph, is_mine: Callable[[Tensor], bool], read_operand: ReadOperand) -> Fusion:
        nodes: dict[Tensor, Callable[[], Ptr]] = {}
        absorbed: set[Tensor] = set()
        for routing in _find(graph, is_mine):
            made: dict[str, Ptr] = {}
            steps = [(routing.scores, self._scores), (routing.chosen, self._chosen)]
            if routing.choice is not routing.scores:
                steps.append((routing.choice, self._choice))
            steps.append((routing.weights if routing.normalized is None else routing.normalized, self._weights))
            for node, make in steps:
                nodes[node] = functools.partial(make, routing, read_operand, made)
            absorbed |= {t for t in (routing.weights, routing.total, routing.clamp) if t is not None} - nodes.keys()
        return Fusion(nodes, absorbed)

    def reshape(self, x: Ptr, shape: Shape) -> Ptr:
        """As the base class; the rows of rotated heads become a VIEW, not a RESHAPE."""
        if x.op == self.g.GGML_OP_ROPE and len(shape) == 2 and shape == (x.ne[2] * x.ne[3], x.ne[0] * x.ne[1]):
            return self.call("view_2d", x, shape[1], shape[0], x.nb[2], 0)
        return super().reshape(x, shape)

    def matmul(self, x: Ptr, y: Ptr, *, transpose: bool, full_precision: bool) -> Ptr:
        """As the base class, but weighted sums, such as those of experts, are products of elements that are added.

        As matrix products there would be one for each row, and a GPU computes only a few of these at a time.
        """
        k, n = x.ne[0], x.ne[2]
        is_sum = not transpose and x.ne[1] == 1 and k <= MOST_TERMS and y.ne[2] == n and x.ne[3] == y.ne[3] == 1
        if not is_sum or n < _FEWEST_SUMS:
            return super().matmul(x, y, transpose=transpose, full_precision=full_precision)
        terms = self.call("mul", self.rows(self.f32(y)), self.call("view_3d", x, 1, k, n, x.nb[0], x.nb[2], 0))
        parts = [self.call("view_2d", terms, y.ne[0], n, terms.nb[2], i * terms.nb[1]) for i in range(k)]
        return self.reshape(functools.reduce(functools.partial(self.call, "add"), parts), (n, 1, y.ne[0]))

    def indices(self, node: Tensor, native: Ptr, which: int = 0) -> Ptr:
        """As the base class; ggml's product of experts reads rows with gaps between them, such as the routing's."""
        fits = node.op == "linear_experts" and are_within(node.source(2), node.source(1).shape[0])
        if fits and native.nb[0] == self.g.ggml_type_size(native.type):
            return native
        return super().indices(node, native, which)

    def _scores(self, r: _Routing, read_operand: ReadOperand, made: dict[str, Ptr]) -> Ptr:
        logits = self.cont(self.f32(read_operand(r.scores.op, r.scores.source(0), 0)))
        made["scores"] = self.softmax(logits, None, 1.0) if r.scores.op == "softmax" else self.call("sigmoid", logits)
        n, n_experts = r.scores.shape
        made["columns"] = self.call("reshape_3d", made["scores"], 1, n_experts, n)
        return made["columns"]

    def _choice(self, r: _Routing, read_operand: ReadOperand, made: dict[str, Ptr]) -> Ptr:
        made["choice"] = self.call("add", made["scores"], self.f32(read_operand("add", r.choice.source(1), 1)))
        return made["choice"]

    def _chosen(self, r: _Routing, read_operand: ReadOperand, made: dict[str, Ptr]) -> Ptr:
        made["chosen"] = self.call("argsort_top_k", made.get("choice", made["scores"]), r.chosen.attrs["k"])
        return made["chosen"]

    def _weights(self, r: _Routing, read_operand: ReadOperand, made: dict[str, Ptr]) -> Ptr:
        n, k = r.weights.shape
        weights = self.call("reshape_2d", self.call("get_rows", made["columns"], made["chosen"]), k, n)
        if r.normalized is None:
            return weights
        least = _LEAST_SUM if r.clamp is None else r.clamp.attrs["min"]
        total = self.call("clamp", self.call("sum_rows", weights), least, math.inf)
        # the fused kernel reads k from the second axis of its last node
        return self.call("reshape_2d", self.call("reshape_3d", self.call("div", weights, total), 1, k, n), k, n)


def _find(graph: Graph, is_mine: Callable[[Tensor], bool]) -> list[_Routing]:
    if not any(node.op == "top_k" for node in graph.nodes):
        return []
    readers: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        for source in node.sources:
            if source is not None:
                readers.setdefault(source, []).append(node)
    kept = {*graph.outputs, *graph.updates.values()}
    found = []
    for chosen in graph.nodes:
        routing = _routing(chosen, readers) if chosen.op == "top_k" else None
        if routing is None:
            continue
        nodes = [t for t in routing if t is not None]
        inner = {routing.scores, routing.choice, routing.total, routing.clamp}
        inner |= {routing.weights} if routing.normalized is not None else set()
        if all(map(is_mine, nodes)) and not inner & kept and chosen not in kept:
            found.append(routing)
    return found


def _routing(chosen: Tensor, readers: dict[Tensor, list[Tensor]]) -> _Routing | None:
    """The routing whose choice is ``chosen``; None if it has another form, or other nodes read what is between."""
    choice = chosen.source(0)
    scores = choice.source(0) if choice.op == "add" else choice
    if scores.op not in ("softmax", "sigmoid") or scores.ndim != 2 or scores.dtype is not F32:
        return None
    if scores.op == "softmax" and (len(scores.sources) > 1 and scores.sources[1] is not None):
        return None
    if scores.attrs.get("scale", 1.0) != 1.0:
        return None
    gathers = (t for t in readers.get(chosen, ()) if t.op == "take_along")
    weights = next((t for t in gathers if t.source(0) is scores and t.source(1) is chosen), None)
    first = [chosen] if choice is scores else [choice]
    if weights is None or sorted(map(id, readers[scores])) != sorted(map(id, [*first, weights])):
        return None
    if choice is not scores and (len(readers[choice]) > 1 or not choice.source(1).is_leaf):
        return None
    return _normalized(_Routing(scores, choice, chosen, weights), readers)


def _normalized(routing: _Routing, readers: dict[Tensor, list[Tensor]]) -> _Routing:
    """The routing with the nodes that divide its weights by their sum, if it has them."""
    weights = routing.weights
    total = next((t for t in readers.get(weights, ()) if t.op == "sum" and t.shape == (weights.shape[0], 1)), None)
    if total is None or len(readers[weights]) != 2 or len(readers.get(total, ())) != 1:
        return routing
    (divisor,) = readers[total]
    clamp = divisor if divisor.op == "clamp" and divisor.attrs["max"] == math.inf else None
    if clamp is None and routing.scores.op != "softmax":
        return routing  # a sum of sigmoids may be as small as it likes
    last = total if clamp is None else clamp
    division = readers[last][0] if len(readers.get(last, ())) == 1 else last
    if division.op != "div" or division.source(0) is not weights or division.source(1) is not last:
        return routing
    return routing._replace(total=total, clamp=clamp, normalized=division)
