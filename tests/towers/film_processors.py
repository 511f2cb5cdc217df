"""transformers' processors that read films, too, without torchvision: pictures need no processor of films."""

from __future__ import annotations

from typing import Any

from transformers.models.glm4v import processing_glm4v
from transformers.models.internvl import processing_internvl

__all__ = ["Glm4vProcessor", "InternVLProcessor"]


class _Unchecked:
    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return type(argument)


class Glm4vProcessor(_Unchecked, processing_glm4v.Glm4vProcessor):
    pass


class InternVLProcessor(_Unchecked, processing_internvl.InternVLProcessor):
    pass
