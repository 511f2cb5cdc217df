"""The table: one row for each kind of projector."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe.nn.vision import Prepared, Tower
from tests.families.row import COMMON, Row
from tests.towers.row import TowerRow

__all__ = ["ROWS"]

Array = np.ndarray[Any, Any]

_TEXT = COMMON | {"num_hidden_layers": 2}


def _config(vision: dict[str, Any], **text: Any) -> dict[str, Any]:
    return dict.fromkeys(COMMON.keys() - {"vocab_size"}, ...) | {"text_config": _TEXT | text, "vision_config": vision}


def _patches(tower: Tower, prepared: Prepared) -> Array:
    """Qwen's processor writes both frames of each patch as one row, in the order of the merged cells."""
    pixels, patch = prepared.inputs["pixels"][0], tower.config.patch_size
    h, w = (n // patch for n in pixels.shape[1:])
    merge = tower.config.merge
    cells = pixels.reshape(3, h // merge, merge, patch, w // merge, merge, patch)
    ordered = cells.transpose(1, 4, 2, 5, 0, 3, 6).reshape(h * w, 3, 1, patch * patch)
    return ordered.repeat(2, axis=2).reshape(h * w, -1)


def _narrow(values: Array) -> Array:
    return values * 0.2


_QWEN_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_QWEN_IDS = dict(
    zip(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"), _QWEN_TOKENS, strict=True)
)
_QWEN_TEXT = {"num_attention_heads": 2, "num_key_value_heads": 1} | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
}
_QWEN_PROCESSOR = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl:Qwen2VLImageProcessorPil"
_QWEN_OPTIONS = {"min_pixels": 8 * 28 * 28, "max_pixels": 4096 * 28 * 28}

ROWS: dict[str, TowerRow] = {
    "qwen2-vl": TowerRow(
        Row(
            "Qwen2VLForConditionalGeneration",
            "qwen2vl",
            _config({"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}, **_QWEN_TEXT),
            weights={"patch_embed.proj.weight": _narrow},
        ),
        "qwen2vl_merger",
        _QWEN_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_IDS,
        _patches,
        _QWEN_OPTIONS,
        typed=True,
    ),
    "qwen2.5-vl": TowerRow(
        Row(
            "Qwen2_5_VLForConditionalGeneration",
            "qwen2vl",
            _config(
                {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
                | {"fullatt_block_indexes": [1, 3]},
                **_QWEN_TEXT,
            ),
            weights={"patch_embed.proj.weight": _narrow},
        ),
        "qwen2.5vl_merger",
        _QWEN_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_IDS,
        _patches,
        _QWEN_OPTIONS,
        typed=True,
    ),
}
