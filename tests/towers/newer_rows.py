"""The table, second part: GLM-V, InternVL, LFM2-VL, Gemma 4 12B, and models that read documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hotshoe.nn.vision import Prepared, Tower
from tests.families.dense import LLAMA3
from tests.families.hybrids import DELTA_WEIGHTS
from tests.families.row import Row
from tests.support.rewrite import Stored
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


def _gemma4_unified_patches(tower: Tower, prepared: Prepared) -> Array:
    """The processor of Gemma 4 12B writes the channels of a pixel together, and fills up with zeros."""
    patches = prepared.inputs["patches"]
    rows = patches.reshape(len(patches), 3, -1).swapaxes(1, 2).reshape(patches.shape)
    return np.pad(rows, ((0, tower.config.max_pixels // tower.config.unit**2 - len(rows)), (0, 0)))


_LIGHTON_TOKENS = ("<|image_pad|>", "<|vision_pad|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>")

_GLM_TOKENS = ("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>")
_GLM_TOKENS += ("<|begin_of_video|>", "<|end_of_video|>")
_GLM_IDS = ("image_token_id", "video_token_id", "image_start_token_id", "image_end_token_id")
_GLM_IDS += ("video_start_token_id", "video_end_token_id")
_GLM_VISION = {"depth": 2, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 48}
_GLM_VISION |= {"image_size": 112, "patch_size": 14}
_GLM_ROPE = {"rope_type": "default", "rope_theta": 1e4}


def _glm(model: str, arch: str, config: dict[str, Any]) -> TowerRow:
    return TowerRow(
        # the text model would enlarge small differences between rows
        Row(model, arch, config, weights={"patch_embed.proj.weight": narrow, "self_attn.q_proj.weight": narrow}),
        "glm4v",
        "transformers.models.glm4v.image_processing_pil_glm4v:Glm4vImageProcessorPil",
        _GLM_TOKENS,
        dict(zip(_GLM_IDS, _GLM_TOKENS, strict=True)),
        patches,
        # the processor counts the pixels of two equal frames
        {"size": {"shortest_edge": 2 * 8 * 28 * 28, "longest_edge": 2 * 4096 * 28 * 28}},
        typed="mm_token_type_ids",
        sizes=(*SIZES, (20, 70)),
        whole_processor="tests.towers.film_processors:Glm4vProcessor",
        named={"image_token": "<|image|>", "video_token": "<|video|>"},
        seen_size=(84, 112),
    )


_SOUND_KEYS = ("has_audio_encoder", "audio.projector_type", "audio.projection_dim", "audio.num_mel_bins")
_SOUND_KEYS += ("audio.embedding_length", "audio.feed_forward_length", "audio.block_count")
_SOUND_KEYS += ("audio.attention.head_count", "audio.attention.layer_norm_epsilon")


def _siglip2_patches(tower: Tower, prepared: Prepared) -> Array:
    """LFM2-VL's processor writes each patch as one row, and fills up with zeros to the number of a tile."""
    parts = [prepared.inputs[name] for name in ("tiles", "pixels") if name in prepared.inputs]
    patch, filled = tower.config.patch_size, []
    for pixels in (picture for part in parts for picture in part):
        h, w = (n // patch for n in pixels.shape[1:])
        rows = pixels.reshape(3, h, patch, w, patch).transpose(1, 3, 2, 4, 0).reshape(h * w, -1)
        filled.append(np.pad(rows, ((0, (512 // patch) ** 2 - len(rows)), (0, 0))))
    return np.stack(filled)


def _single_patches(tower: Tower, prepared: Prepared) -> Array:
    """PaddleOCR-VL's processor writes each patch as a picture."""
    pixels, patch = prepared.inputs["pixels"][0], tower.config.patch_size
    h, w = (n // patch for n in pixels.shape[1:])
    return pixels.reshape(3, h, patch, w, patch).transpose(1, 3, 0, 2, 4).reshape(h * w, 3, patch, patch)


_LFM2_TOKENS = ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
_LFM2_TOKENS += tuple(f"<|img_row_{y}_col_{x}|>" for y in range(1, 4) for x in range(1, 4))


def _packed_patches(tower: Tower, prepared: Prepared) -> Array:
    """MiniCPM-V's processor writes the patches of all pictures side by side: (1, 3, patch, n * patch)."""
    parts = [prepared.inputs[name] for name in ("pixels", "slices") if name in prepared.inputs]
    patch, packed = tower.config.patch_size, []
    for pixels in (picture for part in parts for picture in part):
        h, w = (n // patch for n in pixels.shape[1:])
        packed.append(pixels.reshape(3, h, patch, w, patch).transpose(0, 2, 1, 3, 4).reshape(3, patch, -1))
    return np.concatenate(packed, axis=-1)[None]


def _minicpmv() -> dict[str, Any]:
    """Qwen 3.5 with a table of 70 x 70 positions, which llama.cpp expects."""
    text = {"model_type": "qwen3_5_text", "head_dim": 64, "full_attention_interval": 2}
    text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 6}
    text |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    text |= {"layer_types": ["linear_attention", "full_attention"]}
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    text |= {"rope_parameters": rope | {"mrope_section": [6, 5, 5], "mrope_interleaved": True}}
    vision = SIGLIP | {"image_size": 980, "patch_size": 14}
    return config_of(vision, **text) | {"insert_layer_id": 0}


_VQ = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "latent_channels": 32, "embed_dim": 8}
_VQ |= {"num_embeddings": 16, "image_token_embed_dim": 64, "projection_dim": 64}

_LLAMA4_TOKENS = ("<|patch|>", "<|image|>", "<|image_start|>", "<|image_end|>")
_LLAMA4_TOKENS += ("<|tile_x_separator|>", "<|tile_y_separator|>")


def _llama4_pixels(tower: Tower, prepared: Prepared) -> Array:
    """The tower has each patch as one row."""
    patches, patch = prepared.inputs["patches"], tower.config.patch_size
    n, side = len(patches), tower.config.side
    cells = patches.reshape(n, side, side, 3, patch, patch).transpose(0, 3, 1, 4, 2, 5)
    return cells.reshape(n, 3, side * patch, side * patch)


def _llama4_features(oracle: Any, given: Mapping[str, Any]) -> Any:
    return oracle.multi_modal_projector(oracle.get_image_features(**given).last_hidden_state)


_MINICPM_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<image>", "</image>", "<slice>", "</slice>")
_PADDLE_TOKENS = ("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>")

_INTERN_TOKENS = ("<IMG_CONTEXT>", "<img>", "</img>", "<video>")
_INTERN_NAMES = ("context_image_token", "start_image_token", "end_image_token", "video_token")


def _rolled(tensors: dict[str, Stored]) -> None:
    """The position of the class token last."""
    values, kind = tensors["v.position_embd.weight"]
    tensors["v.position_embd.weight"] = np.ascontiguousarray(np.roll(values, -1, axis=-2)), kind


def _internvl(vision: dict[str, Any], options: dict[str, Any], **text: Any) -> TowerRow:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    # the architecture that published folders name, by which llama.cpp's converter knows the encoder
    sizes |= {"image_size": [56, 56], "patch_size": [14, 14], "architectures": ["InternVisionModel"]}
    return TowerRow(
        Row(
            "InternVLForConditionalGeneration",
            text["model_type"],
            config_of(sizes | vision, **text) | {"tie_word_embeddings": False},
            weights={"patch_embeddings.projection.weight": narrow},
        ),
        "internvl",
        "transformers.models.got_ocr2.image_processing_pil_got_ocr2:GotOcr2ImageProcessorPil",
        _INTERN_TOKENS,
        {"image_token_id": "<IMG_CONTEXT>"},
        plain,
        {"size": {"height": 56, "width": 56}, "crop_to_patches": True},
        whole_processor="tests.towers.film_processors:InternVLProcessor",
        whole_options={"image_seq_length": 4},
        named=dict(zip(_INTERN_NAMES, _INTERN_TOKENS, strict=True)),
        published={name: f"model.{name}" for name in ("vision_tower.", "multi_modal_projector.")},
        **options,
    )


ROWS: dict[str, TowerRow] = {
    "internvl": _internvl(
        {"attention_bias": True},
        # llama.cpp adds the position of the class token to the first patch, that of the first to the second, and so on
        {"seen_size": (56, 56), "for_llamacpp": _rolled, "unseen": "\n"},
        model_type="qwen2",
    ),
    # the encoder of 6B, which llama.cpp knows by its sizes only, and a text model of 3.5
    "internvl-rms": _internvl({"norm_type": "rms_norm", "use_qk_norm": True}, {}, model_type="qwen3", head_dim=32),
    "glm4v": _glm(
        "Glm4vForConditionalGeneration",
        "glm4",
        config_of(_GLM_VISION, rope_parameters=_GLM_ROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}),
    ),
    "glm4v-moe": _glm(
        "Glm4vMoeForConditionalGeneration",
        "glm4moe",
        config_of(
            _GLM_VISION | {"attention_bias": True},
            rope_parameters=_GLM_ROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5},
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            first_k_dense_replace=1,
            routed_scaling_factor=2.5,
            head_dim=16,
        ),
    ),
    "glm-ocr": _glm(
        "GlmOcrForConditionalGeneration",
        "glm4",
        config_of(
            _GLM_VISION | {"attention_bias": True},
            rope_parameters=_GLM_ROPE | {"mrope_section": [3, 4, 5], "partial_rotary_factor": 1.0},
            head_dim=24,
        ),
    ),
    "gemma4-12b": TowerRow(
        Row(
            "Gemma4UnifiedForConditionalGeneration",
            "gemma4",
            config_of(
                {"mm_embed_dim": 64, "mm_posemb_size": 80, "output_proj_dims": 64, "pooling_kernel_size": 1},
                head_dim=16,
                global_head_dim=32,
                sliding_window=12,
                layer_types=["sliding_attention", "full_attention"],
                pad_token_id=0,
            )
            | {"audio_config": {"audio_embed_dim": 20}},
        ),
        "gemma4uv",
        "tests.towers.tensor_processors:Gemma4UnifiedProcessor",
        GEMMA4_TOKENS,
        GEMMA4_IDS,
        _gemma4_unified_patches,
        {"max_soft_tokens": 70, "pooling_kernel_size": 1},
        unread=("num_soft_tokens_per_image",),
        typed="mm_token_type_ids",
        generating=True,
        keys={
            "clip.vision.projector.scale_factor": 1,
            "clip.vision.image_max_pixels": 70 * 16 * 16,  # llama.cpp has limits of its own
            **dict.fromkeys((f"clip.{name}" for name in _SOUND_KEYS), None),  # sound is left out
        },
        differing=("f32 mm.a.input_projection.weight", "f16 mm.a.input_projection.weight"),
        seen_size=(112, 160),
    ),
    "lightonocr": TowerRow(
        Row(
            "LightOnOcrForConditionalGeneration",
            "qwen3",
            # the architecture that published folders name, by which llama.cpp's converter knows the encoder
            config_of(
                PIXTRAL
                | {"image_size": 280, "patch_size": 14, "architectures": ["LightOnOCRForConditionalGeneration"]},
                model_type="qwen3",
                head_dim=32,
            ),
            weights={"patch_conv.weight": narrow},
        ),
        "lightonocr",
        PIXTRAL_PROCESSOR,
        _LIGHTON_TOKENS,
        {"image_token_id": "<|image_pad|>"},
        plain,
        {"patch_size": {"height": 28, "width": 28}, "size": {"longest_edge": 280}},
        whole_processor="transformers.models.lighton_ocr.processing_lighton_ocr:LightOnOcrProcessor",
        named=dict(zip(("image_token", "image_break_token", "image_end_token"), _LIGHTON_TOKENS, strict=False)),
        seen_size=(224, 280),  # it enlarges smaller ones
        written=("<|im_start|>", "<|im_end|>"),
    ),
    "lfm2": TowerRow(
        Row(
            "Lfm2VlForConditionalGeneration",
            "lfm2",
            config_of(
                SIGLIP | {"model_type": "siglip2_vision_model", "vision_use_head": False},
                model_type="lfm2",
                vocab_size=352,
                layer_types=["conv", "full_attention"],
                block_auto_adjust_ff_dim=False,
            )
            | {"projector_hidden_size": 40},
            weights={"patch_embedding.weight": narrow},
        ),
        "lfm2",
        "tests.towers.tensor_processors:Lfm2VlProcessor",
        _LFM2_TOKENS,
        {"image_token_id": "<image>"},
        _siglip2_patches,
        sizes=(*SIZES, (500, 1100)),
        whole_processor="transformers.models.lfm2_vl.processing_lfm2_vl:Lfm2VlProcessor",
        seen_size=(256, 320),
        published={"model.vision_tower.": "model.vision_tower.vision_model."},
    ),
    "janus": TowerRow(
        Row(
            "JanusForConditionalGeneration",
            "llama",
            config_of(
                SIGLIP | {"image_size": 64, "patch_size": 16, "mlp_ratio": 1.5, "projection_dim": 64},
                model_type="llama",
            )
            | {"vq_config": _VQ, "tie_word_embeddings": False},
            weights={"patch_embedding.weight": narrow},
        ),
        "janus_pro",
        "transformers.models.janus.image_processing_pil_janus:JanusImageProcessorPil",
        ("<image_placeholder>", "<begin_of_image>", "<end_of_image>"),
        {"image_token_id": "<image_placeholder>"},
        plain,
        {"size": {"height": 64, "width": 64}},
        sizes=(*SIZES, (300, 40)),
        whole_processor="transformers.models.janus.processing_janus:JanusProcessor",
        whole_options={"num_image_tokens": 16},
        named={"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"},
        seen_size=(64, 64),
        unseen="<begin_of_image><end_of_image>",
    ),
    "llama4": TowerRow(
        Row(
            "Llama4ForConditionalGeneration",
            "llama4",
            config_of(
                SIGLIP
                | {"image_size": 56, "patch_size": 14, "vision_output_dim": 40}
                # the first layer of the projector reads as many elements as four patches have
                | {"projector_input_dim": 40, "projector_output_dim": 40, "intermediate_size": 128},
                head_dim=24,
                num_hidden_layers=4,
                intermediate_size_mlp=80,
                num_local_experts=4,
                num_experts_per_tok=1,
                interleave_moe_layer_step=2,
                vocab_size=352,
                pad_token_id=0,
                rope_parameters=LLAMA3,
            ),
        ),
        "llama4",
        "tests.towers.tensor_processors:Llama4Processor",
        _LLAMA4_TOKENS,
        {"image_token_index": "<|patch|>", "boi_token_index": "<|image_start|>", "eoi_token_index": "<|image_end|>"},
        _llama4_pixels,
        {"size": {"height": 56, "width": 56}},
        unread=("aspect_ratios",),
        features=_llama4_features,
        sizes=(*SIZES, (60, 60), (40, 20), (600, 700)),
        whole_processor="transformers.models.llama4.processing_llama4:Llama4Processor",
        seen_size=(56, 56),
        seen_bound=2e-2,  # its pixels are not rounded to BF16
        seen_order=(0, 2, 1, 3),  # it writes rows column by column
        unseen="<|image|>",
        # llama.cpp's converter takes the second norm of a block for another one; its reader expects ours
        differing=tuple(
            f"{t} v.blk.{i}.{norm}.{part}"
            for t in ("f32", "f16")
            for i in (0, 1)
            for norm in ("ln2", "attn_post_norm")
            for part in ("weight", "bias")
        ),
    ),
    "minicpmv": TowerRow(
        Row(
            "MiniCPMV4_6ForConditionalGeneration",
            "qwen35",
            _minicpmv(),
            weights=DELTA_WEIGHTS | {"patch_embedding.weight": narrow},
        ),
        "minicpmv4_6",
        "transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6:MiniCPMV4_6ImageProcessorPil",
        _MINICPM_TOKENS,
        {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
        _packed_patches,
        {"scale_resolution": 112},
        unread=("grids", "num_patches_per_image"),
        double=True,  # a head of a recurrent layer is normalised, also where its values nearly cancel
        seen_size=(112, 112),
    ),
    "paddleocr": TowerRow(
        Row(
            "PaddleOCRVLForConditionalGeneration",
            "paddleocr",
            config_of(
                # the architecture that published folders name, by which llama.cpp's converter knows the encoder
                SIGLIP | {"image_size": 84, "patch_size": 14, "architectures": ["PaddleOCRVisionModel"]},
                **QWEN_TEXT,
                head_dim=32,
            ),
            weights={"patch_embedding.weight": narrow},
        ),
        "paddleocr",
        "transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl:PaddleOCRVLImageProcessorPil",
        _PADDLE_TOKENS,
        dict(zip(("image_token_id", "vision_start_token_id", "vision_end_token_id"), _PADDLE_TOKENS, strict=True)),
        _single_patches,
        QWEN_OPTIONS,
        stated=QWEN_OPTIONS,
        typed="mm_token_type_ids",
        sizes=(*SIZES, (20, 70), (90, 9)),
        whole_processor="transformers.models.paddleocr_vl.processing_paddleocr_vl:PaddleOCRVLProcessor",
        named={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        seen_size=(84, 112),
    ),
}
