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


def _plain(tower: Tower, prepared: Prepared) -> Array:
    return prepared.inputs["pixels"]


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

_SIGLIP = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
_GEMMA_TOKENS = ("<image_soft_token>", "<start_of_image>", "<end_of_image>")

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
        typed="mm_token_type_ids",
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
        typed="mm_token_type_ids",
    ),
    "gemma3": TowerRow(
        Row(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            _config(
                _SIGLIP | {"image_size": 112, "patch_size": 14, "vision_use_head": False},
                head_dim=16,
                sliding_window=12,
                layer_types=["sliding_attention", "full_attention"],
                query_pre_attn_scalar=16,
            )
            | {"mm_tokens_per_image": 4},
            weights={"patch_embedding.weight": _narrow},
        ),
        "gemma3",
        "transformers.models.gemma3.image_processing_pil_gemma3:Gemma3ImageProcessorPil",
        _GEMMA_TOKENS,
        dict(zip(("image_token_id", "boi_token_index", "eoi_token_index"), _GEMMA_TOKENS, strict=True)),
        _plain,
        {"size": {"height": 112, "width": 112}, "image_seq_length": 4},
        typed="token_type_ids",
        differing=("f32 mm.input_projection.weight",),  # llama.cpp's is always F16
        published={"vision_tower.": "vision_tower.vision_model."},
        whole_processor="transformers:Gemma3Processor",
        whole_options={"image_seq_length": 4},
        named=dict(zip(("image_token", "boi_token", "eoi_token"), _GEMMA_TOKENS, strict=True)),
    ),
}
