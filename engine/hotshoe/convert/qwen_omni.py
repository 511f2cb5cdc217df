"""Convert the text model of Qwen2.5-Omni. What makes speech is left out."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import Checkpoint, FileLayout, Settings, qwen2vl

__all__ = ["describe", "thinker"]


def thinker(checkpoint: Checkpoint) -> Checkpoint:
    """The part of the model that reads and writes texts. The others make speech."""
    inner = checkpoint.config.get("thinker_config")
    if not isinstance(inner, dict):
        raise checkpoint.invalid("thinker_config", inner, "an object")
    start = "thinker."
    tensors = {n.removeprefix(start): t for n, t in checkpoint.tensors.items() if n.startswith(start)}
    config = Settings(inner | {"architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"]})
    return replace(checkpoint, config=config, tensors=tensors)


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return qwen2vl.describe(thinker(checkpoint))
