"""Our attention and norms against NumPy in float64, through ggml graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_ggml import native
from hotshoe_ggml.cpu.builder import CpuBuilder, cache_types, mask_types
from hotshoe_ggml.memory.host import zeros
from hotshoe_ggml.native import ffi

Array = np.ndarray[Any, Any]


class Blocks:
    """An array of a block type or of BF16, with random codes."""

    def __init__(self, type: Type, *shape: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.type, self.shape, self.ndim = type, shape, len(shape)
        each, n_bytes = gguf.GGML_QUANT_SIZES[type]
        n = math.prod(shape) // each
        self.data = rng.integers(0, 256, (n, n_bytes), np.uint8)
        if type is Type.BF16:
            self.data = (rng.standard_normal(n, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            self.data[:, :2] = rng.uniform(0.01, 0.02, (n, 1)).astype(np.float16).view(np.uint8)
        if type.name.endswith("_1"):
            self.data[:, 2:4] = rng.standard_normal((n, 1)).astype(np.float16).view(np.uint8)
        rows = self.data.reshape(-1, shape[-1] // each * n_bytes)
        self.values = gguf.quants.dequantize(rows, type).reshape(shape)


def cpu_builder(context: Any, n_threads: int = 1) -> CpuBuilder:
    scratch = ffi.from_buffer(zeros(n_threads * native.kernels().HOTSHOE_SCRATCH))
    return CpuBuilder(context, [], flash="auto", n_threads=n_threads, scratch=scratch)


class Graphs:
    """Computes one node on `n_threads` threads."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self.lib = native.lib()
        cpu = native.load_cpu()
        self.backend = self.lib.ggml_backend_dev_init(cpu.devices()[0].pointer, ffi.NULL)
        set_threads = cpu.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
        assert set_threads is not None
        set_threads(self.backend, n_threads)

    def run(self, make: Any, *arrays: Array | Blocks | None, shift: int = 0) -> Array:
        """The result of `make(builder, *tensors)` with leaves that hold the arrays; float16 becomes F16.

        shift: the tensors are views that begin this many elements into each row.
        """
        g = self.lib
        context = g.ggml_init({"mem_size": 1 << 20, "mem_buffer": ffi.NULL, "no_alloc": True})
        leaves = g.ggml_init({"mem_size": 1 << 16, "mem_buffer": ffi.NULL, "no_alloc": True})
        builder = cpu_builder(context, self.n_threads)
        held, tensors = [], []
        for array in arrays:
            if array is None:
                tensors.append(None)
                continue
            if isinstance(array, Blocks):
                tensors.append(g.ggml_new_tensor(leaves, int(array.type), 4, [*reversed(array.shape)]))
                held.append((tensors[-1], array.data))
                continue
            if array.dtype == np.int32:
                tensors.append(g.ggml_new_tensor(leaves, int(Type.I32), 2, [*reversed(array.shape), 1][:2]))
                held.append((tensors[-1], array))
                continue
            skip = shift if array.ndim > 1 else 0
            half = array.dtype == np.float16
            wide = np.full((*array.shape[:-1], array.shape[-1] + skip), np.nan, np.float16 if half else np.float32)
            wide[..., skip:] = array
            leaf = g.ggml_new_tensor(leaves, int(half), 4, [*reversed(wide.shape), *(1,) * (4 - wide.ndim)])
            held.append((leaf, wide))
            sizes, strides = list(leaf.ne)[1:], list(leaf.nb)[1:]
            view = g.ggml_view_4d(context, leaf, array.shape[-1], *sizes, *strides, wide.itemsize * skip)
            tensors.append(view if skip else leaf)
        buffer = g.ggml_backend_alloc_ctx_tensors(leaves, self.backend)
        for leaf, wide in held:
            g.ggml_backend_tensor_set(leaf, ffi.from_buffer(wide), 0, wide.nbytes)
        node = make(builder, *tensors)
        assert node is not None
        graph = g.ggml_new_graph_custom(context, 64, False)
        g.ggml_build_forward_expand(graph, node)
        allocator = g.ggml_gallocr_new(g.ggml_backend_get_default_buffer_type(self.backend))
        assert g.ggml_gallocr_alloc_graph(allocator, graph)
        assert g.ggml_backend_graph_compute(self.backend, graph) == g.GGML_STATUS_SUCCESS
        out = np.empty(tuple(reversed(list(node.ne))), np.float32)
        g.ggml_backend_tensor_get(node, ffi.from_buffer(out), 0, out.nbytes)
        g.ggml_gallocr_free(allocator)
        g.ggml_backend_buffer_free(buffer)
        g.ggml_free(context)
        g.ggml_free(leaves)
        return out


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def graphs(request: pytest.FixtureRequest) -> Iterator[Graphs]:
    made = Graphs(request.param)
    yield made
    made.lib.ggml_backend_free(made.backend)


def expected(
    q: Array, k: Array, v: Array, mask: Array | None, scale: float, softcap: float, sinks: Array | None = None
) -> Array:
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x.astype(float), group, 2) for x in (k, v))
    scores = np.einsum("bnhd,bmhd->bhnm", q.astype(float), k) * scale
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        of_heads = np.broadcast_to(sinks.astype(float)[:, None, None], (*scores.shape[:-1], 1))
        scores = np.concatenate([scores, of_heads], -1)
        v = np.concatenate([v, np.zeros_like(v[:, :1])], 1)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhnm,bmhd->bnhd", weights / weights.sum(-1, keepdims=True), v)


def attend(
    graphs: Graphs,
    q: Array,
    k: Array | Blocks,
    v: Array | Blocks,
    mask: Array | None = None,
    cap: float = 0.0,
    sinks: Array | None = None,
    **kw: Any,
) -> Array:
    scale = 1 / math.sqrt(q.shape[-1])
    got = graphs.run(lambda b, *t: b.hotshoe_attention(*t, scale=scale, softcap=cap), q, k, v, mask, sinks, **kw)
    values = [x.values if isinstance(x, Blocks) else x for x in (k, v)]
    np.testing.assert_allclose(got, expected(q, *values, mask, scale, cap, sinks), rtol=1e-5, atol=4e-6)
    return got


def operands(
    b: int, n: int, m: int, heads: int, kv_heads: int, dim: int, v_dim: int, dtype: type = np.float32
) -> list[Array]:
    """q, and k and v of the dtype."""
    rng = np.random.default_rng(0)
    shapes = (b, n, heads, dim), (b, m, kv_heads, dim), (b, m, kv_heads, v_dim)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return [q, k.astype(dtype), v.astype(dtype)]


def hides(visible: Array, dtype: type = np.float32) -> Array:
    """A mask: 0 where a query sees a key, otherwise -inf."""
    return np.where(visible, 0, -np.inf).astype(dtype)


@pytest.fixture(params=[np.float32, np.float16], ids=["f32", "f16"])
def dtype(request: pytest.FixtureRequest) -> type:
    if request.param is np.float16 and len(mask_types()) == 1:
        pytest.skip("this CPU has no instructions for half floats: ggml's attention is used")
    chosen: type = request.param
    return chosen


SHAPES = [
    (4, 25, 25, 12, 12, 32, 32),
    (1, 1, 1, 1, 1, 32, 32),
    (3, 7, 33, 4, 2, 64, 64),
    (1, 130, 301, 2, 2, 80, 80),  # several blocks of keys
    (2, 17, 129, 4, 1, 128, 128),
    (1, 1, 700, 8, 2, 64, 64),  # decoding
    (1, 600, 600, 1, 1, 32, 32),  # more rows than a job has
    (2, 5, 37, 3, 3, 33, 47),  # not a multiple of any vector
    (1, 9, 40, 2, 1, 512, 512),
    (1, 1, 513, 14, 2, 64, 64),  # more heads for each key than a tile has rows
    (1, 20, 90, 16, 1, 64, 48),
    (1, 1, 1500, 4, 1, 256, 256),  # fewer heads than threads
    (2, 3, 800, 3, 1, 48, 32),
    (1, 2, 600, 16, 1, 576, 512),  # latent attention
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("shift", [0, 3], ids=["whole", "views"])
def test_attention(graphs: Graphs, shape: tuple[int, ...], shift: int, dtype: type) -> None:
    attend(graphs, *operands(*shape, dtype=dtype), shift=shift)


@pytest.mark.parametrize("full", list(itertools.product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_masks_of_each_broadcast_form(graphs: Graphs, full: tuple[bool, ...], cap: float, dtype: type) -> None:
    b, n, m, heads = 2, 19, 150, 4
    mask = np.random.default_rng(1).standard_normal([s if f else 1 for s, f in zip((b, heads, n), full)] + [m])
    mask = np.where(mask > 1, -np.inf, mask).astype(dtype)
    attend(graphs, *operands(b, n, m, heads, 2, 32, 32, dtype), mask, cap)


CACHES = [Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.IQ4_NL]


@pytest.mark.skipif(len(cache_types()) == 1, reason="this CPU has no AVX2: ggml's attention is used")
@pytest.mark.parametrize(
    "shape", [(1, 1, 700, 8, 2, 64, 64), (2, 40, 170, 4, 2, 96, 32), (1, 3, 77, 2, 1, 576, 512)], ids=str
)
@pytest.mark.parametrize("type", CACHES)
def test_caches_of_each_type(graphs: Graphs, type: Type, shape: tuple[int, ...]) -> None:
    b, n, m, _, kv_heads, dim, v_dim = shape
    q, *_ = operands(*shape)
    mask = hides(np.arange(m) - np.arange(n)[:, None] < m - n).reshape(1, 1, n, m)
    attend(graphs, q, Blocks(type, b, m, kv_heads, dim), Blocks(type, b, m, kv_heads, v_dim, seed=1), mask)
    assert type is Type.BF16 or type.value in cache_types()


def test_keys_and_values_of_different_types(graphs: Graphs) -> None:
    if Type.Q8_0.value not in cache_types():
        pytest.skip("this CPU has no AVX2: ggml's attention is used")
    q, _, v = operands(1, 9, 300, 4, 2, 64, 64, np.float16)
    attend(graphs, q, Blocks(Type.Q8_0, 1, 300, 2, 64), v)
    attend(graphs, q, v, Blocks(Type.Q4_0, 1, 300, 2, 64))


@pytest.mark.parametrize(
    "shape", [(1, 1, 900, 4, 1, 32, 32), (2, 19, 150, 4, 2, 32, 32), (1, 90, 300, 4, 2, 64, 64)], ids=str
)
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_sinks(graphs: Graphs, shape: tuple[int, ...], size: float, dtype: type) -> None:
    b, n, m, heads, *_ = shape
    sinks = np.random.default_rng(3).standard_normal(heads, np.float32) * np.float32(size)
    attend(graphs, *operands(*shape, dtype=dtype), cap=5.0, sinks=sinks)
    mask = hides(np.random.default_rng(4).random((b, 1, n, m)) < 0.3, dtype)
    mask[0, 0, 0] = -np.inf  # it sees only the sink
    got = attend(graphs, *operands(*shape, dtype=dtype), mask, sinks=sinks)
    assert not got[0, 0].any()
    one_row = hides(np.arange(m) % 3 == 0, dtype).reshape(1, 1, 1, m)
    attend(graphs, *operands(*shape, dtype=dtype), one_row, sinks=np.where(np.arange(heads) == 1, -np.inf, sinks))


@pytest.mark.parametrize("seen", [slice(0, 1), slice(1023, 1024), slice(300, 340), slice(0, 0), slice(None)], ids=str)
def test_key_ranges_that_no_query_sees(graphs: Graphs, seen: slice, dtype: type) -> None:
    visible = np.zeros((1, 1, 2, 1024), bool)
    visible[..., seen] = True
    attend(graphs, *operands(1, 2, 1024, 5, 1, 64, 64, dtype), hides(visible, dtype))
    attend(graphs, *operands(1, 2, 1024, 5, 1, 64, 64, dtype), hides(visible[:, :, :1], dtype))


def test_hidden_keys_are_not_even_read(graphs: Graphs) -> None:
    q, k, v = operands(3, 200, 200, 2, 2, 64, 64)
    lengths = np.array([200, 1, 130])
    mask = np.where(np.arange(200) < lengths[:, None], 0, -np.inf).astype(np.float32).reshape(3, 1, 1, 200)
    got = attend(graphs, q, k, v, mask)
    v[1, 1:] = np.nan
    assert np.isfinite(graphs.run(lambda b, *t: b.hotshoe_attention(*t, None, 0.1, 0.0), q, k, v, mask)).all()
    assert np.isfinite(got).all()


@pytest.mark.parametrize("heads", [1, 2, 7, 12])
def test_causal_and_sliding_masks(graphs: Graphs, heads: int, dtype: type) -> None:
    ahead = np.arange(300) - np.arange(300)[:, None]
    for visible in (ahead <= 0, (ahead <= 0) & (ahead > -20)):
        mask = hides(visible, dtype).reshape(1, 1, 300, 300)
        attend(graphs, *operands(2, 300, 300, heads, 1, 32, 32, dtype), mask)


@pytest.mark.parametrize("n", [1, 9, 80])
@pytest.mark.parametrize("heads", [2, 14])
def test_nan_and_infinity_stay_in_their_sequence(graphs: Graphs, n: int, heads: int, dtype: type) -> None:
    """Cells of several sequences are interleaved; values of one sequence, also old ones, must not reach another."""
    m = 470
    q, k, v = operands(1, n, m, heads, 2, 64, 64, dtype)
    owner = np.random.default_rng(2).integers(0, 5, m)
    owner[100:200] = 3
    mask = hides(owner == np.arange(n)[:, None] % 4, dtype).reshape(1, 1, n, m)  # sequence 4 has no query
    k[0, owner == 4], v[0, owner == 4] = np.nan, np.inf
    clean = [np.where(np.isfinite(x), x, 0).astype(np.float32) for x in (k, v)]
    got = graphs.run(lambda b, *t: b.hotshoe_attention(*t, None, 0.125, 0.0), q, k, v, mask)
    np.testing.assert_allclose(got, expected(q, *clean, mask, 0.125, 0.0), rtol=1e-5, atol=4e-6)


class Text(NamedTuple):
    """A text in a cache: where its cells are, and the numbers of its queries and keys, the newest ones."""

    cells: Array
    n: int
    window: int = 10**6

    def ranges(self, start: int) -> Array:
        """The kernel's ranges, if the list of cells begins at ``start``: (n, 3)."""
        stops = np.arange(len(self.cells) - self.n + 1, len(self.cells) + 1)
        return np.stack([np.full(self.n, 0), np.maximum(0, stops - self.window), stops], 1) + start


def attend_to_lists(
    graphs: Graphs, texts: list[Text], q: Array, k: Array | Blocks, v: Array | Blocks, **options: Any
) -> Array:
    """The results of these texts' queries, q (n, heads, dim), computed together: (n, heads, v_dim)."""
    starts = np.cumsum([0, *(len(t.cells) for t in texts)])
    ranges = np.concatenate([t.ranges(start) for t, start in zip(texts, starts)]).astype(np.int32)
    cells = np.concatenate([t.cells for t in texts]).astype(np.int32)
    by_head = options.pop("sinks", None), options.pop("slopes", None)
    options = {"scale": q.shape[-1] ** -0.5, "softcap": 0.0} | options

    def make(b: CpuBuilder, q: Any, k: Any, v: Any, cells: Any, ranges: Any, sinks: Any, slopes: Any) -> Any:
        return b.cached_attention(q, k, v, (cells, ranges), sinks, slopes, **options)

    return graphs.run(make, q, k, v, cells, ranges, *by_head)[0]


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, Graphs]]:
    """By their number of threads."""
    made = {n: Graphs(n) for n in (1, 2, 3)}
    yield made
    for graphs in made.values():
        graphs.lib.ggml_backend_free(graphs.backend)


@pytest.mark.parametrize("cached", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize(
    "heads", [(9, 3, 64, 64), (4, 1, 256, 256), (8, 8, 128, 128), (4, 2, 40, 24), (8, 1, 576, 512)]
)
@pytest.mark.parametrize("options", ["plain", "window", "sinks", "slopes"])
def test_a_text_has_the_same_bits_whatever_is_computed_with_it(
    pools: dict[int, Graphs], heads: tuple[int, ...], cached: str, options: str
) -> None:
    n_heads, kv_heads, dim, v_dim = heads
    if len(cache_types()) == 1 and cached != "f32":
        pytest.skip("this CPU has no instructions for half floats: ggml's attention is used")
    if cached == "q8_0" and (dim % 32 or v_dim % 32):
        pytest.skip("no whole blocks")
    rng = np.random.default_rng(7)
    m, n, seen = 3000, 90, 1200
    kv: list[Any] = [rng.standard_normal((1, m, kv_heads, d), np.float32) for d in (dim, v_dim)]
    if cached == "q8_0":
        kv = [Blocks(Type.Q8_0, 1, m, kv_heads, d, seed=i) for i, d in enumerate((dim, v_dim))]
    elif cached == "f16":
        kv = [x.astype(np.float16) for x in kv]
    window = 300 if options == "window" else 10**6
    extra = {
        "sinks": rng.standard_normal(n_heads, np.float32),
        "slopes": rng.uniform(0.1, 1, n_heads).astype(np.float32),
    }
    given = {options: extra[options]} if options in extra else {}
    q = rng.standard_normal((1, n, n_heads, dim), np.float32)
    cells = rng.permutation(m)[:seen]
    together = attend_to_lists(pools[1], [Text(cells, n, window)], q, *kv, **given)

    values = [x.values if isinstance(x, Blocks) else x for x in kv]
    here = np.arange(seen)
    stops = np.arange(seen - n, seen)[:, None]
    mask = np.where((here <= stops) & (here > stops - window), 0, -np.inf).astype(np.float32)[None, None]
    if options == "slopes":
        mask = mask + given["slopes"][:, None, None] * (here - stops)[None, None]
    wanted = expected(q, *(x[:, cells] for x in values), mask, dim**-0.5, 0.0, given.get("sinks"))
    np.testing.assert_allclose(together, wanted[0], rtol=1e-5, atol=4e-6)

    others = [Text(rng.permutation(m)[:size], rows) for size, rows in ((700, 1), (40, 40), (1, 1))]
    for n_threads, rows in ((2, 1), (3, 1), (1, 5), (2, 5), (3, 37), (2, n)):
        last = seen - n + rows  # the first rows of the text, with others
        more = rng.standard_normal((1, sum(t.n for t in others), n_heads, dim), np.float32)
        mixed = np.concatenate([more[:, :1], q[:, :rows], more[:, 1:]], 1)
        texts = [others[0], Text(cells[:last], rows, window), *others[1:]]
        got = attend_to_lists(pools[n_threads], texts, mixed, *kv, **given)
        assert np.array_equal(got[1 : 1 + rows], together[:rows]), (n_threads, rows)
        alone = attend_to_lists(pools[n_threads], [Text(cells[:last], rows, window)], q[:, :rows], *kv, **given)
        assert np.array_equal(alone, together[:rows]), (n_threads, rows)
    if cached == "q8_0":
        return
    elsewhere, shuffled = [np.full_like(x, np.nan) for x in kv], rng.permutation(m)[:seen]
    for x, old in zip(elsewhere, kv):
        x[:, shuffled] = old[:, cells]
    got = attend_to_lists(pools[2], [Text(shuffled, n, window)], q, *elsewhere, **given)
    assert np.array_equal(got, together)


def test_a_query_that_sees_nothing_is_nan_and_large_scores_are_not(graphs: Graphs) -> None:
    q, k, v = operands(2, 5, 9, 2, 2, 32, 32)
    mask = np.zeros((2, 1, 1, 9), np.float32)
    mask[1] = -np.inf
    got = attend(graphs, q * 1000, k, v, mask)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


def test_attention_returns_none_for_operands_that_it_cannot_read() -> None:
    base, q = {"type": 0, "nb": [4]}, [32, 4, 5, 1]
    tensor = lambda ne, **kw: SimpleNamespace(**{**base, "ne": ne, **kw})  # noqa: E731
    good = [tensor(q), tensor([32, 4, 9, 1]), tensor([32, 4, 9, 1])]
    for wrong in (tensor([32, 4, 9, 1], type=2), tensor([32, 4, 9, 1], nb=[8]), tensor([577, 4, 9, 1])):
        assert cpu_builder(ffi.NULL).hotshoe_attention(*good[:2], wrong, None, None, 1.0, 0.0) is None
    assert cpu_builder(ffi.NULL).hotshoe_attention(tensor(q, type=1, nb=[2]), *good[1:], None, None, 1.0, 0.0) is None
    assert cpu_builder(ffi.NULL).hotshoe_attention(*good, tensor([1, 5, 1, 1]), None, 1.0, 0.0) is None


@pytest.mark.parametrize("n", [384, 1, 13, 100])
@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=2)), ids=str)
def test_layer_norm(graphs: Graphs, n: int, given: tuple[bool, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 5, n), dtype=np.float32) + 3
    w, b = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    weight, bias = (a if g else None for a, g in zip((w, b), given))
    got = graphs.run(lambda builder, x, w, b: builder.layer_norm(x, w, b, 1e-6), x, weight, bias, shift=2)
    s = x.astype(float)
    y = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-6)
    y = y * (1 if weight is None else weight) + (0 if bias is None else bias)
    np.testing.assert_allclose(got[0], y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [384, 13])
def test_rms_norm(graphs: Graphs, n: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((7, 5, n), dtype=np.float32), rng.standard_normal(n, dtype=np.float32)
    got = graphs.run(lambda builder, x, w: builder.rms_norm(x, w, 1e-6), x, w)
    y = x / np.sqrt(np.square(x.astype(float)).mean(-1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(got[0], y, rtol=1e-5, atol=1e-6)
