"""``hotshoe new-plugin NAME``: write a package that installs and passes its tests, for its author to complete.

The folder ``templates`` has a folder for each kind of package. Its files become those of the package, with other names
in them. Their suffix ".in" keeps tools from taking them for modules of hotshoe.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show
from hotshoe_core.contract.device import name_problem
from hotshoe_core.errors import OptionError
from hotshoe_core.errors.text import shown
from hotshoe_loader.options import normalise

__all__ = ["Names", "add_parser", "names_for", "run", "write_plugin"]

_KINDS = {
    "backend": "a compute backend over an array library",
    "family": "a family of models and its converter",
    "encoder": "a family of embedding models and its converter",
    "libraries": "native libraries for the ggml engine",
}
_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".in"
_OURS = frozenset({"hotshoe", "hotshoe-core", "hotshoe-loader", "hotshoe-ggml", "hotshoe-ggml-rpc", "ggml-rpc", "rpc"})
_TEMPLATE_NAMES = frozenset(
    {"tests", "oracle", "checkpoint", "stamp", "hatch_build"}
)  # modules and folders in templates
_ANOTHER_NAME = "take another name, such as acme-npu"
_PEP508 = re.compile(r"[A-Z0-9]([A-Z0-9._-]*[A-Z0-9])?", re.ASCII | re.IGNORECASE)


_FAMILIES = ("family", "encoder")
_ARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# in templates. Until its author names a class, the test of an encoder compares with EuroBERT
_CLASSES = {"family": ("MyFamilyForCausalLM",), "encoder": ("MyEncoderModel", "EuroBertModel")}
_TEST = 'test = ["pytest"]'


class Names(NamedTuple):
    """The names made of a plugin's name."""

    name: str
    """Name of the entry point, the provider and the device; of a family, its architecture."""

    distribution: str
    """Name of the package to install, and of its folder."""

    module: str
    """Name of the package to import."""

    prefix: str
    """How the names of its classes begin."""

    arch: str = ""
    """``general.architecture`` of the files of a family."""


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``new-plugin``."""
    parser = commands.add_parser(
        "new-plugin",
        usage="%(prog)s NAME --backend|--family|--encoder|--libraries …",
        help="write a package for a backend, a model family or libraries",
        description="Write a package that can be installed, is found by hotshoe and passes its own tests, with marks "
        "where your code goes.",
    )
    parser.add_argument("name", metavar="NAME", help="name of its device or architecture: acme-npu")
    kinds = parser.add_mutually_exclusive_group(required=True)
    for kind, what in _KINDS.items():
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=what)
    parser.add_argument("--arch", metavar="A", help="general.architecture of a family's files; default: NAME")
    parser.add_argument(
        "--transformers", metavar="CLASS", help="test the family against this class, such as OlmoForCausalLM"
    )
    parser.add_argument("--package", metavar="P", help="name of the package to install; default: hotshoe-NAME")
    parser.add_argument("--output", metavar="DIR", type=Path, help="the folder to make; default: the package's name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the package, and print where it is and what to do next. Raises as ``write_plugin`` does."""
    names = names_for(args.name, args.kind, args.package, args.arch)
    target: Path = args.output or Path(names.distribution)
    written = write_plugin(names, args.kind, target, args.transformers)
    readme = target / "README.md"
    show([f"{target}: {len(written)} files, {_KINDS[args.kind]}, as the package {names.distribution}"])
    show([f"Python imports {names.module}, hotshoe calls it {names.name}", "", "The first hour:", ""])
    show([f"    cd {shlex.quote(str(target))}", *_first_block(readme), "", f"{readme} says what to write."])
    return 0


def names_for(name: str, kind: str, package: str | None = None, arch: str | None = None) -> Names:
    """The names of a new plugin called ``name``, in a distribution ``package`` (None: hotshoe-NAME).

    arch: the architecture of a family, if it is not ``name``.

    Raises OptionError for a name that is invalid or taken.
    """
    plugin = _normalised(name)
    distribution = f"hotshoe-{plugin}" if package is None else _normalised(package)
    prefix = "".join(part.capitalize() for part in plugin.split("-"))
    if arch is not None and kind not in _FAMILIES:
        raise OptionError(f"--arch {shown(arch)} is given for a plugin of the kind {kind!r}; it is for families only")
    if arch is not None and not _ARCH.fullmatch(arch):
        raise OptionError(f"--arch is {shown(arch)}; expected letters, digits, '-', '_' and '.', as in GGUF files")
    names = Names(plugin, distribution, distribution.replace("-", "_"), prefix, arch or _default_arch(plugin, kind))
    problem = name_problem(plugin)
    if problem is not None:
        raise _refused(name, problem)
    for what, python in ((package or name, names.module), (name, prefix)):
        if not python.isidentifier() or keyword.iskeyword(python):
            raise _refused(what, f"its code would use the name {python!r}, which is not a name in Python")
    _refuse_taken(names, kind)
    if plugin.startswith("hotshoe-") and package is None:
        raise _refused(name, "its package would be called hotshoe-hotshoe-…", f"name it {plugin[len('hotshoe-') :]}")
    return names


def _default_arch(plugin: str, kind: str) -> str:
    return plugin if kind in _FAMILIES else ""


def _normalised(name: str) -> str:
    if not _PEP508.fullmatch(name):
        raise _refused(name, "a package's name is ASCII letters and digits, and between them '-', '_' or '.' (PEP 508)")
    return normalise(name)


def _refuse_taken(names: Names, kind: str) -> None:
    """Raise OptionError if a name belongs to this project, or to an installed package."""
    from hotshoe import families
    from hotshoe_core.contract.plugin import ENTRY_POINT_GROUP
    from hotshoe_core.eager.reference import ReferenceProvider
    from hotshoe_loader.catalog import owner_of_device, owner_of_provider
    from hotshoe_loader.find import find_entry_points

    group = families.MODELS if kind in _FAMILIES else ENTRY_POINT_GROUP
    for name in (names.arch or names.name, names.distribution):
        owner = owner_of_provider(name) or owner_of_device(name)
        if owner is not None or name in _OURS | {ReferenceProvider.name}:
            raise _refused(name, f"it is a name of {owner.distribution if owner else 'hotshoe'}, installed or not")
        for entry in find_entry_points([group])[group]:
            if name in (normalise(entry.name), normalise(entry.distribution)):
                also = "" if normalise(entry.distribution) in _OURS else f", or pip uninstall {entry.distribution}"
                raise _refused(
                    name, f"{entry.origin} is installed and uses this name in {group!r}", f"{_ANOTHER_NAME}{also}"
                )
    module, distribution = names.module, names.distribution
    if module in _TEMPLATE_NAMES:
        raise _refused(distribution, f"the package has a file or folder {module!r} already")
    if module in sys.stdlib_module_names:
        raise _refused(distribution, f"`import {module}` is a module of Python")
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.origin is not None:  # else a folder without a package
        raise _refused(distribution, f"`import {module}` is another package already: {spec.origin}")


def _refuse_converted(transformers: str) -> None:
    """Raise OptionError if hotshoe or another package has a converter for this class: two are refused at every use."""
    from hotshoe import families

    if transformers in families.names(families.CONVERTERS):
        raise OptionError(
            f"--transformers is {transformers!r}, which hotshoe or another installed package converts already",
            hint="convert the model: hotshoe convert FOLDER -o model.gguf",
        )


def _refused(name: str, problem: str, hint: str = _ANOTHER_NAME) -> OptionError:
    return OptionError(f"a new plugin cannot be called {shown(name)}: {problem}", hint=hint)


def write_plugin(names: Names, kind: str, target: Path, transformers: str | None = None) -> list[Path]:
    """Write the package into ``target``, all of it or nothing, and return the paths of its files.

    transformers: the class that tests of a family compare with. Raises OptionError if it is not a name in Python, or if
    the plugin is not a family, or if an installed package converts the class already.

    Raises OptionError if ``target`` exists and is not an empty folder; OSError if it cannot be written.
    """
    if transformers is not None and (kind not in _FAMILIES or not transformers.isidentifier()):
        raise OptionError(
            f"--transformers is {shown(transformers)}; expected the name of a class, for --family or --encoder",
            hint="it is the first of the architectures in config.json, such as OlmoForCausalLM",
        )
    if transformers is not None:
        _refuse_converted(transformers)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise OptionError(
            f"{target} exists already, so nothing was written; expected a new or empty folder",
            hint="name another folder with --output, or remove this one",
        )
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{names.distribution}.", dir=parent))
    try:
        written = []
        for path, text in _rendered(names, kind, transformers):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8", newline="\n")
            written.append(target / path)
        folder.chmod(0o777 & ~_umask())  # mkdtemp lets only the owner in
        if target.exists():  # empty, perhaps the working directory
            for entry in list(folder.iterdir()):
                entry.rename(target / entry.name)
            folder.rmdir()
        else:
            folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return written


def _rendered(names: Names, kind: str, transformers: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of each file of the package."""
    placeholders = (f"my-{kind}", f"hotshoe-my-{kind}", f"hotshoe_my_{kind}", f"My{kind.capitalize()}", "my-arch")
    spelled = dict(zip(placeholders, names)) | {f"my_{kind}": names.name.replace("-", "_")}
    if transformers is not None:
        spelled |= dict.fromkeys(_CLASSES[kind], transformers) | {
            _TEST: _TEST.replace("]", ', "torch", "transformers"]')
        }
    pattern = re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True))))

    def named(text: str) -> str:
        return pattern.sub(lambda match: spelled[match[0]], text)

    files = {path.relative_to(_TEMPLATES / kind): path for path in (_TEMPLATES / kind).rglob(f"*{_SUFFIX}")}
    if transformers is not None and kind == "family":  # its tests instead of those with NumPy
        other = _TEMPLATES / "transformers"
        files = {path: file for path, file in files.items() if path.parts[0] != "tests"}
        files |= {path.relative_to(other): path for path in other.rglob(f"*{_SUFFIX}")}
    for path, file in sorted(files.items()):
        yield named(path.as_posix().removesuffix(_SUFFIX)), named(file.read_text(encoding="utf-8"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _first_block(readme: Path) -> list[str]:
    """The commands of the first fenced block, indented."""
    block = readme.read_text(encoding="utf-8").split("```")[1]
    return [f"    {line}" for line in block.splitlines()[1:]]
