"""``make_tower_layout``: describe the file of an encoder (mmproj) by its keys, as ``make_layout`` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe import families
from hotshoe.convert._checkpoint import REQUIRED
from hotshoe.convert._json import read_object
from hotshoe.convert._layout import FileLayout
from hotshoe.convert._match import Rules, match_tensors
from hotshoe.convert._schema import checked_model, refuse_unread
from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import Metadata

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
    from hotshoe.media import Medium

__all__ = [
    "audio_keys",
    "expect_of_processor",
    "make_tower_layout",
    "processor_count",
    "processor_edge",
    "read_preprocessor",
    "refuse_other_rope",
    "tower_keys",
]

_ARCHITECTURE = "clip"


def read_preprocessor(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read what a folder says about the processing of pictures. Later files replace what earlier ones say.

    Raises ModelFileError if there is no file that says it, or if it is damaged.
    """
    found: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := checkpoint.model / name).is_file():
            values = read_object(path)
            inner = values.get("image_processor")
            found |= values | (inner if isinstance(inner, dict) else {})
    if not found:
        raise ModelFileError(
            "the file is missing; it says how pictures are processed",
            path=checkpoint.model / "preprocessor_config.json",
            hint="download it from the model's page",
        )
    return found


def processor_count(checkpoint: Checkpoint, processor: Mapping[str, Any], name: str, usual: int | None = None) -> int:
    """Read an integer of at least 1 from what ``read_preprocessor`` returned.

    usual: what a missing value means; None if it must be there. Raises ModelFileError if it is missing or invalid.
    """
    value = processor.get(name)
    value = usual if value is None else value
    if type(value) is not int or not 1 <= value < 2**31:
        raise checkpoint.invalid(name, value, "a whole number of at least 1, in preprocessor_config.json")
    return value


def processor_edge(checkpoint: Checkpoint, processor: Mapping[str, Any], name: str, edge: str) -> Any:
    """Return what the object ``name`` of the settings from ``read_preprocessor`` says of ``edge``; None if nothing.

    Raises ModelFileError if ``name`` is not an object.
    """
    value = processor.get(name)
    if value is not None and not isinstance(value, dict):
        raise checkpoint.invalid(name, value, "an object, in preprocessor_config.json")
    return (value or {}).get(edge)


def expect_of_processor(checkpoint: Checkpoint, processor: Mapping[str, Any], **settings: Any) -> None:
    """Raise ConversionError unless each of these settings from ``read_preprocessor`` has this value, or is missing."""
    for name, value in settings.items():
        if (found := processor.get(name, value)) != value:
            raise checkpoint.refusal(f"{name} is {found!r:.40}; a file cannot say it, and readers assume {value!r}")


def refuse_other_rope(vision: Checkpoint) -> None:
    """Raise ConversionError if the base of an encoder's RoPE is not 10000, or if its frequencies are scaled."""
    rope = vision.config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {"rope_theta": vision.config.get("rope_theta")}
    for name, accepted in (("rope_theta", (None, 10_000)), ("rope_type", (None, "default", "axial"))):
        if (value := rope.get(name)) not in accepted:
            raise vision.refusal(f"{name} is {value!r:.40}; readers of such files take it to be {accepted[1]}")


def tower_keys(
    checkpoint: Checkpoint, vision: Checkpoint, text: Checkpoint | None = None, **names: str
) -> dict[str, Any]:
    """Return the keys that all encoders of pictures have.

    checkpoint: the whole model. vision: what ``Checkpoint.vision`` returned. text: the text model, whose hidden_size is
    the width of a row; None for ``checkpoint.text()``. names: those of settings that differ from those of most models:
    ``layers``, ``dim``, ``ff``, ``heads``, ``image_size``, ``patch_size``.

    Raises ModelFileError if a setting is missing or invalid, in config.json or in the files of the processor.
    """
    usual = {
        "layers": "num_hidden_layers",
        "dim": "hidden_size",
        "ff": "intermediate_size",
        "heads": "num_attention_heads",
        "image_size": "image_size",
        "patch_size": "patch_size",
    }
    usual |= names
    processor = read_preprocessor(checkpoint)
    n_layers = vision.count(usual["layers"], REQUIRED)
    size = vision.integer if n_layers else vision.count  # without layers, there are neither heads nor an MLP
    keys: dict[str, Any] = {
        "vision.projection_dim": (text or checkpoint.text()).integer("hidden_size"),
        "vision.image_size": vision.integer(usual["image_size"]),
        "vision.patch_size": vision.integer(usual["patch_size"]),
        "vision.embedding_length": vision.integer(usual["dim"]),
        "vision.feed_forward_length": size(usual["ff"], REQUIRED),
        "vision.block_count": n_layers,
        "vision.attention.head_count": size(usual["heads"], REQUIRED),
    }
    for name in ("image_mean", "image_std"):
        values = processor.get(name)
        if not isinstance(values, list) or len(values) != 3 or not all(isinstance(v, (int, float)) for v in values):
            raise checkpoint.invalid(name, values, "three numbers, in preprocessor_config.json")
        keys[f"vision.{name}"] = [float(value) for value in values]
    return keys


def audio_keys(text: Checkpoint, audio: Checkpoint) -> dict[str, Any]:
    """Return the keys that all encoders of sounds have.

    text: the text model, whose hidden_size is the width of a row. audio: what ``Checkpoint.audio`` returned; its
    settings have the names of Whisper's config, or those of most models. Raises ModelFileError if a setting is
    missing or invalid.
    """

    def size(*names: str) -> int:
        return audio.integer(next((name for name in names if name in audio.config), names[0]))

    return {
        "audio.projection_dim": text.integer("hidden_size"),
        "audio.embedding_length": size("hidden_size", "d_model"),
        "audio.feed_forward_length": size("intermediate_size", "encoder_ffn_dim"),
        "audio.block_count": size("num_hidden_layers", "encoder_layers"),
        "audio.attention.head_count": size("num_attention_heads", "encoder_attention_heads"),
        "audio.num_mel_bins": audio.integer("num_mel_bins"),
        "audio.attention.layer_norm_epsilon": audio.number("layer_norm_eps", 1e-5),
    }


def make_tower_layout(
    checkpoint: Checkpoint, encoder: Checkpoint, kind: str, keys: Mapping[str, Any], rules: Rules | None = None
) -> FileLayout:
    """Describe the file of an encoder: the given keys, and the tensors that its tower declares.

    checkpoint: the whole model. encoder: from ``Checkpoint.vision`` or ``Checkpoint.audio``. kind: the type of the
    projector, which an entry point in "hotshoe.towers" names. keys: metadata by name, without "clip.";
    "vision.projector_type" or "audio.projector_type" among them takes the place of "projector_type".
    rules: what differs between the checkpoint's tensors and the tower's.

    Raises ConversionError if tensors are missing, unknown, or of another shape, or if a setting of the encoder changes
    the arithmetic and no code has read it; UnknownArchitectureError if no installed distribution has a tower of this
    kind.
    """
    tower_class = families.find(families.TOWERS, kind)
    medium: Medium = tower_class.medium
    metadata: dict[str, Any] = {
        f"clip.has_{medium.section}_encoder": True,
        **({} if f"{medium.section}.projector_type" in keys else {"clip.projector_type": kind}),
        **{f"clip.{key}": value for key, value in keys.items()},
    }
    read = Metadata({"general.architecture": _ARCHITECTURE, **metadata}, {}, Path("the file"))
    for name in ("projector_type", f"{medium.section}.projector_type"):
        read.arch.get(name, kind)
    tower = checked_model(checkpoint, tower_class, read, f"the converter of {kind!r}")
    layout = FileLayout(_ARCHITECTURE, metadata, match_tensors(encoder, tower, rules or Rules(), medium.block))
    refuse_unread(encoder)
    return layout
