"""What rows of tests/towers share: configs of tiny models, and the pixels that processors make."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe.nn.vision import Prepared, Tower
from tests.families.row import COMMON

__all__ = ["GEMMA4_IDS", "GEMMA4_TOKENS", "PIXTRAL", "PIXTRAL_PROCESSOR", "QWEN_OPTIONS", "QWEN_TEXT", "SIGLIP"]
__all__ += ["TEXT", "config_of", "narrow", "patches", "plain"]

Array = np.ndarray[Any, Any]

TEXT = COMMON | {"num_hidden_layers": 2}


def config_of(vision: dict[str, Any], **text: Any) -> dict[str, Any]:
    return dict.fromkeys(COMMON.keys() - {"vocab_size"}, ...) | {"text_config": TEXT | text, "vision_config": vision}


def patches(tower: Tower, prepared: Prepared) -> Array:
    """Qwen's processor writes both frames of each patch as one row, in the order of the merged cells."""
    pixels, patch = prepared.inputs["pixels"][0], tower.config.patch_size
    h, w = (n // patch for n in pixels.shape[1:])
    merge = tower.config.merge
    cells = pixels.reshape(3, h // merge, merge, patch, w // merge, merge, patch)
    ordered = cells.transpose(1, 4, 2, 5, 0, 3, 6).reshape(h * w, 3, 1, patch * patch)
    return ordered.repeat(2, axis=2).reshape(h * w, -1)


def plain(tower: Tower, prepared: Prepared) -> Array:
    return prepared.inputs["pixels"]


def narrow(values: Array) -> Array:
    return values * 0.2


QWEN_TEXT = {"num_attention_heads": 2, "num_key_value_heads": 1} | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
}
QWEN_OPTIONS = {"min_pixels": 8 * 28 * 28, "max_pixels": 4096 * 28 * 28}

SIGLIP = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
GEMMA4_TOKENS = ("<|image|>", "<|image>", "<image|>", "<|video|>", "<|audio|>", "<|audio>", "<audio|>")
GEMMA4_IDS = dict(
    zip(("image_token_id", "boi_token_id", "eoi_token_id", "video_token_id"), GEMMA4_TOKENS, strict=False)
)

PIXTRAL = SIGLIP | {"model_type": "pixtral", "head_dim": 16, "hidden_act": "silu"}
PIXTRAL_PROCESSOR = "transformers.models.pixtral.image_processing_pil_pixtral:PixtralImageProcessorPil"
