"""Make `src/hotshoe_ggml/_gen_ffi.py` from `tools/ggml_cdef.h` (cffi, out-of-line ABI mode: 3 ms to import).

    python tools/gen_ffi.py                      # after editing the listing
    python tools/gen_ffi.py --headers DIR...     # for a new ggml: list the declarations again, then generate

With --headers, DIR are the folders with ggml.h and ggml-backend-impl.h (the installed `hotshoe_ggml/include` has both).
This needs cffi, pycparser and a C preprocessor. `tests/ggml/test_declarations.py` checks the result.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LISTING = HERE / "ggml_cdef.h"
KERNELS = (  # the headers in native/ that declare our own functions
    *("hotshoe_kernels.h", "hotshoe_activations.h", "hotshoe_linear.h", "hotshoe_attention.h", "hotshoe_ops.h"),
    *("hotshoe_quants.h", "hotshoe_packing.h", "hotshoe_recurrent.h", "hotshoe_schedule.h"),
)
MODULE = HERE.parent / "src" / "hotshoe_ggml" / "_gen_ffi.py"

HEADERS = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "ggml-backend-impl.h")

# Functions that hotshoe does not use: training, printing to stdout, C varargs and FILE*, scalar accessors, and
# functions of ggml's own registry library, which hotshoe does not load. No library defines threadpool_get_n_threads.
SKIP = re.compile(
    r"""_back(ward)?(_\w+)?$ | print | opt_step | cross_entropy | dump_dot | ggml_fopen | ggml_abort$ | format_name
    | ggml_(set|get)_[if]32 | ggml_new_[if]32$ | ggml_set_(param|loss|zero)$ | graph_get_grad
    | ggml_cpu_has | ggml_cpu_get
    | ggml_backend_(register|device_register|reg_count|reg_get|reg_by_name|load|unload|load_all|load_all_from_path)$
    | ggml_backend_dev_(count|get|by_name|by_type)$ | ggml_backend_init_(by_name|by_type|best)$
    | meta | comm_ | split_buffer_type_t | graph_copy | compare_graph | ggml_ftype | ggml_graph_(reset|dup)
    | ggml_type_sizef | ggml_numa | ggml_is_numa | ggml_backend_buffer_init$ | threadpool_get_n_threads
    | multi_buffer | buffer_copy_tensor
    """,
    re.VERBOSE,
)
# Structs whose fields we read or write; all others stay opaque.
LAYOUTS = {
    *("ggml_init_params", "ggml_tensor", "ggml_type_traits", "ggml_type_traits_cpu", "ggml_threadpool_params"),
    *("ggml_tallocr", "ggml_cplan", "ggml_backend_dev_caps", "ggml_backend_dev_props", "ggml_backend_feature"),
}
# We declare its vtable as four addresses. Its functions take the struct that has the vtable, and cffi 2.1.1 aborts on
# such a circle ("realize_c_type_or_func_lock_held: Assertion").
REG = "struct ggml_backend_reg { int api_version; void *iface[4]; void *context; };\n"
CONSTANTS = re.compile(r"GGML_(MAX_|ROPE_TYPE_|MROPE_SECTIONS|DEFAULT_GRAPH_SIZE|N_TASKS_MAX|BACKEND_API_VERSION)")

INTRO = """\
/* hotshoe's listing of the declarations of ggml that it calls. Written by gen_ffi.py --headers;
 * no ggml source. One declaration a line: the test of the declarations reads it line by line. */
"""
# A backend library's two exports: ggml declares them by a macro, inside the backends only.
EXPORTS = "ggml_backend_reg_t ggml_backend_init(void);\nint ggml_backend_score(void);\n"
PRELUDE = """\
typedef unsigned char uint8_t; typedef signed char int8_t; typedef unsigned short uint16_t; typedef short int16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long int64_t; typedef unsigned long uint64_t;
typedef unsigned long size_t; typedef struct FILE FILE;
"""


def preprocess(folders: list[Path], *flags: str) -> str:
    """Return the headers, preprocessed with empty system headers."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("stdbool.h", "stddef.h", "stdint.h", "stdio.h"):
            (Path(scratch) / name).write_text("")
        source = "".join(f'#include "{name}"\n' for name in HEADERS)
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit("gen_ffi.py --headers needs a C compiler on PATH: found none of cc, gcc, clang")
        command = [compiler, "-E", "-P", "-nostdinc", "-D__attribute__(x)=", "-D__restrict=", "-D__extension__="]
        command += [*flags, *(f"-I{folder}" for folder in [scratch, *folders]), "-x", "c", "-"]
        result = subprocess.run(command, input=source, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    return result.stdout


def list_declarations(folders: list[Path]) -> str:
    """Return the text of the listing for the headers in `folders`."""
    from pycparser import c_ast, c_generator, c_parser  # type: ignore[import-untyped]

    lines: list[str] = []
    macros = preprocess(folders, "-dM")
    for name, value in sorted(re.findall(r"^#define (GGML_\w+)\s+\(?(-?\d+)\)?\s*$", macros, re.MULTILINE)):
        if CONSTANTS.match(name):
            lines.append(f"#define {name} {value}")

    text = preprocess(folders)
    text = re.sub(r"\bbool\b", "_Bool", re.sub(r"static const size_t GGML_TENSOR_SIZE[^;]*;", "", text))
    generator = c_generator.CGenerator()
    enums: dict[str, int] = {}
    seen: set[str] = set()

    def value_of(node: c_ast.Node) -> int:
        expression = generator.visit(node).replace("sizeof(int32_t)", "4")
        return int(eval(expression.replace("/", "//"), {"__builtins__": {}}, dict(enums)))

    class Constants(c_ast.NodeVisitor):  # type: ignore[misc]
        """Replace array lengths by numbers: cffi does not compute `64 / sizeof(int32_t)`."""

        def visit_ArrayDecl(self, node: c_ast.ArrayDecl) -> None:
            if node.dim is not None:
                node.dim = c_ast.Constant("int", str(value_of(node.dim)))
            self.generic_visit(node)

    def emit(line: str, key: str) -> None:
        if key not in seen:
            seen.add(key)
            lines.append(re.sub(r"\s+", " ", line).strip().replace("_Bool", "bool") + ";")

    for declaration in c_parser.CParser().parse(PRELUDE + text).ext:
        kind = declaration.type
        if isinstance(declaration, c_ast.Typedef):
            name = declaration.name
            if not name.startswith("ggml_") or SKIP.search(name):
                continue
            Constants().visit(declaration)
            emit(generator.visit(declaration), f"typedef {name}")
        elif isinstance(kind, c_ast.Enum) and kind.values is not None:
            members, following = [], 0
            for enumerator in kind.values.enumerators:
                number = value_of(enumerator.value) if enumerator.value is not None else following
                enums[enumerator.name], following = number, number + 1
                members.append(f"{enumerator.name} = {number}")
            if not SKIP.search(kind.name):
                emit(f"enum {kind.name} {{ {', '.join(members)} }}", f"enum {kind.name}")
        elif isinstance(kind, c_ast.Struct):
            if kind.decls is not None and kind.name in LAYOUTS:
                Constants().visit(kind)
                emit(generator.visit(kind), f"struct {kind.name}")
        elif isinstance(kind, c_ast.FuncDecl) and not SKIP.search(declaration.name):
            declaration.storage, declaration.funcspec = [], []
            emit(generator.visit(declaration), declaration.name)
    return INTRO + "\n".join(lines) + "\n" + REG + EXPORTS


def kernel_declarations() -> str:
    """Return the declarations of our own kernels as cffi reads them: without comments and macros."""
    text = "".join((HERE.parent / "native" / name).read_text(encoding="utf-8") for name in KERNELS)
    return re.sub(r"(?s:/\*.*?\*/)|^#.*$", "", text, flags=re.MULTILINE).replace("HOTSHOE_API", "")


def generate() -> None:
    """Write the cffi module."""
    from cffi import FFI  # type: ignore[import-untyped]

    ffi = FFI()
    ffi.cdef(LISTING.read_text(encoding="utf-8"))
    ffi.cdef(kernel_declarations())
    ffi.set_source("hotshoe_ggml._gen_ffi", None)
    ffi.emit_python_code(str(MODULE))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headers", nargs="+", type=Path, help="list the declarations again from these folders")
    args = parser.parse_args()
    if args.headers:
        LISTING.write_text(list_declarations(args.headers), encoding="utf-8")
    generate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
