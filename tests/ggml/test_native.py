"""Opening ggml: variants, devices, a product on two threads, logging, and errors."""

from __future__ import annotations

import logging
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core import ops
from hotshoe_ggml import abi, native
from hotshoe_ggml.native import NativeLibraryError, ffi
from hotshoe_ggml.native.log import follow_level
from hotshoe_loader import load_all

KERNELS = Path(__file__).parents[2] / "plugins/ggml-cpu/native"


class Engine:
    """A minimal engine: one CPU backend with a pool of two threads, and ggml's scheduler."""

    def __init__(self) -> None:
        self.lib = native.lib()
        self.cpu = native.load_cpu()
        self.device = self.cpu.devices()[0].pointer
        self.backend = self.lib.ggml_backend_dev_init(self.device, ffi.NULL)
        set_threads = self.cpu.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
        assert set_threads is not None
        set_threads(self.backend, 2)
        params = ffi.new("struct ggml_threadpool_params *")
        self.lib.ggml_threadpool_params_init(params, 2)
        self.pool = self.cpu.handle.ggml_threadpool_new(params)
        self.cpu.handle.ggml_backend_cpu_set_threadpool(self.backend, self.pool)
        self.frees: list[Any] = []

    def context(self) -> Any:
        size = self.lib.ggml_tensor_overhead() * 64 + self.lib.ggml_graph_overhead_custom(256, False)
        context = self.lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL, "no_alloc": True})
        self.frees.append(lambda: self.lib.ggml_free(context))
        return context

    def scheduler(self, context: Any, *outputs: Any) -> tuple[Any, Any]:
        graph = self.lib.ggml_new_graph_custom(context, 256, False)
        for output in outputs:
            self.lib.ggml_set_output(output)
            self.lib.ggml_build_forward_expand(graph, output)
        scheduler = self.lib.ggml_backend_sched_new([self.backend], ffi.NULL, 1, 256, False, True)
        self.frees.append(lambda: self.lib.ggml_backend_sched_free(scheduler))
        assert self.lib.ggml_backend_sched_alloc_graph(scheduler, graph)
        return scheduler, graph

    def run(self, scheduler: Any, graph: Any) -> None:
        assert self.lib.ggml_backend_sched_graph_compute(scheduler, graph) == self.lib.GGML_STATUS_SUCCESS

    def write(self, tensor: Any, array: np.ndarray) -> None:
        self.lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(array), 0, array.nbytes)

    def read(self, tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = np.empty(shape, np.float32)
        self.lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(array), 0, array.nbytes)
        return array

    def close(self) -> None:
        for free in reversed(self.frees):
            free()
        self.lib.ggml_backend_free(self.backend)
        self.cpu.handle.ggml_threadpool_free(self.pool)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)


def test_metadata_agrees_with_the_library() -> None:
    info = native.build_info()
    assert ffi.string(native.lib().ggml_version()).decode() == info.ggml_version
    assert info.abi_fingerprint == abi.fingerprint([native.PACKAGE_DIR / "include"], info.ggml_version)
    assert info.backend_api_version == native.lib().GGML_BACKEND_API_VERSION


def test_one_base_under_one_name_and_its_licence() -> None:
    assert len([path for path in native.LIBRARY_DIR.iterdir() if "ggml-base" in path.name]) == 1
    assert "ggml authors" in (native.PACKAGE_DIR / "licenses" / "LICENSE.ggml").read_text()


def test_variants_are_scored_and_the_best_is_opened() -> None:
    scores = {variant.name: native.score(variant.path) for variant in native.variants()}
    best = native.best_variant()
    assert scores[best.name] == max(scores.values()) > 0
    library = native.load_cpu()
    assert library is native.load_cpu(best.name)
    (device,) = library.devices()
    assert (device.name, device.type) == ("CPU", 0)
    assert device.description
    assert 0 < device.memory_free <= device.memory_total
    assert library.function("no_such_function", "void(*)(void)") is None


def test_mul_mat_on_two_threads(engine: Engine) -> None:
    lib, rng = engine.lib, np.random.default_rng(0)
    w, x = (rng.standard_normal(shape, dtype=np.float32) for shape in ((96, 64), (40, 64)))
    leaves, context = engine.context(), engine.context()
    a, b = lib.ggml_new_tensor_2d(leaves, lib.GGML_TYPE_F32, 64, 96), lib.ggml_new_tensor_2d(leaves, 0, 64, 40)
    buffer = lib.ggml_backend_alloc_ctx_tensors(leaves, engine.backend)
    engine.write(a, w)
    engine.write(b, x)
    product = lib.ggml_mul_mat(context, a, b)
    scheduler, graph = engine.scheduler(context, product)
    for _ in range(3):
        engine.run(scheduler, graph)
        np.testing.assert_allclose(engine.read(product, (40, 96)), x @ w.T, rtol=1e-4, atol=1e-4)
    engine.frees.append(lambda: lib.ggml_backend_buffer_free(buffer))


@pytest.mark.parametrize("as_output", [False, True])
def test_an_input_keeps_its_data_between_replays_only_as_output(engine: Engine, as_output: bool) -> None:
    # documents ggml: `set_input` allocates a tensor first, and its memory is reused after its last reader
    lib, context = engine.lib, engine.context()
    a = lib.ggml_new_tensor_2d(context, lib.GGML_TYPE_F32, 64, 4)
    lib.ggml_set_input(a)
    if as_output:
        lib.ggml_set_output(a)
    y = lib.ggml_scale(context, a, 2.0)
    for _ in range(4):
        y = lib.ggml_scale(context, lib.ggml_add(context, y, y), 0.5)
    scheduler, graph = engine.scheduler(context, y)
    data = np.random.default_rng(0).random((4, 64), dtype=np.float32)
    engine.write(a, data)
    engine.run(scheduler, graph)
    np.testing.assert_allclose(engine.read(y, data.shape), data * 2, rtol=1e-5)
    assert np.array_equal(engine.read(a, data.shape), data) is as_output


def activated(engine: Engine, kind: str, *operands: np.ndarray) -> np.ndarray:
    """Our activation of one operand, or of a gate and what it multiplies."""
    lib, leaves, context = engine.lib, engine.context(), engine.context()
    shape = operands[0].shape
    xs = [lib.ggml_new_tensor_2d(leaves, lib.GGML_TYPE_F32, shape[1], shape[0]) for _ in operands]
    buffer = lib.ggml_backend_alloc_ctx_tensors(leaves, engine.backend)
    for x, values in zip(xs, operands):
        engine.write(x, np.ascontiguousarray(values, np.float32))
    params = ffi.new("int32_t *", getattr(native.kernels(), f"HOTSHOE_{kind}"))
    function = ffi.addressof(native.kernels(), "hotshoe_activation")
    ne, sources = (shape[1], shape[0], 1, 1), ffi.new("struct ggml_tensor *[]", xs)
    y = lib.ggml_custom_4d(context, lib.GGML_TYPE_F32, *ne, sources, len(xs), function, lib.GGML_N_TASKS_MAX, params)
    engine.run(*engine.scheduler(context, y))
    engine.frees.append(lambda: lib.ggml_backend_buffer_free(buffer))
    return engine.read(y, shape)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


ACTIVATIONS = {
    "GELU_ERF": lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2)),
    "GELU_TANH": lambda v: v * sigmoid(2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)),
    "GELU_QUICK": lambda v: v * sigmoid(1.702 * v),
    "SOFTPLUS": lambda v: max(v, 0) + math.log1p(math.exp(-abs(v))),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(37, 100), (1, 1000), (3, 5)])
def test_activations(engine: Engine, kind: str, shape: tuple[int, int]) -> None:
    values = np.linspace(-14, 14, math.prod(shape), dtype=np.float32).reshape(shape)
    exact = np.vectorize(ACTIVATIONS[kind])(values.astype(float))
    for got, want in (
        (activated(engine, kind, values), exact),
        *([(activated(engine, kind, values, values[::-1]), exact * values[::-1])] if kind != "SOFTPLUS" else []),
    ):
        error = np.abs(got.astype(float) - want)
        assert np.minimum(error, error / np.maximum(np.abs(want), 1e-300)).max() < 1e-6


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_of_values_that_are_not_finite(engine: Engine, kind: str) -> None:
    got = activated(engine, kind, np.array([[np.nan, np.inf, 1e4, -1e4, 0]], np.float32))[0]
    want = [np.nan, np.inf, 1e4, 0, math.log(2) if kind == "SOFTPLUS" else 0]
    np.testing.assert_allclose(got, np.array(want, np.float32), rtol=1e-6, atol=1e-30)
    assert abs(activated(engine, kind, np.array([[-np.inf]], np.float32))[0, 0]) < 1e-30


def test_an_interrupt_while_a_message_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    """A callback of C cannot raise it. The call that logged the message does."""

    class Interrupted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyboardInterrupt

    callback, user_data = ffi.new("ggml_log_callback *"), ffi.new("void **")
    native.lib().ggml_log_get(callback, user_data)
    logger, handler = logging.getLogger("hotshoe.ggml"), Interrupted()
    logger.addHandler(handler)
    try:
        with load_all().open("cpu") as backend:
            callback[0](4, ffi.new("char[]", b"something\n"), user_data[0])
            with pytest.raises(KeyboardInterrupt):
                backend.new_context().forward(ops.arange(3) + 1).compute()
            backend.new_context().forward(ops.arange(3) + 1).compute()
            callback[0](4, ffi.new("char[]", b"something\n"), user_data[0])
            with pytest.raises(KeyboardInterrupt):
                backend.load([])
        callback[0](4, ffi.new("char[]", b"something\n"), user_data[0])
        with pytest.raises(KeyboardInterrupt):
            load_all().open("cpu")
    finally:
        logger.removeHandler(handler)
    assert capfd.readouterr().err == ""


def test_messages_go_to_logging_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    callback, user_data = ffi.new("ggml_log_callback *"), ffi.new("void **")
    native.lib().ggml_log_get(callback, user_data)
    with caplog.at_level(logging.DEBUG, logger="hotshoe.ggml"):
        follow_level()
        for level, text in ((3, b"half a "), (5, b"line\n"), (4, b"bad \xff\n")):
            callback[0](level, ffi.new("char[]", text), user_data[0])
        worker = threading.Thread(target=callback[0], args=(2, ffi.new("char[]", b"elsewhere\n"), user_data[0]))
        worker.start()
        worker.join()
    follow_level()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "half a line"),
        ("ERROR", "bad \ufffd"),
        ("INFO", "elsewhere"),
    ]


def test_messages_below_the_level_do_not_reach_python(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[int] = []
    monkeypatch.setattr(native.log, "_emit", lambda level, text: reached.append(level))
    callback, user_data = ffi.new("ggml_log_callback *"), ffi.new("void **")
    native.lib().ggml_log_get(callback, user_data)
    lines = [(1, b"reused\n"), (5, b" graph\n"), (2, b"a device\n"), (3, b"half a "), (5, b"line\n"), (4, b"bad\n")]
    for level, least in ((logging.DEBUG, 1), (logging.INFO, 2), (logging.WARNING, 3), (logging.CRITICAL, 4)):
        with caplog.at_level(level, logger="hotshoe.ggml"):
            with load_all().open("cpu") as backend, backend.new_context() as ctx:
                ctx.forward(ops.arange(3) + 1).compute()  # a run takes over the level
            del reached[:]
            for given, text in lines:
                callback[0](given, ffi.new("char[]", text), user_data[0])
        assert reached == [given for given, _ in lines[{1: 0, 2: 2, 3: 3, 4: 5}[least] :]]
    follow_level()


def test_nothing_is_printed_and_exit_is_clean_with_a_pool_alive() -> None:
    code = (
        "from hotshoe_ggml import native as n\n"
        "p = n.ffi.new('struct ggml_threadpool_params *'); n.lib().ggml_threadpool_params_init(p, 2)\n"
        "pool = n.load_cpu().handle.ggml_threadpool_new(p)\n"
    )
    result = run_python(code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_unknown_variant_and_a_library_that_is_not_a_backend(tmp_path: Path) -> None:
    with pytest.raises(NativeLibraryError, match="'pentium' is not installed; installed: "):
        native.load_cpu("pentium")
    with pytest.raises(NativeLibraryError, match="is missing"):
        native.load_backend(tmp_path / "libggml-none.so")
    kernels = next(path for path in native.LIBRARY_DIR.iterdir() if "hotshoe_kernels" in path.name)
    with pytest.raises(NativeLibraryError, match="does not export ggml_backend_init or ggml_backend_"):
        native.load_backend(kernels)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a copied library is opened by its Linux name")
def test_another_ggml_in_the_process_is_refused_by_its_path(tmp_path: Path) -> None:
    copy = tmp_path / "libggml-base.so.0"
    shutil.copy(native.LIBRARY_DIR / copy.name, copy)
    code = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1])\n"
        "from hotshoe_ggml import native\n"
        "try: native.lib()\n"
        "except native.NativeLibraryError as error: print(error)\n"
    )
    result = run_python(code, str(copy))
    assert result.returncode == 0
    assert str(copy) in result.stdout
    assert "in another process" in result.stdout


def test_fingerprint_ignores_comments_and_white_space_only(tmp_path: Path) -> None:
    for name in abi.HEADERS:
        (tmp_path / name).write_text('int f(int a); /* old */\n#define S "// kept"\n')
    first = abi.fingerprint([tmp_path], "1.0")
    (tmp_path / "ggml.h").write_text('int  f(int a);\n// new\n#define S "// kept"\n')
    assert abi.fingerprint([tmp_path], "1.0") == first
    assert abi.fingerprint([tmp_path], "1.1") != first
    (tmp_path / "ggml.h").write_text('int f(long a);\n#define S "// kept"\n')
    assert abi.fingerprint([tmp_path], "1.0") != first
    with pytest.raises(FileNotFoundError, match=r"ggml\.h not found"):
        abi.fingerprint([tmp_path / "nowhere"], "1.0")


@pytest.mark.parametrize("source", sorted(KERNELS.glob("*.c")), ids=lambda path: path.stem)
def test_clang_compiles_the_kernels(source: Path) -> None:
    """macOS has clang; some versions lack options for CPU features that GCC has."""
    compiler = shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no clang")
    include = native.PACKAGE_DIR / "include"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-isystem", str(include)]  # as kernels.cmake
    done = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
