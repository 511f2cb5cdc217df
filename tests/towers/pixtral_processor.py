"""transformers' PixtralProcessor without torchvision: it imports a module for a function that the Pillow module has."""

from __future__ import annotations

import sys

from transformers.models.pixtral import image_processing_pil_pixtral

sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", image_processing_pil_pixtral)

from transformers.models.pixtral.processing_pixtral import PixtralProcessor  # noqa: E402

__all__ = ["PixtralProcessor"]
