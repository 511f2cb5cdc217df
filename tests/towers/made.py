"""MadeTower: the files of a row, models loaded from them, and what transformers computes."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

import hotshoe
from hotshoe.convert import convert
from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe.runner.media_encoder import MediaEncoder
from hotshoe.runner.text import TextModel
from tests.families.row import oracle_class
from tests.towers.row import TowerRow, found, make_tower_folder, picture

__all__ = ["MadeTower", "assert_close"]

Array = np.ndarray[Any, Any]


def assert_close(ours: Array, theirs: Array, bound: float) -> None:
    """bound: the largest error, as a part of the largest value."""
    assert ours.shape == theirs.shape
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error <= bound


def _in_double(oracle: Any) -> Any:
    """The model in f64. Where transformers computes in f32 whatever the model's type is, that part stays in f32."""
    import torch

    def cast(given: Any) -> Any:
        return given.double() if torch.is_tensor(given) and given.is_floating_point() else given

    def cast_inputs(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return tuple(map(cast, args)), {name: cast(value) for name, value in named.items()}

    for module in oracle.modules():
        module.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    return oracle.double()


class MadeTower:
    """A row with its files. Models stay loaded until ``close``."""

    n_ctx = 256

    def __init__(self, name: str, row: TowerRow, folder: Path, bound: float = 0.0) -> None:
        """bound: the error that is allowed in any case, as a part of the largest value."""
        self.name, self.row, self.bound, self.least_bound = name, row, max(row.bound, bound), bound
        self.folder = make_tower_folder(row, folder / "hf")
        self.published = self.folder if row.nest is None else row.nest(self.folder, folder / "published")
        self.path = convert(self._text_folder(folder), folder / "model.gguf", "f32")
        self._loaded: dict[str, TextModel] = {}

    def _text_folder(self, folder: Path) -> Path:
        if not self.row.apart:
            return self.published
        getattr(self.oracle, self.row.apart).save_pretrained(folder / "text")
        for path in self.folder.glob("token*"):
            shutil.copy(path, folder / "text")
        return folder / "text"

    def file(self, kind: str = "f32") -> Path:
        """The file of the encoder, next to the model's, so that it is found there."""
        path = self.path.with_name(f"mmproj-{kind}.gguf")
        if not path.exists():
            convert(self.published, path, kind, projector=True)
        return path

    def load(self, device: str) -> TextModel:
        if device not in self._loaded:
            self.file()
            self._loaded[device] = hotshoe.load_model(
                self.path, device, task="text", n_ctx=self.n_ctx, kv_dtype="f32", projector=self.file()
            )
        return self._loaded[device]

    def encoder(self, model: TextModel) -> MediaEncoder:
        found = model.images or model.audio
        assert found is not None
        return found

    @property
    def seen_source(self) -> Any:
        """What llama.cpp reads too; None if it cannot."""
        return None if self.row.seen_size is None else picture(*self.row.seen_size)

    @functools.cached_property
    def oracle(self) -> Any:
        oracle = oracle_class(self.row.whole).from_pretrained(self.folder).eval()
        return _in_double(oracle) if self.row.double else oracle

    @functools.cached_property
    def processor(self) -> Any:
        return found(self.row.processor)(**self.row.options)

    def processed(self, pictures: Sequence[Array]) -> Any:
        """The inputs that transformers' processor makes of pictures."""
        given = self.processor(images=[PIL.Image.fromarray(p) for p in pictures], return_tensors="pt")
        return {name: value for name, value in given.items() if name not in self.row.unread}

    def features(self, pictures: Sequence[Array]) -> Array:
        """The rows of all pictures, one after the other, with the slices that layers of the text model add."""
        if self.row.oracle:
            own: Array = found(f"{self.row.oracle}:features")(self, pictures)
            return own
        import torch

        given: Any = self.processed(pictures)
        with torch.no_grad():
            features = self.row.features or (lambda oracle, given: oracle.model.get_image_features(**given))
            given = features(self.oracle, given)
        slices = getattr(given, "deepstack_features", None) or []
        given = getattr(given, "pooler_output", given)
        parts = given if isinstance(given, (list, tuple)) else [given]
        rows = [part.reshape(-1, part.shape[-1]).numpy() for part in parts]
        joined: Array = np.concatenate([np.concatenate(rows), *(np.concatenate(part) for part in slices)], axis=1)
        return joined

    def logits(self, ids: Sequence[int], pictures: Sequence[Array]) -> Array:
        """The logits of token ids, in which the row token stands once for each row of a picture."""
        if self.row.oracle:
            own: Array = found(f"{self.row.oracle}:logits")(self, ids, pictures)
            return own
        import torch

        given: dict[str, Any] = self.processed(pictures) if pictures else {}
        tokens = torch.tensor([list(ids)])
        if self.row.typed and pictures:
            given[self.row.typed] = (tokens == self.row_id).int()
        if self.row.generating and pictures:
            embeddings, positions = self.oracle.get_input_embeddings()(tokens), torch.arange(len(ids))[None]
            given["attention_mask"] = self.oracle.create_masks_for_generate(
                self.oracle.config, embeddings, None, None, positions, given[self.row.typed]
            )
        with torch.no_grad():
            logits: Array = self.oracle(input_ids=tokens, **given).logits[0].numpy()
        return logits

    def prompt(self, text: str, pictures: Sequence[Array]) -> list[int]:
        """The ids that transformers' processor makes of a text with pictures."""
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(self.folder / "tokenizer.json"), extra_special_tokens=dict(self.row.named)
        )
        processor = found(self.row.whole_processor)(self.processor, tokenizer, **self.row.whole_options)
        given = processor(text=text, images=[PIL.Image.fromarray(p) for p in pictures])
        return [int(token) for token in given["input_ids"][0]]

    @property
    def row_id(self) -> int:
        return self.load_tokenizer.encode(self.row.tokens[0], add_special=False)[0]

    def ids(self, items: Sequence[Item]) -> list[int]:
        """The items as transformers reads them: the row token once for each row."""
        ids: list[int] = []
        for item in items:
            ids += [self.row_id] * len(item) if isinstance(item, EmbeddingSpan) else [item]
        return ids

    @functools.cached_property
    def load_tokenizer(self) -> Any:
        return hotshoe.load_tokenizer(self.path)

    def close(self) -> None:
        for model in self._loaded.values():
            model.close()
