"""Write docs/ops.md: every op, its signature, its name in Ollama's engine, and what each backend does with it.

    python tools/ops_docs.py            # writes the page
    python tools/ops_docs.py --check    # fails if the page is not up to date

Each entry in BACKENDS gives a column: the name of a backend, and a function that tells which nodes it computes itself.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.op import Op
from hotshoe_core.tensors.tensor import TABLE, Tensor
from hotshoe_core.testing import OP_CASES
from hotshoe_core.testing.matrix import outcomes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ops.md"
EXAMPLE = ROOT / "examples" / "backends" / "torch"

Supports = Callable[[Tensor], bool]


def _reference() -> Supports:
    from hotshoe_core.eager.reference import numpy_library

    functions = numpy_library().functions
    return lambda node: node.op in functions


def _ggml_cpu() -> Supports:
    from hotshoe_ggml.lowering import can_lower

    return can_lower


def _mlx() -> Supports:
    from hotshoe_mlx.accepts import supports  # does not import mlx, which some systems cannot install

    return supports


def _torch() -> Supports:
    """The nodes that the example accepts. Neither the example nor torch has to be installed."""
    spec = importlib.util.spec_from_file_location("accepts", EXAMPLE / "src" / "hotshoe_torch" / "accepts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def supports(node: Tensor) -> bool:
        accepts = module.ACCEPTS.get(node.op, lambda node: True)
        return not TABLE[node.op].composite or (node.op in module.COMPOSITES and accepts(node))

    return supports


BACKENDS: dict[str, Callable[[], Supports]] = {
    "reference": _reference,
    "ggml-cpu": _ggml_cpu,
    "mlx": _mlx,
    "torch (example)": _torch,
}

DTYPES = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.I32)

# The Tensor methods of Ollama's ml.Backend interface: SEEDS in its first version, LATER those added by 2026. Values are
# names of hotshoe's ops in backticks, or text if there is no such op.
SEEDS = {
    "Dim, Shape": "`Tensor.shape`", "Stride": "not needed: a backend decides on its memory layout",
    "DType": "`Tensor.dtype`", "Bytes, Floats": "`Tensor.read`, after `Context.compute`",
    "Neg": "`neg`", "Add": "`add`", "Sub": "`sub`", "Mul": "`mul`", "Div": "`div`",
    "Mulmat": "`linear` by a weight, else `matmul` with `transpose`",
    "MulmatFullPrec": '`matmul` with `precision="full"`', "MulmatID": "`linear_experts`", "Softmax": "`softmax`",
    "LayerNorm": "`layer_norm`", "RMSNorm": "`rms_norm`", "Scale": "`affine`, which `x * 2.0` records",
    "SumRows": "`sum`", "AvgPool2D": "`avg_pool2d`", "Conv2D": "`conv2d`", "IM2Col": "`im2col`",
    "Sin": "`sin`", "Cos": "`cos`", "Tanh": "`tanh`", "GELU": "`gelu`", "SILU": "`silu`", "RELU": "`relu`",
    "Sigmoid": "`sigmoid`", "Reshape": "`reshape`", "View": "`slice` and `reshape`: `x[1:3, ::2]`",
    "Permute": "`permute`, with NumPy's order of axes",
    "Contiguous": "not needed: a backend copies if one of its ops needs contiguous memory",
    "Set": "`set_slice`, which `x.set(key, values)` records", "Pad": "`pad`", "Stack": "`stack`",
    "Repeat": "`tile`; `repeat` is NumPy's", "Concat": "`concat`", "Rows": "`take`",
    "Copy": "`cast` to another type; into a state by `Context.update`",
    "Duplicate": "not needed: a tensor is a value, and nothing overwrites it", "TopK": "`top_k`",
    "Argsort": "`argsort`", "Mean": "`mean`", "Variance": "`variance`", "Stddev": "`variance` and `sqrt`: `x.stddev()`",
    "Sqr": "`sqr`", "Sqrt": "`sqrt`", "Clamp": "`clamp`", "ScaledDotProductAttention": "`attention`",
}  # fmt: skip
LATER = {
    "Exp": "`exp`", "Softplus": "`softplus`", "Fill": "the function `full`, and `zeros`, `ones`",
    "AddID": "`add_experts`", "SolveTri": "`solve_triangular`", "L2Norm": "`l2_norm`", "CumSum": "`cumsum`",
    "Conv3D": "`conv3d`", "Conv1DDW": "`conv1d` with `groups`", "SSMConv": "`ssm_conv`", "SSMScan": "`ssm_scan`",
    "Interpolate": "`interpolate`", "GELU(up)": "`geglu`", "SILU(up)": "`swiglu`", "RELU(up)": "`reglu`",
    "SILUAlphaLimit": "`clamped_swiglu`", "GELU_ERF": '`gelu` with `approximate="none"`',
    "QuickGELU": '`gelu` with `approximate="quick"`', "SigmoidOut": "`sigmoid`: every op gives a new value",
    "PadExt": "`pad`", "Slice": "`slice`: `x[...]`", "Chunk": "`slice`: `x.chunk(n)`", "Diag": "`diag`",
    "Tri": "`tril`, `triu`", "SetRows": "`set_rows`", "RoPE": "`rope`",
    "Arange, Zeros, FromFloats, FromInts (of Context)": "the functions `arange`, `zeros`, `constant`",
}  # fmt: skip

# The rest of that interface, in its first version, with the reason where hotshoe has no counterpart.
AROUND = {
    "Backend.Load": "`Backend.load`", "Backend.BackendMemory": "`Backend.memory`",
    "Backend.Config": "the metadata of the file, which a GGUFFile reads",
    "Backend.Get": "a field of the model's class, which declares the tensor's name",
    "Backend.NewContext": "`Backend.new_context`",
    "NewContextSize, MaxGraphNodes": "not needed: a graph is built before it is compiled, so its size is known",
    "RegisterBackend, NewBackend": "an entry point that names a `Provider`; `load_all().open(device)`",
    "BackendCacheConfig": "`Backend.cache_config`", "CachePadding": "`CacheConfig.padding`",
    "MaskDType": "`CacheConfig.mask_dtype`",
    "PermutedV": "not needed: the cache writes rows by `set_rows`, and how a state is stored is the backend's choice",
    "MaskBatchPadding": "not needed: a backend whose kernel reads more rows of a mask adds them in its `attention`",
    "NumThreads": "`BackendParams.n_threads`", "FlashAttention": "`BackendParams.flash_attention`",
    "MainGPU, NumGPULayers, TensorSplit": "options of [load_model](python.md#options-of-load_model), not of a backend",
    "ErrNoMem": "`errors.InsufficientMemoryError`", "AllocationStatus, Memory": "`AllocationStatus`, `Memory`",
    "DeviceMemory, BackendMemory": "`DeviceMemory`, `BackendMemory`", "InputWeights": "`DeviceMemory.input_weights`",
    "LogValue": "`BackendMemory.to_json`: values for any logger",
    "Context.Empty": "not needed: every tensor has a value; what is fed later is `Context.input`",
    "Context.Forward, Compute, Reserve": "`Context.forward`, `Context.compute`, `Context.reserve`",
    "Context.Input": "`Context.input`",
    "Context.Layer": "not needed: a node belongs to the layer of the module that records it",
    "Dump, DumpWithPrecision, …": "`dump(x, precision=4, threshold=1000, edge_items=3)`",
}  # fmt: skip

INTRO = """# The ops

Made by `python tools/ops_docs.py` from the op table and from what each backend reports; a test compares them.
Import ops from `hotshoe_core.ops`, where `max`, `min`, `sum`, `abs`, `round` and `slice` end in `_`; most ops are
methods of Tensor too, and `+ - * / // % @ < <= > >= [...]` are written as such. `help(ops.rms_norm)` says more.

- Every backend must compute each *primitive*. Core decomposes a *composite* into primitives if a backend does not
  compute it itself.
- Shapes are NumPy's; operands broadcast if the text says so. Arithmetic takes any float type and gives F32; with
  integers of one type, I32 or I64, it keeps the type and wraps around. Comparisons give ones and zeros in F32.
- NaN stays NaN: in arithmetic and functions of single elements, in reductions, norms and softmax (the whole row), in
  casts to other float types, and in products with weights of F32, F16 and BF16 (its row of the result, no other).
  Comparisons with NaN are false, and `where` only selects. Sorting puts NaN last, `argmax` and `argmin` take it. The
  result is undefined in `clamp`, `relu` and `gelu`, in what core makes of them (`reglu`, `geglu`, `clamped_swiglu`,
  `l2_norm`), and in products with quantized weights. In attention, a key that the mask hides must be finite.
- **native**: the backend computes it itself. **decomposed**: core replaces it by other ops. **no**: refused. If
  types differ, the cell lists {dtypes} with their results. A slash means that it depends on shapes or attributes.
- **Ollama**: the name of the op in [Ollama's engine](#names-in-ollamas-engine), if it has one.
"""


def page() -> str:
    backends = {name: make() for name, make in BACKENDS.items()}
    lines = [INTRO.format(dtypes=", ".join(d.name for d in DTYPES))]
    for theme, ops in _themes().items():
        module = sys.modules[theme]
        lines += [f"## {(module.__doc__ or '').splitlines()[0].rstrip('.')}", ""]
        lines += [f"| op | description | Ollama | {' | '.join(backends)} |", "| --- " * (3 + len(backends)) + "|"]
        for op in ops:
            cells = [_status(op, supports) for supports in backends.values()]
            kind = "" if op.composite else " (primitive)"
            summary = _one_line(op)
            lines.append(f"| `{_signature(op)}`{kind} | {summary} | {_called(op)} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Names in Ollama's engine", "", "| `ml.Tensor` | hotshoe |", "| --- | --- |"]
    lines += [f"| {name} | {_checked(here)} |" for name, here in (SEEDS | LATER).items()]
    lines += ["", "The rest of `ml`: backends, contexts, caches and memory.", "", "| `ml` | hotshoe |", "| --- | --- |"]
    lines += [f"| {name} | {_checked(here)} |" for name, here in AROUND.items()]
    return "\n".join(lines) + "\n"


def _themes() -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in TABLE.values():
        found.setdefault(op.__module__, []).append(op)
    return found


def _signature(op: Op) -> str:
    parameters = [p.replace(annotation=p.empty) for p in op.__signature__.parameters.values()]
    return op.name + str(inspect.Signature(parameters)).replace("|", "\\|")


def _one_line(op: Op) -> str:
    """The first paragraph of the docstring, and the sentence that gives the shapes if there is one."""
    paragraphs = [" ".join(p.split()) for p in (op.__doc__ or "").split("\n\n")]
    shapes = [s for p in paragraphs[1:] for s in p.split(". ") if s.startswith("Shapes")]
    return " ".join([paragraphs[0], *(s.rstrip(".") + "." for s in shapes[:1])]).replace("|", "\\|")


def _called(op: Op) -> str:
    return ", ".join(f"`{name}`" for name, here in (SEEDS | LATER).items() if f"`{op.name}`" in here)


def _checked(here: str) -> str:
    """Mark names that are neither ops nor functions nor methods."""
    import hotshoe_core
    from hotshoe_core import ops

    for name in here.split("`")[1::2]:
        owner, dot, member = name.partition(".")
        if dot and member.isidentifier() and not hasattr(getattr(hotshoe_core, owner, None), member):
            here = here.replace(f"`{name}`", f"`{name}` (missing)")
        plain = name.isidentifier() and name not in TABLE and not hasattr(ops, name) and not hasattr(hotshoe_core, name)
        if plain and not any(name in op.attrs for op in TABLE.values()):
            here = here.replace(f"`{name}`", f"`{name}` (missing)")
    return here


def _status(op: Op, supports: Supports) -> str:
    """What a backend does with the kit's cases of this op, by element type."""
    cases = [case for case in OP_CASES if case.op == op.name and not case.optional]
    by_type = outcomes(cases, supports).get(op.name, {})
    words = {d: "/".join(w for w in ("native", "decomposed", "no") if w in by_type[d]) for d in DTYPES if d in by_type}
    kinds = list(dict.fromkeys(words.values()))
    if len(kinds) == 1:
        return kinds[0]
    return "; ".join(f"{', '.join(d.name for d, w in words.items() if w == kind)} {kind}" for kind in kinds)


def main() -> None:
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/ops.md is not up to date: run python tools/ops_docs.py")


if __name__ == "__main__":
    main()
