"""Find the node of a trace that a name in another file means: by a map, by equal or translated names, or by order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hotshoe_core.errors import TraceError, did_you_mean
from hotshoe_core.inspect.tracefile import Node, Trace

__all__ = ["match"]

_PREFIXES = 2  # leading parts of a name that may be a wrapper's: "bert.", "model.language_model."


def match(
    a: Trace, b: Trace, names: Mapping[str, str] | None, agree: Callable[[Node, str], bool]
) -> tuple[list[tuple[Node, str]], list[str]]:
    """Nodes of ``a`` in their order, each with its name in ``b``; and the names without a partner.

    agree: returns whether a node and a name of ``b`` hold the same numbers; used if only shapes can be compared.
    Raises TraceError if a file lacks a name of ``names``.
    """
    modules = _modules(a)
    found: dict[str, Node] = {}
    for other, name in (names or {}).items():
        if other not in b.nodes:
            raise TraceError(f"{b.path} has no {other!r}, which the map names", hint=did_you_mean(other, b.nodes))
        node = a.nodes.get(name) or modules.get(name)
        if node is None:
            raise TraceError(
                f"{a.path} has no node and no module {name!r}, which the map names for {other!r}",
                hint=did_you_mean(name, {*a.nodes, *modules}),
            )
        found[other] = node
    if b.recorded:
        found |= {name: node for name, node in a.nodes.items() if name in b.nodes and name not in found}
        found = {name: node for name, node in found.items() if node.statistics and b.nodes[name].statistics}
    else:
        translate = _translator(a, modules, b)
        for other in b.nodes:
            node = None if other in found else a.nodes.get(other) or translate(other)
            if node is not None:
                found[other] = node
        found = found or _by_order(a, b, agree)
    order = {name: i for i, name in enumerate(a.nodes)}
    matched = sorted(((node, other) for other, node in found.items()), key=lambda m: order[m[0].name])
    unmatched = [name for name, node in b.nodes.items() if name not in found and (node.statistics or not b.recorded)]
    if b.recorded:
        partners = {node.name for node in found.values()}
        unmatched += [name for name, node in a.nodes.items() if name not in partners and node.statistics]
    return matched, unmatched


def _modules(trace: Trace) -> dict[str, Node]:
    """The last node of each module: its result. ``blk.0`` is a block, ``blk.0.attn_q`` a module in it."""
    found: dict[str, Node] = {}
    for node in trace.nodes.values():
        parts = node.name.split(".")
        if node.statistics is not None:
            found |= {".".join(parts[:i]): node for i in range(1, len(parts))}
    return found


def _translator(trace: Trace, modules: Mapping[str, Node], other: Trace) -> Callable[[str], Node | None]:
    """A function from Hugging Face's name of a module to the node that it means, by gguf's tables.

    The tables hold names of weights: they do not have a module that holds others, such as BERT's "embeddings".
    """
    import gguf

    architecture = trace.about.get("architecture")
    number = next((k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture), None)
    holders = {name.rpartition(".")[0] for name in other.nodes}
    n_layers = 1 + max((n.layer for n in trace.nodes.values()), default=-1)
    names = None if number is None else gguf.get_tensor_name_map(number, n_layers)

    def translate(name: str) -> Node | None:
        layer = re.search(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)$", name)
        if layer is not None:
            return modules.get(f"blk.{layer[1]}")
        if name in modules:
            return modules[name]
        parts = name.split(".")
        if names is None or name in holders:
            return None
        for i in range(min(len(parts), _PREFIXES + 1)):
            bare = ".".join(parts[i:])
            for plain in (bare, f"model.{bare}"):
                known = names.get_name(plain, try_suffixes=(".weight",))
                if known is not None:
                    return modules.get(known.removesuffix(".weight"))
        return None

    return translate


def _by_order(a: Trace, b: Trace, agree: Callable[[Node, str], bool]) -> dict[str, Node]:
    """Match in the order of both files: the next node of the same shape that agrees, else the next of that shape."""
    found: dict[str, Node] = {}
    nodes = [n for n in a.nodes.values() if n.op != "input" and n.statistics is not None]
    start = 0
    for other, theirs in b.nodes.items():
        shape = [d for d in theirs.shape if d != 1]
        fitting = [i for i in range(start, len(nodes)) if [d for d in nodes[i].shape if d != 1] == shape]
        chosen = next((i for i in fitting if agree(nodes[i], other)), fitting[0] if fitting else None)
        if chosen is not None:
            found[other] = nodes[chosen]
            start = chosen + 1
    return found
