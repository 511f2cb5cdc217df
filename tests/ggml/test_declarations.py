"""The cffi listing agrees with ggml's headers: a C compiler checks every constant, layout and signature."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")
cffi = pytest.importorskip("cffi", reason="the listing is read by cffi")

from hotshoe_ggml import native  # noqa: E402
from hotshoe_ggml._gen_ffi import ffi  # noqa: E402

TOOLS = Path(__file__).parents[2] / "plugins" / "ggml-cpu" / "tools"
HEADERS = native.PACKAGE_DIR / "include"
# Each backend library exports these; ggml's headers declare them by a macro, inside a backend only.
NOT_IN_HEADERS = {"ggml_backend_init": "ggml_backend_init_t", "ggml_backend_score": "ggml_backend_score_t"}

SIZE_ONLY = {"struct ggml_backend_reg.iface"}  # a vtable that the listing declares as plain addresses

FUNCTION = re.compile(r"^(?P<result>[\w ]+?[ *]+)(?P<name>ggml_\w+)\((?P<args>.*)\);$")
ENUM = re.compile(r"^enum (?P<name>\w+) \{ (?P<members>.*) \};$")
CONSTANT = re.compile(r"^#define (?P<name>\w+) (?P<value>-?\d+)$")


def listing() -> list[str]:
    text = (TOOLS / "ggml_cdef.h").read_text(encoding="utf-8")
    return [line for line in re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).splitlines() if line]


def layouts() -> dict[str, str]:
    """The body, between braces, of each C type whose fields the listing declares."""
    text = "\n".join(listing())
    tagged = re.findall(r"^struct (\w+) \{ (.*) \};$", text, re.MULTILINE)
    aliased = re.findall(r"^typedef struct \{ (.*) \} (\w+);$", text, re.MULTILINE)
    return {f"struct {name}": body for name, body in tagged} | {name: body for body, name in aliased}


def field_names(body: str) -> list[str]:
    """`int64_t ne[4]; size_t (*get)(reg_t reg);` gives ["ne", "get"]. From the text: cffi 2.1.1 aborts on `.fields`."""
    fields = [field.strip() for field in body.split(";") if field.strip()]
    return [(re.search(r"\(\*(\w+)\)", field) or re.search(r"(\w+)(\[\d+\])*$", field))[1] for field in fields]  # type: ignore[index]


def checks() -> list[str]:
    """One C line for each fact to check."""
    lines = []
    for line in listing():
        if match := CONSTANT.match(line):
            lines.append(f'_Static_assert({match["name"]} == {match["value"]}, "{match["name"]}");')
        elif match := ENUM.match(line):
            for member in match["members"].split(", "):
                name, value = member.split(" = ")
                lines.append(f'_Static_assert({name} == {value}, "{name}");')
        elif match := FUNCTION.match(line):
            name = match["name"]
            signature = f"{match['result']} (*)({match['args']})"
            seen = f"*({NOT_IN_HEADERS[name]}) 0" if name in NOT_IN_HEADERS else name
            lines.append(f'_Static_assert(__builtin_types_compatible_p(__typeof__(&{seen}), {signature}), "{name}");')
    for index, (ctype, body) in enumerate(layouts().items()):
        ours = f"struct ours_{index}"  # the listing's fields, compiled together with ggml's
        lines.append(f"{ours} {{ {body} }};")
        lines.append(f'_Static_assert(sizeof({ctype}) == {ffi.sizeof(ctype)}, "sizeof {ctype}");')
        lines.append(f'_Static_assert(sizeof({ctype}) == sizeof({ours}), "sizeof {ctype}");')
        for field in field_names(body):
            offset, name = ffi.offsetof(ctype, field), f"{ctype}.{field}"
            kinds = ", ".join(f"__typeof__((({struct} *) 0)->{field})" for struct in (ctype, ours))
            lines.append(f'_Static_assert(offsetof({ctype}, {field}) == {offset}, "{name}");')
            same = f"sizeof({kinds.split(', ')[0]}) == sizeof({kinds.split(', ')[1]})"
            if name not in SIZE_ONLY:
                same = f"__builtin_types_compatible_p({kinds})"
            lines.append(f'_Static_assert({same}, "{name}");')
    return lines


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("no C compiler on PATH")
    if not (HEADERS / "ggml.h").is_file():
        pytest.skip(f"no headers in {HEADERS}")
    return found


def compile_checks(compiler: str, folder: Path, lines: list[str]) -> str:
    source = folder / "checks.c"
    includes = ("stddef.h", "ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "ggml-backend-impl.h")
    source.write_text("".join(f'#include "{name}"\n' for name in includes) + "\n".join(lines) + "\n")
    flags = ["-std=gnu11", "-fsyntax-only", "-Wno-deprecated-declarations", f"-I{HEADERS}"]
    return subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True).stderr


def test_the_listing_agrees_with_the_headers(compiler: str, tmp_path: Path) -> None:
    lines = checks()
    # a listing that is not parsed would check nothing
    assert sum("types_compatible" in line for line in lines) > 300
    assert sum("offsetof" in line for line in lines) > 50
    assert compile_checks(compiler, tmp_path, lines) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        '_Static_assert(__builtin_types_compatible_p(__typeof__(&ggml_nbytes), int (*)(int)), "x");',
        '_Static_assert(GGML_OP_MUL_MAT == 3, "x");',
        '_Static_assert(sizeof(struct ggml_tensor) == 8, "x");',
    ],
)
def test_the_check_can_fail(compiler: str, tmp_path: Path, wrong: str) -> None:
    assert "error" in compile_checks(compiler, tmp_path, [wrong])


def test_every_line_of_the_listing_is_checked_or_a_type() -> None:
    rest = [line for line in listing() if not (CONSTANT.match(line) or ENUM.match(line) or FUNCTION.match(line))]
    assert [line for line in rest if not re.match(r"(typedef|struct \w+ \{)", line)] == []


def test_every_listed_function_is_exported() -> None:
    libraries = [native.lib(), native.load_cpu().handle]
    missing = []
    for line in listing():
        if match := FUNCTION.match(line):
            for library in libraries:
                try:
                    ffi.addressof(library, match["name"])
                    break
                except ffi.error:
                    continue
            else:
                missing.append(match["name"])
    assert missing == []


def test_the_generated_module_is_up_to_date(tmp_path: Path) -> None:
    fresh = cffi.FFI()
    fresh.cdef((TOOLS / "ggml_cdef.h").read_text(encoding="utf-8"))
    fresh.cdef(runpy.run_path(str(TOOLS / "gen_ffi.py"))["kernel_declarations"]())
    fresh.set_source("hotshoe_ggml._gen_ffi", None)
    fresh.emit_python_code(str(tmp_path / "fresh.py"))
    committed = TOOLS.parent / "src" / "hotshoe_ggml" / "_gen_ffi.py"
    assert committed.read_text() == (tmp_path / "fresh.py").read_text(), "run plugins/ggml-cpu/tools/gen_ffi.py"
