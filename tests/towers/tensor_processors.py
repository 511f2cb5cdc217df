"""transformers' processors that need torchvision, without it: Pillow resizes, as in processors of other models.

torchvision rounds a resized pixel to its neighbour in places. All else is the processors' own: sizes, tiles, patches.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import PIL.Image
import torch
from transformers.image_processing_backends import TorchvisionBackend
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

__all__ = ["Gemma4UnifiedProcessor", "Lfm2VlProcessor", "Llama4Processor"]

_NAMES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")


def _resize(image: Any, size: Any, interpolation: Any, **_: Any) -> Any:
    """torchvision's function: (..., 3, h, w) uint8 to (..., 3, *size) uint8, with Pillow's filter."""
    height, width = size
    pictures = image.reshape(-1, *image.shape[-3:]).permute(0, 2, 3, 1).numpy()
    done = [np.asarray(PIL.Image.fromarray(p).resize((width, height), interpolation)) for p in pictures]
    return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2).reshape(*image.shape[:-2], height, width)


def _pad(image: Any, padding: Any, fill: Any) -> Any:
    """torchvision's function, with black."""
    left, top, right, bottom = padding
    assert not any(fill)
    return torch.nn.functional.pad(image, (left, right, top, bottom))


class _Pillow(TorchvisionBackend):
    def resize(self, image: Any, size: Any, resample: Any = None, **_: Any) -> Any:
        return _resize(image, (size.height, size.width), resample)

    def normalize(self, image: Any, mean: Any, std: Any, **_: Any) -> Any:
        mean, std = (torch.as_tensor(values, dtype=image.dtype).reshape(3, 1, 1) for values in (mean, std))
        return (image - mean) / std


_missing = [name for name in _NAMES if name not in sys.modules]
sys.modules |= {name: ModuleType(name) for name in _missing}
_functional: Any = sys.modules[_NAMES[-1]]
sys.modules[_NAMES[-2]].functional = _functional  # type: ignore[attr-defined]
_functional.InterpolationMode, _functional.resize, _functional.pad = PIL.Image.Resampling, _resize, _pad
try:
    from transformers.models.gemma4_unified.image_processing_gemma4_unified import Gemma4UnifiedImageProcessor
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor
finally:
    for _name in _missing:
        del sys.modules[_name]


class Gemma4UnifiedProcessor(Gemma4UnifiedImageProcessor, _Pillow):
    pass


class Lfm2VlProcessor(Lfm2VlImageProcessor, _Pillow):
    pass


class Llama4Processor(Llama4ImageProcessor, _Pillow):
    def _preprocess(self, *args: Any, **options: Any) -> Any:
        done = super()._preprocess(*args, **options)
        if isinstance(done["pixel_values"], torch.Tensor):
            done["pixel_values"] = done["pixel_values"].float()  # as the weights of the tiny model
        return done


# transformers 5.24 asks the text model of Llama 4 for this, which it does not return
MoeCausalLMOutputWithPast.image_outputs = None
