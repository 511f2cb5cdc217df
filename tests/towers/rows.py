"""The table: one row for each kind of projector."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe.nn.vision import Prepared, Tower
from tests.families.hybrids import DELTA_WEIGHTS
from tests.families.row import COMMON, Row
from tests.towers import newer_rows
from tests.towers.parts import (
    GEMMA4_IDS,
    GEMMA4_TOKENS,
    PIXTRAL,
    PIXTRAL_PROCESSOR,
    QWEN_OPTIONS,
    QWEN_TEXT,
    SIGLIP,
    config_of,
    narrow,
    patches,
    plain,
)
from tests.towers.row import SIZES, TowerRow

__all__ = ["ROWS"]

Array = np.ndarray[Any, Any]


def _gemma4_patches(tower: Tower, prepared: Prepared) -> Array:
    """Gemma 4's processor writes each patch as one row, and fills up with zeros."""
    pixels, patch = prepared.inputs["pixels"][0], tower.config.patch_size
    h, w = (n // patch for n in pixels.shape[1:])
    rows = pixels.reshape(3, h, patch, w, patch).transpose(1, 3, 2, 4, 0).reshape(h * w, -1)
    return np.pad(rows, ((0, tower.config.max_pixels // patch**2 - len(rows)), (0, 0)))


_QWEN_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_QWEN_IDS = dict(
    zip(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"), _QWEN_TOKENS, strict=True)
)
_QWEN_PROCESSOR = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl:Qwen2VLImageProcessorPil"
_GEMMA_TOKENS = ("<image_soft_token>", "<start_of_image>", "<end_of_image>")

_IDEFICS_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
_IDEFICS_TOKENS += tuple(f"<row_{y}_col_{x}>" for y in range(1, 4) for x in range(1, 4))

_GEMMA4_VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2} | {
    "head_dim": 16,
    "intermediate_size": 48,
    "position_embedding_size": 64,
}
_GEMMA4_TEXT = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 12, "final_logit_softcapping": 30.0} | {
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": 0,
}


def _gemma4(config: dict[str, Any], **options: Any) -> TowerRow:
    return TowerRow(
        Row(
            "Gemma4ForConditionalGeneration",
            "gemma4",
            config | {"audio_config": None},
            weights={"_min": lambda v: -1 - abs(v), "_max": lambda v: 1 + abs(v), "input_proj.weight": narrow},
        ),
        "gemma4v",
        "transformers.models.gemma4.image_processing_pil_gemma4:Gemma4ImageProcessorPil",
        GEMMA4_TOKENS,
        GEMMA4_IDS,
        _gemma4_patches,
        {"max_soft_tokens": 70},
        typed="mm_token_type_ids",
        keys={"clip.vision.image_max_pixels": 70 * 48 * 48},  # llama.cpp has limits of its own
        **options,
    )


_QWEN3_VISION = {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64} | {
    "patch_size": 16,
    "num_position_embeddings": 49,
}
_QWEN3_TEXT = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}}
_QWEN3_OPTIONS = {"patch_size": 16, "min_pixels": 64 * 32 * 32, "max_pixels": 4096 * 32 * 32}

_PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def _tiles(tower: Tower, prepared: Prepared) -> Array:
    """Llama 3.2's processor fills up with black tiles, after they are normalised."""
    pixels = prepared.inputs["pixels"]
    return np.pad(pixels, ((0, tower.config.max_tiles - len(pixels)), *[(0, 0)] * 3))


_CLIP_COLORS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def _gate(values: Array) -> Array:
    return np.full_like(values, 0.4)


ROWS: dict[str, TowerRow] = {
    "qwen2-vl": TowerRow(
        Row(
            "Qwen2VLForConditionalGeneration",
            "qwen2vl",
            config_of({"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}, **QWEN_TEXT),
            weights={"patch_embed.proj.weight": narrow},
        ),
        "qwen2vl_merger",
        _QWEN_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_IDS,
        patches,
        QWEN_OPTIONS,
        typed="mm_token_type_ids",
        seen_size=(84, 112),
    ),
    "qwen2.5-vl": TowerRow(
        Row(
            "Qwen2_5_VLForConditionalGeneration",
            "qwen2vl",
            config_of(
                {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
                | {"fullatt_block_indexes": [1, 3]},
                **QWEN_TEXT,
            ),
            weights={"patch_embed.proj.weight": narrow},
        ),
        "qwen2.5vl_merger",
        _QWEN_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_IDS,
        patches,
        QWEN_OPTIONS,
        typed="mm_token_type_ids",
        seen_size=(84, 112),
    ),
    "gemma3": TowerRow(
        Row(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            config_of(
                SIGLIP | {"image_size": 112, "patch_size": 14, "vision_use_head": False},
                head_dim=16,
                sliding_window=12,
                layer_types=["sliding_attention", "full_attention"],
                query_pre_attn_scalar=16,
            )
            | {"mm_tokens_per_image": 4},
            weights={"patch_embedding.weight": narrow},
        ),
        "gemma3",
        "transformers.models.gemma3.image_processing_pil_gemma3:Gemma3ImageProcessorPil",
        _GEMMA_TOKENS,
        dict(zip(("image_token_id", "boi_token_index", "eoi_token_index"), _GEMMA_TOKENS, strict=True)),
        plain,
        {"size": {"height": 112, "width": 112}, "image_seq_length": 4},
        seen_size=(112, 112),
        unseen="\n\n",
        typed="token_type_ids",
        differing=("f32 mm.input_projection.weight",),  # llama.cpp's is always F16
        published={"vision_tower.": "vision_tower.vision_model."},
        whole_processor="transformers:Gemma3Processor",
        whole_options={"image_seq_length": 4},
        named=dict(zip(("image_token", "boi_token", "eoi_token"), _GEMMA_TOKENS, strict=True)),
    ),
    "gemma4": _gemma4(
        config_of(
            _GEMMA4_VISION | {"standardize": True},
            hidden_size_per_layer_input=0,
            use_bidirectional_attention="vision",
            **_GEMMA4_TEXT,
        ),
        seen_size=(336, 480),
        seen_bound=1e-2,  # its MLPs have larger values, for which the table of GELU is coarse
    ),
    # the small models: vectors for each layer, limits of linear layers, and no bidirectional spans
    "gemma4-small": _gemma4(
        config_of(
            _GEMMA4_VISION | {"use_clipped_linears": True},
            hidden_size=1536,
            hidden_size_per_layer_input=16,
            vocab_size_per_layer_input=COMMON["vocab_size"],
            **_GEMMA4_TEXT,
        ),
        seen_size=(336, 480),
        seen_bound=1e-2,
    ),
    "qwen3-vl": TowerRow(
        Row(
            "Qwen3VLForConditionalGeneration",
            "qwen3vl",
            config_of(_QWEN3_VISION | {"deepstack_visual_indexes": [0, 2]}, head_dim=32, **_QWEN3_TEXT),
            weights={"patch_embed.proj.weight": narrow},
        ),
        "qwen3vl_merger",
        _QWEN_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_IDS,
        patches,
        _QWEN3_OPTIONS,
        typed="mm_token_type_ids",
        # llama.cpp stops at an assertion: the last text layer, too, reads rows of the encoder
    ),
    "qwen3-vl-moe": TowerRow(
        Row(
            "Qwen3VLMoeForConditionalGeneration",
            "qwen3vlmoe",
            config_of(
                _QWEN3_VISION | {"deepstack_visual_indexes": [1]},
                head_dim=32,
                num_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=40,
                **_QWEN3_TEXT,
            ),
            weights={"patch_embed.proj.weight": narrow},
        ),
        "qwen3vl_merger",
        _QWEN_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_IDS,
        patches,
        _QWEN3_OPTIONS,
        typed="mm_token_type_ids",
        seen_size=(256, 256),
    ),
    "qwen3.5": TowerRow(
        Row(
            "Qwen3_5ForConditionalGeneration",
            "qwen35",
            config_of(
                _QWEN3_VISION,
                head_dim=64,
                linear_num_key_heads=2,
                linear_num_value_heads=6,
                linear_key_head_dim=16,
                linear_value_head_dim=16,
                full_attention_interval=2,
                layer_types=["linear_attention", "full_attention"],
                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
                | {"mrope_section": [6, 5, 5], "mrope_interleaved": True},
            ),
            weights=DELTA_WEIGHTS | {"patch_embed.proj.weight": narrow},
        ),
        "qwen3vl_merger",
        _QWEN_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_IDS,
        patches,
        _QWEN3_OPTIONS,
        typed="mm_token_type_ids",
        double=True,  # a head of a recurrent layer is normalised, also where its values nearly cancel
        seen_size=(256, 256),
    ),
    "pixtral": TowerRow(
        Row(
            "LlavaForConditionalGeneration",
            "llama",
            config_of(PIXTRAL | {"image_size": 128}, model_type="mistral", rms_norm_eps=1e-5)
            | {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
            weights={"patch_conv.weight": narrow},
        ),
        "pixtral",
        PIXTRAL_PROCESSOR,
        _PIXTRAL_TOKENS,
        {"image_token_id": "[IMG]"},
        plain,
        {"patch_size": {"height": 16, "width": 16}, "size": {"longest_edge": 128}},
        # llama.cpp's converter passes over the text model's table before it looks for the row; its reader requires it
        differing=("f32 v.token_embd.img_break", "f16 v.token_embd.img_break"),
        whole_processor="tests.towers.pixtral_processor:PixtralProcessor",
        seen_size=(96, 128),
        breaks="[IMG_BREAK]",
    ),
    "mistral3": TowerRow(
        Row(
            "Mistral3ForConditionalGeneration",
            "mistral3",
            config_of(PIXTRAL | {"image_size": 280, "patch_size": 14}, model_type="ministral3", rms_norm_eps=1e-5)
            | {"vision_feature_layer": -1, "spatial_merge_size": 2, "tie_word_embeddings": False},
            weights={"patch_conv.weight": narrow},
        ),
        "pixtral",
        PIXTRAL_PROCESSOR,
        _PIXTRAL_TOKENS,
        {"image_token_id": "[IMG]"},
        plain,
        {"patch_size": {"height": 28, "width": 28}, "size": {"longest_edge": 280}},
        # llama.cpp's converter passes over the text model's table before it looks for the row; its reader requires it
        differing=("f32 v.token_embd.img_break", "f16 v.token_embd.img_break"),
        whole_processor="tests.towers.pixtral_processor:PixtralProcessor",
        whole_options={"patch_size": 14, "spatial_merge_size": 2},
        seen_size=(112, 140),
        breaks="[IMG_BREAK]",
    ),
    "idefics3": TowerRow(
        Row(
            "Idefics3ForConditionalGeneration",
            "llama",
            config_of(SIGLIP | {"image_size": 56, "patch_size": 14}, model_type="llama", pad_token_id=0, vocab_size=352)
            | {"scale_factor": 2, "tie_word_embeddings": False},
            weights={"patch_embedding.weight": narrow},
        ),
        "idefics3",
        "transformers.models.idefics3.image_processing_pil_idefics3:Idefics3ImageProcessorPil",
        _IDEFICS_TOKENS,
        {"image_token_id": "<image>"},
        plain,
        {"size": {"longest_edge": 140}, "max_image_size": {"longest_edge": 56}},
        whole_processor="transformers:Idefics3Processor",
        whole_options={"image_seq_len": 4},
    ),
    "mllama": TowerRow(
        Row(
            "MllamaForConditionalGeneration",
            "mllama",
            config_of(
                {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_global_layers": 2}
                | {"attention_heads": 2, "vision_output_dim": 96, "image_size": 56, "patch_size": 14}
                | {"intermediate_layers_indices": [1, 2]},
                vocab_size=312,  # the token of pictures has no logit
                num_hidden_layers=4,
                cross_attention_layers=[1, 3],
                rms_norm_eps=1e-5,
                rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            ),
            weights={"patch_embedding.weight": narrow, "gate": _gate, "gate_attn": _gate, "gate_ffn": _gate},
        ),
        "mllama",
        "transformers.models.mllama.image_processing_pil_mllama:MllamaImageProcessorPil",
        ("<|image|>",),
        {"image_token_index": "<|image|>"},
        _tiles,
        {"size": {"height": 56, "width": 56}} | _CLIP_COLORS,
        unrecorded="llama.cpp does not have this model",
        oracle="tests.towers.mllama",
        sizes=(*SIZES, (40, 50), (50, 110)),  # the last ones have one tile and two
    ),
    "llava": TowerRow(
        Row(
            "LlavaForConditionalGeneration",
            "llama",
            config_of(
                SIGLIP
                | {"model_type": "clip_vision_model", "num_hidden_layers": 3}
                # the processor looks at the sizes too
                | {"image_size": 64, "patch_size": 16},
                model_type="llama",
            )
            | {"vision_feature_layer": -2},
            weights={"patch_embedding.weight": narrow},
        ),
        "mlp",
        "transformers.models.clip.image_processing_pil_clip:CLIPImageProcessorPil",
        ("<image>",),
        {"image_token_id": "<image>"},
        plain,
        {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
        unrecorded="llama.cpp's converter of LLaVA's encoder reads checkpoints of the original program",
        # llama.cpp puts the class token last, and takes rows and positions as if it were first
        published={"vision_tower.": "vision_tower.vision_model."},
        whole_processor="transformers:LlavaProcessor",
        whole_options={
            "patch_size": 16,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        named={"image_token": "<image>"},
    ),
    **newer_rows.ROWS,
}
