"""Checkpoint: a Hugging Face folder. JSON files are checked when they are read; tensors are read on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.convert._blocks import Scaled, join_scales
from hotshoe.convert._json import read_object
from hotshoe.convert._safetensors import StoredTensor, read_header, read_tensor
from hotshoe.convert._sentence import SentenceModules, read_sentence_modules
from hotshoe.convert._settings import Settings
from hotshoe_core.errors import ConversionError, ModelFileError
from hotshoe_core.errors.arguments import file_path

if TYPE_CHECKING:
    import numpy as np

__all__ = ["REQUIRED", "Checkpoint", "open_checkpoint", "open_weights"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_DEPTH = 32  # of config.json; those of published models have fewer than 8
# how the names of tensors begin that are not the text model's, perhaps after "model."
_OTHER_PARTS = (
    *("vision_", "visual.", "audio_", "embed_vision.", "embed_audio."),  # encoders
    *("multi_modal_projector.", "projector.", "connector.", "aligner.", "merger.", "mlp1.", "mlp_AR."),
    *("vqmodel.", "generation_"),  # what draws pictures
)
REQUIRED = object()  # the default of settings that have none


@dataclass(frozen=True)
class Checkpoint:
    """A Hugging Face folder, or a part of the model in it."""

    folder: Path
    """The folder that the user named."""
    model: Path
    """The folder with config.json: ``folder``, or a folder inside it."""
    config: Settings = field(repr=False)
    """The content of config.json, which remembers what was read."""
    tensors: dict[str, StoredTensor] = field(repr=False)
    sentence: SentenceModules
    """What the files of sentence-transformers say."""

    @property
    def architecture(self) -> str | None:
        """``architectures[0]`` of config.json, or None."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    @property
    def text_settings(self) -> Settings:
        """What ``text_config`` or ``llm_config`` of config.json holds; empty if it has neither.

        Raises ModelFileError unless it is an object.
        """
        key = "llm_config" if "llm_config" in self.config else "text_config"
        inner = self.config.get(key)
        if inner is not None and not isinstance(inner, Settings):
            raise self.invalid(key, inner, "an object")
        return Settings({}) if inner is None else inner

    def text(self) -> Checkpoint:
        """The text model of a checkpoint that may also read pictures or sounds: its settings, and its tensors.

        Settings that ``text_config`` or ``llm_config`` holds replace those of the whole model, except
        ``architectures``. Left out are tensors whose names begin, perhaps after "model.", as other parts do:
        "vision_", "visual.", "audio_", "multi_modal_projector." and some more. Names stay as they are. Raises
        ModelFileError as ``text_settings`` does.
        """
        config = Settings(self.config | self.text_settings | {"architectures": self.config.get("architectures")})
        others = tuple(start + part for start in ("", "model.") for part in _OTHER_PARTS)
        tensors = {name: tensor for name, tensor in self.tensors.items() if not name.startswith(others)}
        return replace(self, config=config, tensors=tensors)

    def part(self, key: str) -> Checkpoint:
        """The checkpoint with the settings that ``key`` holds. Raises ModelFileError unless it is an object."""
        inner = self.config.get(key)
        if not isinstance(inner, Settings):
            raise self.invalid(key, inner, "an object")
        return replace(self, config=inner)

    def renamed(self, **names: str) -> Checkpoint:
        """The checkpoint with other names for keys of config.json: ``hidden_size="n_embd"`` for n_embd."""
        return replace(self, config=self.config.renamed(names))

    def vision(self, *prefixes: str) -> Checkpoint:
        """The encoder of pictures: what ``vision_config`` says, and the tensors whose names begin with a prefix.

        Their names are without the first prefix that fits. Raises ModelFileError if config.json has no
        ``vision_config``.
        """
        return self._encoder("vision_config", "the encoder of pictures", prefixes)

    def audio(self, *prefixes: str) -> Checkpoint:
        """The encoder of sounds, as ``vision`` returns that of pictures: what ``audio_config`` says, and its tensors.

        Raises ModelFileError if config.json has no ``audio_config``.
        """
        return self._encoder("audio_config", "the encoder of sounds", prefixes)

    def _encoder(self, key: str, what: str, prefixes: tuple[str, ...]) -> Checkpoint:
        inner = self.config.get(key)
        if not isinstance(inner, dict):
            raise self.invalid(key, inner, f"an object: {what}")
        starts = ((name, next(filter(name.startswith, prefixes), None)) for name in self.tensors)
        tensors = {name.removeprefix(start): self.tensors[name] for name, start in starts if start is not None}
        return replace(self, config=Settings(dict(inner)), tensors=tensors)

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        """Read an integer of at least 1 from config.json. Raises ModelFileError if it is missing or invalid."""
        value = self.config.get(key)
        if value is None and default is not REQUIRED:
            return int(default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**32:
            raise self.invalid(key, value, "a whole number of at least 1")
        return value

    def count(self, key: str, default: Any = 0) -> int:
        """Read an integer of at least 0 from config.json. Raises ModelFileError if it is invalid.

        default: REQUIRED to raise ModelFileError, too, if it is missing.
        """
        value = self.config.get(key)
        return 0 if value == 0 else self.integer(key, default)

    def kinds(self, key: str, n: int, known: Sequence[Any], default: list[Any] | None = None) -> list[Any]:
        """Read the kinds of ``n`` layers. Raises ModelFileError unless config.json has a list of known ones."""
        kinds = self.config.get(key)
        kinds = default if kinds is None else kinds
        if not isinstance(kinds, list) or len(kinds) != n or not all(kind in known for kind in kinds):
            raise self.invalid(key, kinds, f"a list of {n}, each {' or '.join(map(str, known))}")
        return kinds

    def leading(self, key: str, n: int, first: str, rest: str) -> int:
        """Count the ``first`` at the start of a list of ``n`` in config.json; 1 if it is missing, as in most models.

        Raises ModelFileError unless ``rest`` follows for all others.
        """
        kinds = self.config.get(key) or [first, *[rest] * (n - 1)]
        n_first = kinds.count(first) if isinstance(kinds, list) else 0
        if kinds != [first] * n_first + [rest] * (n - n_first):
            raise self.invalid(key, kinds, f"a list of {n}: {first!r} for the first layers, then {rest!r}")
        return n_first

    def drafting(self, key: str, n_layers: int) -> tuple[str, ...]:
        """Starts of the names of layers after the last one, which only draft tokens. ``key``: how many there are."""
        return tuple(f"layers.{n_layers + i}." for i in range(min(self.count(key), len(self.tensors))))

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """Read a number in the range of float32 from config.json. Raises ModelFileError if it is missing or invalid."""
        value = self.config.get(key)
        if value is None and default is not REQUIRED:
            return float(default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 3e38:
            raise self.invalid(key, value, "a number")
        return float(value)

    def layers(self) -> int:
        """Read num_hidden_layers.

        Raises ConversionError if it is larger than the number of tensors, before a loop over a huge number starts.
        """
        n = self.integer("num_hidden_layers")
        if n > len(self.tensors):
            raise self.refusal(
                f"num_hidden_layers is {n}, but the checkpoint has only {len(self.tensors)} tensors",
                hint="check that the weights belong to this config.json, and that no file is missing",
            )
        return n

    def require(self, key: str, default: Any, *accepted: Any) -> None:
        """Raise ConversionError unless the value of ``key`` is one of ``accepted``, or missing and ``default`` is.

        For options of a model that the converted model does not implement. ``expect`` is for those with one value.
        """
        value = self.config.get(key)
        value = default if value is None else value
        if value is not None and value not in accepted:
            raise self.refusal(f"{key} is {value!r}; hotshoe converts models with {' or '.join(map(repr, accepted))}")

    def expect(self, **settings: Any) -> None:
        """Raise ConversionError unless each setting of config.json has the given value, or is missing."""
        for key, value in settings.items():
            self.require(key, value, value)

    def biases(self, **names: Sequence[str]) -> list[str]:
        """The biases that config.json says the model has: for each key that is true there, those of the given names."""
        return [f"{name}.bias" for key in names if self.config.get(key) is True for name in names[key]]

    def read(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Read the values of a tensor as float32."""
        tensor = self.tensors[name]
        return tensor.read() if isinstance(tensor, Scaled) else read_tensor(tensor)

    def read_blocks(self, name: str) -> np.ndarray[Any, Any]:
        """Read the blocks of a tensor whose type GGUF has too: (..., rows, bytes of a row)."""
        tensor = self.tensors[name]
        assert isinstance(tensor, Scaled)
        return tensor.read_blocks()

    def invalid(self, key: str, value: Any, expected: str) -> ModelFileError:
        """An error about the value of a key in config.json. The caller raises it."""
        long = isinstance(value, list) and len(value) > 8
        got = "missing" if value is None else f"a list of {len(value)}" if long else repr(value)[:80]
        return ModelFileError(f"{got}; expected {expected}", path=self.model / "config.json", field=key)

    def refusal(self, message: str, hint: str | None = None) -> ConversionError:
        """An error about a config.json that a GGUF file or hotshoe cannot express. The caller raises it."""
        return ConversionError(f"{self.model / 'config.json'}: {message}", hint=hint)


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a Hugging Face folder.

    Raises ModelFileError if ``source`` is not a folder with a config.json and safetensors; ConversionError if its
    weights are in another format.
    """
    folder = file_path("the folder of a model", source, ModelFileError)
    if folder.is_file() and folder.suffix == ".gguf":
        raise ModelFileError(
            "this is a GGUF file already", path=folder, hint=f"to change its type: hotshoe quantize {folder}"
        )
    if folder.is_file():
        raise ModelFileError(
            "is a file; expected the folder with config.json and model.safetensors",
            path=folder,
            hint=f"pass the folder: {folder.parent}",
        )
    if not folder.is_dir():
        raise ModelFileError(
            "the folder does not exist",
            path=folder,
            hint=f"for a model on the Hugging Face hub, download it first: hf download {source} --local-dir FOLDER",
        )
    sentence = read_sentence_modules(folder)
    model = folder / sentence.transformer
    if not (model / "config.json").is_file():
        found = ", ".join(sorted(p.name for p in model.iterdir())[:8]) if model.is_dir() else ""
        raise ModelFileError(
            f"has no config.json, so it is not a Hugging Face model; it holds: {found or 'nothing'}",
            path=model,
            hint="pass the folder that contains config.json and model.safetensors",
        )
    config = _read_settings(model / "config.json")
    tensors = join_scales(_index(model), config)
    for part in sentence.dense:
        tensors |= {f"{part}.{name}": tensor for name, tensor in _index(folder / part).items()}
    return Checkpoint(folder, model, config, tensors, sentence)


def open_weights(file: Path) -> Checkpoint:
    """Open one safetensors file, with the config.json in its folder, or with an empty config.

    Raises ModelFileError if a file is missing or damaged.
    """
    folder = file.parent
    config = _read_settings(folder / "config.json") if (folder / "config.json").is_file() else Settings({})
    return Checkpoint(file, folder, config, join_scales(read_header(file), config), read_sentence_modules(folder))


def _read_settings(path: Path) -> Settings:
    values = read_object(path)
    inner: list[Any] = [values]
    for _ in range(_MAX_DEPTH):
        inner = [v for each in inner for v in (each.values() if isinstance(each, dict) else each)]
        inner = [v for v in inner if isinstance(v, (dict, list))]
    if inner:
        raise ModelFileError(f"values are nested deeper than {_MAX_DEPTH}", path=path, hint="download the file again")
    return Settings(values)


def _index(model: Path) -> dict[str, StoredTensor]:
    if (model / _SINGLE).is_file():
        return read_header(model / _SINGLE)
    if not (model / _INDEX).is_file():
        _raise_no_weights(model)
    files = read_object(model / _INDEX).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(v, str) and Path(v).name == v for v in files.values()):
        raise ModelFileError("expected an object of file names", path=model / _INDEX, field="weight_map")
    found: dict[str, StoredTensor] = {}
    for file in sorted(set(files.values())):
        if not (model / file).is_file():
            raise ModelFileError(
                f"the file is missing; {_INDEX} names it", path=model / file, hint="download the missing file"
            )
        found.update((n, t) for n, t in read_header(model / file).items() if files.get(n) == file)
    missing = sorted(files.keys() - found.keys())
    if missing:
        raise ModelFileError(
            f"{_INDEX} names tensors that its files do not contain: {', '.join(missing[:5])}", path=model / _INDEX
        )
    return found


def _raise_no_weights(model: Path) -> None:
    others = sorted(
        p.name for p in model.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf"}
    )
    if not others:
        raise ModelFileError(f"has no {_SINGLE} and no {_INDEX}", path=model, hint="download the model's weights")
    if others[0].endswith(".gguf"):
        raise ModelFileError(f"has no {_SINGLE}; {others[0]} is converted already", path=model)
    raise ConversionError(
        f"the weights of {model} are in {others[0]}; hotshoe reads only safetensors, "
        "because reading a pickle can run code",
        hint="if you trust the file, rewrite it with transformers: "
        f"AutoModel.from_pretrained({str(model)!r}).save_pretrained({str(model)!r})",
    )
