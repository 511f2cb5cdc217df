"""Convert Whisper's encoder of sounds, in Ultravox, Voxtral and Qwen2-Audio."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, audio_keys, make_tower_layout
from hotshoe.convert.qwen2_audio import text_model

__all__ = ["WHISPER_BIASES", "WHISPER_NAMES", "describe_qwen2_audio", "describe_ultravox", "describe_voxtral"]

_STARTS = ("model.audio_tower.", "audio_tower.", "model.multi_modal_projector.", "multi_modal_projector.")
WHISPER_NAMES: Names = {
    "conv1": "a.conv1d.1",
    "conv2": "a.conv1d.2",
    "embed_positions": "a.position_embd",
    "layer_norm": "a.post_ln",
    "layers.self_attn_layer_norm": "ln1",
    "layers.self_attn.out_proj": "attn_out",
    "layers.final_layer_norm": "ln2",
    "layers.fc1": "ffn_up",
    "layers.fc2": "ffn_down",
}
WHISPER_BIASES = [
    f"{name}.bias" for name in ("a.post_ln", "ln1", "attn_q", "attn_v", "attn_out", "ln2", "ffn_up", "ffn_down")
]


def describe_voxtral(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Voxtral. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot
    express it.
    """
    audio = checkpoint.audio(*_STARTS)
    checkpoint.expect(projector_hidden_act="gelu")
    stack, rest = divmod(audio.integer("intermediate_size"), audio.integer("hidden_size"))
    if rest or stack != 4:
        raise audio.refusal("intermediate_size is not 4 times hidden_size; readers of such files take it to be")
    names: Names = {"linear_1": "mm.a.mlp.1", "linear_2": "mm.a.mlp.2"}
    return _describe(checkpoint, checkpoint.text(), audio, "voxtral", {"audio.projector.stack_factor": stack}, names)


def describe_qwen2_audio(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Qwen2-Audio. Raises as ``describe_voxtral`` does."""
    text, audio = text_model(checkpoint), checkpoint.audio(*_STARTS)
    return _describe(checkpoint, text, audio, "qwen2a", {}, {"linear": "mm.a.fc"}, ("mm.a.fc.bias",))


def describe_ultravox(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Ultravox. Raises as ``describe_voxtral`` does."""
    audio = checkpoint.audio(*_STARTS)
    checkpoint.expect(projector_act="swiglu")
    checkpoint.require("projector_ln_mid", False, True)
    last = audio.tensors.get("linear_2.weight")
    if last is None:
        raise checkpoint.refusal("the checkpoint has no tensor multi_modal_projector.linear_2.weight")
    more = {
        "audio.projector.stack_factor": checkpoint.integer("stack_factor", 8),
        "audio.projection_dim": last.shape[0],  # config.json may not say how wide the text model is
    }
    names: Names = {
        "ln_pre": "mm.a.norm_pre",
        "linear_1": "mm.a.mlp.1",
        "ln_mid": "mm.a.norm_mid",
        "linear_2": "mm.a.mlp.2",
    }
    return _describe(checkpoint, checkpoint.text(), audio, "ultravox", more, names)


def _describe(
    checkpoint: Checkpoint,
    text: Checkpoint,
    audio: Checkpoint,
    kind: str,
    more: dict[str, Any],
    names: Names,
    biases: tuple[str, ...] = (),
) -> FileLayout:
    audio.expect(activation_function="gelu", scale_embedding=False, max_source_positions=1500)
    keys = audio_keys(text, audio) | more
    rules = Rules(names=WHISPER_NAMES | names, required=[*WHISPER_BIASES, *biases])
    return make_tower_layout(checkpoint, audio, kind, keys, rules)
