"""Rows of text models in checkpoints that also read pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy as safetensors

from tests.families.gemmas import GEMMA4, GEMMA4_FILE
from tests.families.row import COMMON, Row, stating

_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_2, _3 = ({"rope_parameters": _ROPE | {"mrope_section": sections}} for sections in ([4, 6, 6], [6, 5, 5]))


def _config(vision: dict[str, Any], **text: Any) -> dict[str, Any]:
    """All settings are those of the text model, and the encoder is as small as it can be."""
    config = COMMON | text
    return dict.fromkeys(COMMON.keys() - {"vocab_size"}, ...) | {
        "text_config": config,
        "vision_config": _VISION | vision,
    }


def _transpose_experts(folder: Path) -> None:
    """Store them as in published checkpoints: (experts, in, out)."""
    weights = safetensors.load_file(folder / "model.safetensors")
    for name in [name for name in weights if "experts" in name]:
        weights[name] = np.ascontiguousarray(weights[name].swapaxes(1, 2))
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})


_GLM = {"out_hidden_size": 64, "image_size": 16}
_HALF = _ROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
_OCR = {"head_dim": 24, "rms_norm_eps": 1e-3}
_GEMMA4 = {name: value for name, value in GEMMA4.items() if name != "hidden_size_per_layer_input"}
_GEMMA4 |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
_NO_ENCODER = {"mm_embed_dim": 64, "mm_posemb_size": 16, "output_proj_dims": 64, "pooling_kernel_size": 1}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
ROWS: dict[str, Row] = {
    "qwen2-vl": Row(
        "Qwen2VLForConditionalGeneration",
        "qwen2vl",
        _config({"embed_dim": 16, "hidden_size": 64}, num_attention_heads=2, num_key_value_heads=1, **_2),
    ),
    "qwen2.5-vl": Row(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2vl",
        _config(
            {"out_hidden_size": 64, "fullatt_block_indexes": [0]}, num_attention_heads=2, num_key_value_heads=1, **_2
        ),
    ),
    "qwen3-vl": Row(
        "Qwen3VLForConditionalGeneration",
        "qwen3vl",
        _config({"out_hidden_size": 64, "deepstack_visual_indexes": [0]}, head_dim=32, rms_norm_eps=1e-3, **_3),
    ),
    "qwen3-vl-moe": Row(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3vlmoe",
        _config(
            {"out_hidden_size": 64, "deepstack_visual_indexes": [0]}, head_dim=32, rms_norm_eps=1e-3, **_3, **_EXPERTS
        ),
        prepare=_transpose_experts,
    ),
    "glm4v": Row("Glm4vForConditionalGeneration", "glm4", _config(_GLM, rope_parameters=_HALF, rms_norm_eps=1e-3)),
    "glm4v-moe": Row(
        "Glm4vMoeForConditionalGeneration",
        "glm4moe",
        _config(
            _GLM,
            rope_parameters=_ROPE | {"mrope_section": [1, 2, 3], "partial_rotary_factor": 0.5},
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            first_k_dense_replace=1,
            routed_scaling_factor=2.5,
            head_dim=24,
        ),
    ),
    "glm-ocr": Row(
        "GlmOcrForConditionalGeneration",
        "glm4",
        _config(_GLM, rope_parameters=_ROPE | {"mrope_section": [3, 4, 5], "partial_rotary_factor": 1.0}, **_OCR),
    ),
    "paddleocr": Row(
        "PaddleOCRVLForConditionalGeneration",
        "paddleocr",
        _config({"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16}, head_dim=32, **_2),
        unused=("model.projector.*",),
    ),
    "gemma4-12b": Row(
        "Gemma4UnifiedForConditionalGeneration",
        "gemma4",
        _config({}, pad_token_id=0, **_GEMMA4)
        | {"vision_config": _NO_ENCODER, "audio_config": {"audio_embed_dim": 20}},
        prepare=stating(moe_intermediate_size=None),
        unused=("model.embed_vision.*", "model.embed_audio.*"),
        **GEMMA4_FILE,
    ),
    "muse-glimmer": Row(
        "MuseGlimmerForConditionalGeneration",
        "muse-glimmer",
        _config(
            {"num_hidden_layers": 1, "num_attention_heads": 2, "pos_emb_height": 4, "pos_emb_width": 4},
            head_dim=24,
            num_hidden_layers=5,
            sliding_window=6,
            rms_norm_eps=1e-3,
            qk_scale_factor=1.5,
        ),
        unused=("model.vision_*",),
        excused={"vectors": "the norms of queries and keys are constants"},
    ),
}
