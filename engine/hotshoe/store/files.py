"""StoredModel: the files of one model. How files of a repository form models, and which one a label means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hotshoe_core.errors import ModelNotFoundError, did_you_mean

__all__ = ["DEFAULT_QUANTS", "StoredModel", "choose", "grouped", "labelled", "projector_of", "quant_of"]

DEFAULT_QUANTS = (
    *("Q4_K_M", "Q4_K_XL", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4", "MXFP4_MOE"),
    *("Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0", "Q3_K_M", "F16", "BF16", "F32"),
)
"""The quantizations from which the default is chosen: the first that a repository has. About four bits are the usual
compromise of size and quality; smaller files lose much, larger ones gain little."""
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)+|TQ\d_\d|BF16|FP?16|FP?32|[MN]V?X?FP4(?:_MOE)?))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.DOTALL)
_PROJECTORS = ("F16", "BF16", "Q8_0", "F32")
"""The projectors of a repository, the best choice first. The larger ones bring nothing that can be measured."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of this machine."""

    name: str
    source: str
    """"hub", "ollama", "lmstudio" or "created"."""
    files: tuple[Path, ...]
    """The weights: one file, or all parts of a split model in order."""
    projector: Path | None = None
    """The projector for pictures in the folder of the weights."""
    digests: Mapping[Path, str] = field(default_factory=dict)
    """The hash of each file for which it is known: SHA-256, or Git's SHA-1 for a file that Git holds."""

    @property
    def path(self) -> Path:
        """The file to load."""
        return self.files[0]

    @property
    def nbytes(self) -> int:
        """The size of the weights and of the projector."""
        return sum(file.stat().st_size for file in self.all_files)

    @property
    def modified(self) -> float:
        """The time of the newest file, in seconds since 1970."""
        return max(file.stat().st_mtime for file in self.all_files)

    @property
    def all_files(self) -> tuple[Path, ...]:
        """The weights and the projector."""
        return self.files if self.projector is None else (*self.files, self.projector)


def quant_of(name: str) -> str:
    """The quantization that a file's name says, such as "Q4_K_M"; "" if it says none."""
    found = _QUANT.findall(PurePosixPath(name).name)
    return found[-1].upper() if found else ""


def grouped(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The models that the GGUF files of a repository form: each by its name without the ending, with its files.

    names: paths inside the repository. A split model of which a part is missing, and projectors, are left out.
    """
    found: dict[str, tuple[str, ...]] = {}
    parts: defaultdict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name in sorted(names):
        if not name.lower().endswith(".gguf") or _is_projector(name):
            continue
        stem = name[: -len(".gguf")]
        if (part := _PART.fullmatch(stem)) is None:
            found[stem] = (name,)
        else:
            parts[part["stem"], int(part["count"])][int(part["number"])] = name
    for (stem, count), numbered in parts.items():
        if sorted(numbered) == list(range(1, count + 1)):
            found[stem] = tuple(numbered[i] for i in sorted(numbered))
    return found


def _is_projector(name: str) -> bool:
    return "mmproj" in PurePosixPath(name).name.lower()


def projector_of(names: Iterable[str], near: str = "") -> str | None:
    """The projector for pictures among a repository's files; one of ``near``'s folder first. None if it has none."""
    folder = PurePosixPath(near).parent
    found = [name for name in names if name.lower().endswith(".gguf") and _is_projector(name)]

    def rank(name: str) -> tuple[bool, int, str]:
        quant = quant_of(name)
        return PurePosixPath(name).parent != folder, (*_PROJECTORS, quant).index(quant), name

    return min(found, key=rank, default=None)


def labelled(groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The label of each model of a repository: its quantization, or its whole name where that is not unique."""
    quants = [quant_of(stem) for stem in groups]
    return {stem: quant if quant and quants.count(quant) == 1 else stem for stem, quant in zip(groups, quants)}


def choose(groups: Mapping[str, Sequence[str]], label: str, where: str) -> str:
    """The model of a repository that a label means: a quantization, a file, or "" for the default.

    Raises ModelNotFoundError, which lists the labels that there are.
    """
    labels = labelled(groups)
    if not label:
        order = {quant: i for i, quant in enumerate(DEFAULT_QUANTS)}

        def rank(stem: str) -> tuple[int, int, str]:
            return order.get(quant_of(stem).removeprefix("UD-"), len(order)), len(stem), stem

        return min(groups, key=rank)
    wanted = label.lower().removesuffix(".gguf")
    for names in (
        [stem for stem in groups if stem.lower() == wanted],
        [stem for stem in groups if PurePosixPath(stem).name.lower() == wanted],
        [stem for stem in groups if quant_of(stem).lower() == wanted],
    ):
        if len(names) == 1:
            return names[0]
        if names:
            raise ModelNotFoundError(
                f"{where} has {len(names)} models that {label!r} can mean", hint=did_you_mean(label, names)
            )
    raise ModelNotFoundError(
        f"{where} has no {label!r}; it has {', '.join(sorted(labels.values()))}",
        hint=did_you_mean(label.upper(), labels.values()),
    )
