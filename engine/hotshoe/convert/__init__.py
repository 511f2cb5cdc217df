"""Hugging Face folders to GGUF files: ``convert(folder, "model-f16.gguf", "f16")``.

A family of models is one module here with a function ``plan(checkpoint) -> Plan``: which tensors the file holds,
of which shape, from which tensor of the checkpoint, and which metadata. Reading, element types, writing and the
errors they share are done once, in ``_safetensors``, ``_checkpoint`` and ``_write``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
    from hotshoe.convert._plan import Plan

__all__ = ["DTYPES", "convert"]

DTYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")

# ``architectures[0]`` of config.json, and ``model_type`` where a folder states no architecture
_BERT = "hotshoe.convert.bert"
_FAMILIES = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForPreTraining": _BERT,
    "BertForSequenceClassification": f"{_BERT}:plan_reranker",
    "Gemma3ForCausalLM": "hotshoe.convert.gemma3",
    "LlamaForCausalLM": "hotshoe.convert.llama",
    "MistralForCausalLM": "hotshoe.convert.llama",
    "MixtralForCausalLM": "hotshoe.convert.mixtral",
    "Phi3ForCausalLM": "hotshoe.convert.phi3",
    "Qwen2ForCausalLM": "hotshoe.convert.qwen2",
    "Qwen3ForCausalLM": "hotshoe.convert.qwen3",
    "Qwen3Model": "hotshoe.convert.qwen3",
    "Qwen3MoeForCausalLM": "hotshoe.convert.qwen3moe",
}
_MODEL_TYPES = {
    "bert": "BertModel",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def convert(
    source: str | Path,
    destination: str | Path,
    dtype: str = "f16",
    *,
    progress: Callable[[float], None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the model in the folder ``source`` to the GGUF file ``destination`` and returns its path.

    ``dtype`` is the element type of the large weights: "f32", "f16", "bf16", "q8_0" or "q4_0" (with
    it, the matrix that gives the logits is q8_0). Vectors, norms, expert routers, and position and token-type
    embeddings stay f32, as llama.cpp's converter leaves them. ``progress`` is called with a fraction from
    0 to 1. The file appears under its name only when it is complete; until then nothing by that name is touched.

    Raises ModelFileError for a folder or file that is not what it should be, UnknownArchitectureError for a
    model that hotshoe cannot convert, ConversionError for a checkpoint or request that cannot be met.
    """
    from hotshoe.convert._checkpoint import open_checkpoint
    from hotshoe.convert._write import check_request, write

    target, element = check_request(destination, dtype, overwrite)
    checkpoint = open_checkpoint(source)
    plan = _family(checkpoint)(checkpoint)
    write(plan, checkpoint, target, element, progress)
    return target


def _family(checkpoint: Checkpoint) -> Callable[[Checkpoint], Plan]:
    import importlib

    from hotshoe_core.errors import UnknownArchitectureError, did_you_mean

    name = checkpoint.architecture or _MODEL_TYPES.get(str(checkpoint.config.get("model_type")))
    if name not in _FAMILIES:
        what = f"a {name}" if name else "a model of no architecture that config.json names"
        raise UnknownArchitectureError(
            f"{checkpoint.folder} holds {what}, which hotshoe cannot convert; "
            f"it converts: {', '.join(sorted(_FAMILIES))}",
            hint=did_you_mean(str(name), _FAMILIES),
        )
    module, _, attribute = _FAMILIES[name].partition(":")
    plan: Callable[[Checkpoint], Plan] = getattr(importlib.import_module(module), attribute or "plan")
    return plan
