"""What transformers and what GGUF call a tensor: one table for all families, and how it is read in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hotshoe_core.errors import similar

__all__ = ["NAMES", "NameTable", "Names", "other_expert", "without_wrappers"]

Names = dict[str, "str | tuple[str, ...]"]
"""Name in transformers, to name in GGUF.

"layers." stands for the names of layers in both: "layers.self_attn.q_proj" is "model.layers.3.self_attn.q_proj" in a
checkpoint, and its value "attn_q" is "blk.3.attn_q" in a file. The numbers of experts are left out too: a file has
their tensors stacked. A row is for the tensors ".weight" and ".bias", or for one with exactly this name. If a row has
several GGUF names, the rows of these tensors follow each other in one tensor of the checkpoint.
"""

NAMES: Names = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "layers.input_layernorm": "attn_norm",
    "layers.post_attention_layernorm": "ffn_norm",
    "layers.pre_feedforward_layernorm": "ffn_norm",
    "layers.post_feedforward_layernorm": "post_ffw_norm",
    "layers.self_attn.q_proj": "attn_q",
    "layers.self_attn.k_proj": "attn_k",
    "layers.self_attn.v_proj": "attn_v",
    "layers.self_attn.qkv_proj": "attn_qkv",
    "layers.self_attn.o_proj": "attn_output",
    "layers.self_attn.out_proj": "attn_output",
    "layers.self_attn.q_norm": "attn_q_norm",
    "layers.self_attn.k_norm": "attn_k_norm",
    "layers.self_attn.q_layernorm": "attn_q_norm",
    "layers.self_attn.k_layernorm": "attn_k_norm",
    # multi-head latent attention
    "layers.self_attn.q_a_proj": "attn_q_a",
    "layers.self_attn.q_a_layernorm": "attn_q_a_norm",
    "layers.self_attn.q_b_proj": "attn_q_b",
    "layers.self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "layers.self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "layers.self_attn.kv_b_proj": ("attn_k_b", "attn_v_b"),
    "layers.mlp.gate_proj": "ffn_gate",
    "layers.mlp.up_proj": "ffn_up",
    "layers.mlp.gate_up_proj": "ffn_up",
    "layers.mlp.down_proj": "ffn_down",
    # experts
    "layers.mlp.gate": "ffn_gate_inp",
    "layers.mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "layers.mlp.e_score_correction_bias": "exp_probs_b.bias",
    "layers.mlp.experts.gate_proj": "ffn_gate_exps",
    "layers.mlp.experts.up_proj": "ffn_up_exps",
    "layers.mlp.experts.down_proj": "ffn_down_exps",
    # Kimi Linear
    "layers.self_attn.q_conv1d": "ssm_conv1d_q",
    "layers.self_attn.k_conv1d": "ssm_conv1d_k",
    "layers.self_attn.v_conv1d": "ssm_conv1d_v",
    "layers.self_attn.b_proj": "ssm_beta",
    "layers.self_attn.f_a_proj": "ssm_f_a",
    "layers.self_attn.f_b_proj": "ssm_f_b",
    "layers.self_attn.g_a_proj": "ssm_g_a",
    "layers.self_attn.g_b_proj": "ssm_g_b",
    "layers.self_attn.dt_bias": "ssm_dt.bias",
    "layers.self_attn.A_log": "ssm_a",
    "layers.self_attn.o_norm": "ssm_norm",
    "layers.block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
    "layers.block_sparse_moe.shared_experts.gate_proj": "ffn_gate_shexp",
    "layers.block_sparse_moe.shared_experts.up_proj": "ffn_up_shexp",
    "layers.block_sparse_moe.shared_experts.down_proj": "ffn_down_shexp",
    # GLM-4, Phi
    "layers.post_self_attn_layernorm": "post_attention_norm",
    "layers.post_mlp_layernorm": "post_ffw_norm",
    "layers.self_attn.dense": "attn_output",
    "layers.mlp.fc1": "ffn_up",
    "layers.mlp.fc2": "ffn_down",
    "model.final_layernorm": "output_norm",
    # Gemma 4
    "layers.post_feedforward_layernorm_1": "post_ffw_norm_1",
    "layers.post_feedforward_layernorm_2": "post_ffw_norm_2",
    "layers.pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "layers.router.proj": "ffn_gate_inp",
    "layers.router.scale": "ffn_gate_inp.scale",
    "layers.router.per_expert_scale": "ffn_down_exps.scale",
    "layers.experts.gate_up_proj": "ffn_gate_up_exps",
    "layers.experts.down_proj": "ffn_down_exps",
    "layers.layer_scalar": "layer_output_scale",
    "layers.per_layer_input_gate": "inp_gate",
    "layers.per_layer_projection": "proj",
    "layers.post_per_layer_input_norm": "post_norm",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    # Gemma 3n
    "model.altup_projections": "altup_proj",
    "model.altup_unembed_projections": "altup_unembd_proj",
    "layers.altup.correct_output_scale": "altup_correct_scale",
    "layers.altup.correction_coefs": "altup_correct_coef",
    "layers.altup.prediction_coefs": "altup_predict_coef",
    "layers.altup.modality_router": "altup_router",
    "layers.altup.router_norm": "altup_router_norm",
    "layers.laurel.linear_left": "laurel_l",
    "layers.laurel.linear_right": "laurel_r",
    "layers.laurel.post_laurel_norm": "laurel_post_norm",
    # as transformers 5 has experts in memory: all in one tensor
    "layers.mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "layers.mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "layers.mlp.shared_experts.up_proj": "ffn_up_shexp",
    "layers.mlp.shared_experts.down_proj": "ffn_down_shexp",
    "layers.mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "layers.mlp.shared_expert.up_proj": "ffn_up_shexp",
    "layers.mlp.shared_expert.down_proj": "ffn_down_shexp",
    "layers.mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "layers.block_sparse_moe.gate": "ffn_gate_inp",
    "layers.block_sparse_moe.experts.w1": "ffn_gate_exps",
    "layers.block_sparse_moe.experts.w3": "ffn_up_exps",
    "layers.block_sparse_moe.experts.w2": "ffn_down_exps",
    # short convolutions
    "layers.operator_norm": "attn_norm",
    "layers.ffn_norm": "ffn_norm",
    "layers.conv.in_proj": "shortconv.in_proj",
    "layers.conv.conv": "shortconv.conv",
    "layers.conv.out_proj": "shortconv.out_proj",
    "layers.feed_forward.w1": "ffn_gate",
    "layers.feed_forward.w3": "ffn_up",
    "layers.feed_forward.w2": "ffn_down",
    # state spaces
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "layers.norm": "attn_norm",
    "layers.mixer.in_proj": "ssm_in",
    "layers.mixer.conv1d": "ssm_conv1d",
    "layers.mixer.dt_bias": "ssm_dt.bias",
    "layers.mixer.A_log": "ssm_a",
    "layers.mixer.D": "ssm_d",
    "layers.mixer.norm": "ssm_norm",
    "layers.mixer.out_proj": "ssm_out",
    "layers.mixer.x_proj": "ssm_x",
    "layers.mixer.dt_proj": "ssm_dt",
    "layers.mixer.q_proj": "attn_q",
    "layers.mixer.k_proj": "attn_k",
    "layers.mixer.v_proj": "attn_v",
    "layers.mixer.o_proj": "attn_output",
    "layers.mixer.up_proj": "ffn_up",
    "layers.mixer.down_proj": "ffn_down",
    "layers.mixer.gate": "ffn_gate_inp",
    "layers.mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "layers.mixer.experts.up_proj": "ffn_up_exps",
    "layers.mixer.experts.down_proj": "ffn_down_exps",
    "layers.mixer.shared_experts.up_proj": "ffn_up_shexp",
    "layers.mixer.shared_experts.down_proj": "ffn_down_shexp",
    "layers.mixer.fc1_latent_proj": "ffn_latent_down",
    "layers.mixer.fc2_latent_proj": "ffn_latent_up",
    "layers.mamba.in_proj": "ssm_in",
    "layers.mamba.conv1d": "ssm_conv1d",
    "layers.mamba.dt_bias": "ssm_dt.bias",
    "layers.mamba.A_log": "ssm_a",
    "layers.mamba.D": "ssm_d",
    "layers.mamba.norm": "ssm_norm",
    "layers.mamba.out_proj": "ssm_out",
    "layers.pre_ff_layernorm.weight": "ffn_norm",
    "layers.feed_forward.router": "ffn_gate_inp",
    "layers.feed_forward.experts.gate_proj": "ffn_gate_exps",
    "layers.feed_forward.experts.up_proj": "ffn_up_exps",
    "layers.feed_forward.experts.down_proj": "ffn_down_exps",
    "layers.feed_forward.gate_proj": "ffn_gate",
    "layers.feed_forward.up_proj": "ffn_up",
    "layers.feed_forward.down_proj": "ffn_down",
    # gated delta nets
    "layers.linear_attn.in_proj_qkv": "attn_qkv",
    "layers.linear_attn.in_proj_z": "attn_gate",
    "layers.linear_attn.in_proj_a": "ssm_alpha",
    "layers.linear_attn.in_proj_b": "ssm_beta",
    "layers.linear_attn.in_proj_ba": "ssm_ba",
    "layers.linear_attn.conv1d": "ssm_conv1d",
    "layers.linear_attn.dt_bias": "ssm_dt.bias",
    "layers.linear_attn.A_log": "ssm_a",
    "layers.linear_attn.norm": "ssm_norm",
    "layers.linear_attn.out_proj": "ssm_out",
    # BERT
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "layers.attention.self.query": "attn_q",
    "layers.attention.self.key": "attn_k",
    "layers.attention.self.value": "attn_v",
    "layers.attention.output.dense": "attn_output",
    "layers.attention.output.LayerNorm": "attn_output_norm",
    "layers.intermediate.dense": "ffn_up",
    "layers.output.dense": "ffn_down",
    "layers.output.LayerNorm": "layer_output_norm",
    "pooler.dense": "cls",
    # Nomic Embed and ModernBERT
    "emb_ln": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    "layers.attn_norm": "attn_norm",
    "layers.mlp_norm": "ffn_norm",
    "layers.attn.Wqkv": "attn_qkv",
    "layers.attn.Wo": "attn_output",
    "layers.attn.out_proj": "attn_output",
    "layers.norm1": "attn_output_norm",
    "layers.norm2": "layer_output_norm",
    "layers.mlp.Wi": "ffn_up",
    "layers.mlp.Wo": "ffn_down",
    "layers.mlp.fc11": "ffn_up",
    "layers.mlp.fc12": "ffn_gate",
    "layers.mlp.router.layer": "ffn_gate_inp",
    "layers.mlp.experts.mlp.w1": "ffn_up_exps",
    "layers.mlp.experts.mlp.w2": "ffn_down_exps",
    # GPT-2, StarCoder
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "layers.ln_1": "attn_norm",
    "layers.ln_2": "ffn_norm",
    "layers.attn.c_attn": "attn_qkv",
    "layers.attn.c_proj": "attn_output",
    "layers.mlp.c_fc": "ffn_up",
    "layers.mlp.c_proj": "ffn_down",
    # GPT-NeoX, BLOOM, Falcon
    "embed_in": "token_embd",
    "embed_out": "output",
    "final_layer_norm": "output_norm",
    "word_embeddings": "token_embd",
    "word_embeddings_layernorm": "token_embd_norm",
    "layers.attention.query_key_value": "attn_qkv",
    "layers.attention.dense": "attn_output",
    "layers.self_attention.query_key_value": "attn_qkv",
    "layers.self_attention.dense": "attn_output",
    "layers.mlp.dense_h_to_4h": "ffn_up",
    "layers.mlp.dense_4h_to_h": "ffn_down",
    "2_Dense.linear": "dense_2",
    "3_Dense.linear": "dense_3",
    "classifier": "cls.output",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}


# modules around the whole model; checkpoints of the same model have them or not
_WRAPPERS = re.compile(r"(?:(?:model|language_model|gpt_neox|transformer|backbone|bert|roberta|encoder)\.)*")
_LAYER = re.compile(r"(?:layers?|h|blocks?)\.(\d{1,9})\.")
_BEFORE_NUMBER = re.compile(r"(?:[\w.]*?layers?|(?:[\w.]*\.)?(?:h|blocks?))\.(?=\d)")
_EXPERT = re.compile(r"(?:(?<=\.experts)|(?<=altup_projections)|(?<=unembed_projections))\.(\d{1,9})(?=\.)")
_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}  # gamma, beta: ported from TensorFlow


class _Plain(NamedTuple):
    """A name in a checkpoint, taken apart."""

    layer: str
    """The number, or ""."""
    name: str
    """Without the number of the layer and of the expert, and with "layers." before names of layers."""
    expert: int
    """-1 if the tensor does not belong to one expert."""


class NameTable:
    """NAMES for one checkpoint, with rows of a family that add to it or replace its rows."""

    def __init__(self, more: Mapping[str, str | tuple[str, ...]], sources: Iterable[str], block: str = "blk.") -> None:
        self._block = block
        self._added = tuple(more)
        own = {without_wrappers(name) for name in more}
        rows = dict(more) | {name: row for name, row in NAMES.items() if without_wrappers(name) not in own}
        self._rows = {without_wrappers(n): (n, (row,) if isinstance(row, str) else row) for n, row in rows.items()}
        self._sources = {source: _parse(source) for source in sources}
        self._present = {plain.name for plain in self._sources.values()}

    def unused(self) -> list[str]:
        """The rows of the family that no tensor of the checkpoint has."""
        stems = {name.rpartition(".")[0] for name in self._present}
        return [name for name in self._added if without_wrappers(name) not in self._present | stems]

    def in_file(self, source: str) -> tuple[list[str], int]:
        """What a tensor of the checkpoint may be called in the file, and the number of its expert, or -1."""
        layer, name, expert = self._sources[source]
        block = f"{self._block}{layer}." if layer else ""
        stem, _, kind = name.rpartition(".")
        if name in self._rows:
            return [f"{block}{row}{end}" for row in self._rows[name][1] for end in ("", ".weight")], expert
        if stem in self._rows and kind in _KINDS:
            return [f"{block}{row}.{_KINDS[kind]}" for row in self._rows[stem][1]], expert
        return [], expert

    def in_checkpoint(self, targets: Iterable[str], layer: str) -> str:
        """What a tensor that the checkpoint lacks would be called there, judged by those that it has.

        targets: what it may be called in the file, without "blk.N.". layer: the number N, or "".
        """
        names = []
        for name, row in self._rows.values():
            for target in targets:
                stem, dot, kind = target.rpartition(".")
                if name.startswith("layers.") == bool(layer) and (target in row or stem in row):
                    names.append(name if target in row else f"{name}{dot}{kind}")
        if not names:
            stems = {target.removesuffix(".weight").removesuffix(".bias") for target in targets}
            known = {target for _, row in self._rows.values() for target in row}
            near = next((close for stem in sorted(stems) if (close := similar(stem, known))), None)
            guess = f" (did you mean {near!r}?)" if near else ""
            return f"{' or '.join(targets)} of the model, for which no name in checkpoints is known{guess}"
        name = max(names, key=self._likeness)
        start = next((found[0] for source in self._sources if (found := _BEFORE_NUMBER.match(source))), "model.layers.")
        return f"{start}{layer}.{name.removeprefix('layers.')}" if layer else name

    def _likeness(self, name: str) -> tuple[bool, int]:
        """How well a name fits those of the checkpoint: if another layer has it, or the same parent module."""
        stem = name.rpartition(".")[0]
        parent = stem.rpartition(".")[0]
        known = name in self._present or any(f"{stem}.{kind}" in self._present for kind in _KINDS)
        others = (*self._sources, *self._present)
        return known, len(parent) if any(f"{parent}." in other for other in others) else 0


def _parse(source: str) -> _Plain:
    layer, name, expert = "", without_wrappers(source), -1
    if found := _LAYER.match(name):
        layer, name = str(int(found[1])), f"layers.{name[found.end() :]}"
    if found := _EXPERT.search(name):
        expert, name = int(found[1]), name[: found.start()] + name[found.end() :]
    return _Plain(layer, name, expert)


def without_wrappers(name: str) -> str:
    """A name in a checkpoint without the modules around the whole model."""
    return _WRAPPERS.sub("", name, count=1)


def other_expert(source: str, number: int) -> str:
    """The name of the same tensor of another expert."""
    return _EXPERT.sub(f".{number}", source)
