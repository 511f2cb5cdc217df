"""The file types of llama.cpp: mixes of block formats, with their numbers in ``general.file_type``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotshoe_core.errors import ConversionError, did_you_mean, similar
from hotshoe_core.errors.arguments import described
from hotshoe_core.errors.text import shown

if TYPE_CHECKING:
    from hotshoe_core.tensors.dtypes import DType

__all__ = ["FILE_TYPES", "FileType", "parse_dtype", "parse_file_type"]


@dataclass(frozen=True, slots=True)
class FileType:
    """A type that a GGUF file can have, such as q4_k_m."""

    name: str
    """The name that users write."""
    number: int
    """Its number in ``general.file_type``."""
    base_name: str
    """The name of the element type that most weights get."""

    @property
    def base(self) -> DType:
        """The element type of the weights that have no special rule in the mix."""
        from hotshoe_core.tensors.dtypes import DType  # imported late, because it imports NumPy

        return DType[self.base_name]

    @property
    def is_plain(self) -> bool:
        """True if all weights have one float type, so that no mix applies."""
        return not self.base.is_quantized


# Source of the numbers: enum llama_ftype in llama.cpp's llama.h. 4 to 6 and 33 to 35 were types that it has removed.
FILE_TYPES = {
    name: FileType(name, number, base)
    for name, number, base in (
        ("f32", 0, "F32"),
        ("f16", 1, "F16"),
        ("bf16", 32, "BF16"),
        ("q8_0", 7, "Q8_0"),
        ("q6_k", 18, "Q6_K"),
        ("q5_k_m", 17, "Q5_K"),
        ("q5_k_s", 16, "Q5_K"),
        ("q5_1", 9, "Q5_1"),
        ("q5_0", 8, "Q5_0"),
        ("q4_k_m", 15, "Q4_K"),
        ("q4_k_s", 14, "Q4_K"),
        ("q4_1", 3, "Q4_1"),
        ("q4_0", 2, "Q4_0"),
        ("iq4_nl", 25, "IQ4_NL"),
        ("iq4_xs", 30, "IQ4_XS"),
        ("mxfp4_moe", 38, "MXFP4"),
        ("q3_k_l", 13, "Q3_K"),
        ("q3_k_m", 12, "Q3_K"),
        ("q3_k_s", 11, "Q3_K"),
        ("iq3_m", 27, "IQ3_S"),
        ("iq3_s", 26, "IQ3_S"),
        ("iq3_xs", 22, "IQ3_S"),
        ("iq3_xxs", 23, "IQ3_XXS"),
        ("q2_k", 10, "Q2_K"),
        ("q2_k_s", 21, "Q2_K"),
        ("q2_0", 41, "Q2_0"),
        ("tq2_0", 37, "TQ2_0"),
        ("tq1_0", 36, "TQ1_0"),
        ("iq2_m", 29, "IQ2_S"),
        ("iq2_s", 28, "IQ2_XS"),
        ("iq2_xs", 20, "IQ2_XS"),
        ("iq2_xxs", 19, "IQ2_XXS"),
        ("iq1_m", 31, "IQ1_M"),
        ("iq1_s", 24, "IQ1_S"),
        ("q1_0", 40, "Q1_0"),
    )
}
"""Every type that a file can have, by its name, with the most bits first."""

_SHORT = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}


def parse_file_type(name: object) -> FileType:
    """Return the file type with this name, in upper or lower case. "q4_k" means q4_k_m.

    Raises ConversionError, with a similar name as hint, if the name is unknown.
    """
    if not isinstance(name, str):
        raise ConversionError(f"the file type is {described(name)}; expected a name such as q4_k_m")
    plain = name.strip().lower().replace("-", "_")
    found = FILE_TYPES.get(_SHORT.get(plain, plain))
    if found is None:
        near = similar(plain, FILE_TYPES)
        raise ConversionError(
            f"unknown file type {shown(name)}; expected one of {', '.join(FILE_TYPES)}",
            hint=f"did you mean {near!r}?" if near else None,
        )
    return found


def parse_dtype(name: object, what: str) -> DType:
    """Return the element type for a name such as "q6_k", or for DType.Q6_K. ``what`` names the option in messages.

    Raises ConversionError if tensors cannot be written in this type.
    """
    from hotshoe_core.tensors.dtypes import DType

    writable = [d for d in DType if d.is_quantized and d not in (DType.Q8_1, DType.Q8_K)]
    writable += [DType.F32, DType.F16, DType.BF16]
    names = {d.name.lower(): d for d in writable}
    found = name if isinstance(name, DType) else names.get(name.strip().lower()) if isinstance(name, str) else None
    if found not in writable:
        raise ConversionError(
            f"{what}: unknown tensor type {shown(name)}; expected one of {', '.join(names)}",
            hint=did_you_mean(shown(name).strip("'").lower(), names),
        )
    return found
