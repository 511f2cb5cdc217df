"""Made: a row's folder, its files, its model on devices, and what transformers computes. Each is made once."""

from __future__ import annotations

import fnmatch
import functools
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import hotshoe
from hotshoe.convert import convert
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.text import TextModel
from hotshoe_core.gguf import GGUFFile
from tests.families.row import Row, make_folder, oracle_class, text_ids

__all__ = ["Made"]

Array = np.ndarray[Any, Any]


class Made:
    """One row. Close it to free its models."""

    def __init__(self, name: str, row: Row, scratch: Path, bound: float = 0.0) -> None:
        """bound: the error that is allowed in any case; see ``Row.bound``."""
        self.name, self.row, self.scratch = name, row, scratch
        self.bound, self.llamacpp_bound = max(row.bound, bound), max(row.llamacpp_bound, bound)
        self.is_exact = not bound  # the same products have the same bits
        self.ids = text_ids(row.n_tokens, min(250, dict(row.config).get("vocab_size", 250)))
        self._expected: dict[tuple[int, ...], Array] = {}
        self._models: dict[str, TextModel] = {}
        self._open = ExitStack()

    @property
    def is_encoder(self) -> bool:
        """True if transformers' class has no output matrix."""
        return self.row.model.removesuffix("LMHeadModel").endswith("Model")

    @functools.cached_property
    def folder(self) -> Path:
        """The Hugging Face folder that is converted."""
        if self.row.prepare is None:
            return self._original
        folder = self.scratch / "prepared"
        shutil.copytree(self._original, folder)
        self.row.prepare(folder)
        return folder

    @functools.cached_property
    def _original(self) -> Path:
        return make_folder(self.row, self.scratch / "hf")

    def file(self, kind: str = "f32") -> Path:
        """The GGUF file of our converter."""
        path = self.scratch / f"{kind}.gguf"
        return path if path.exists() else convert(self.folder, path, kind)

    @property
    def n_layers(self) -> int:
        """The number of layers in the file."""
        with GGUFFile(self.file()) as file:
            return file.metadata.arch.get("block_count", 0)

    def model(self, device: str) -> TextModel:
        """The f32 file on a device, with an empty cache. Other calls return the same model."""
        if device not in self._models:
            self._models[device] = self._open.enter_context(self.load(device))
        self._models[device].forget()
        return self._models[device]

    def load(self, device: str, kind: str = "f32", **options: Any) -> TextModel:
        """A new text model, which the caller closes."""
        model = self.open(self.file(kind), device, **options)
        assert isinstance(model, TextModel)
        return model

    def encoder(self, device: str, kind: str = "f32", **options: Any) -> EmbeddingModel:
        """A new encoder, which the caller closes."""
        model = self.open(self.file(kind), device, **options)
        assert isinstance(model, EmbeddingModel)
        return model

    def open(self, path: Path, device: str = "reference", **options: Any) -> Any:
        """Another file as a new model, which the caller closes."""
        common: dict[str, Any] = {} if self.is_encoder else {"kv_dtype": "f32", "n_ctx": 4 * self.row.n_tokens}
        return hotshoe.load_model(path, device, **common | options)

    def result(self, path: Path, device: str = "reference") -> Array:
        """The logits of the text with another file, or an encoder's states."""
        with self.open(path, device) as model:
            return np.asarray(model.states_of(self.ids) if self.is_encoder else model.logits(self.ids))

    def run_once(self) -> None:
        """Compute the text as a whole, on the device that needs no plugin."""
        if self.is_encoder:
            with self.encoder("reference") as model:
                model.states_of(self.ids)
        else:
            self.model("reference").logits(self.ids)

    @functools.cached_property
    def _oracle(self) -> Any:
        import torch

        torch.set_num_threads(1)
        return (
            oracle_class(self.row)
            .from_pretrained(self._original, dtype=torch.float32, attn_implementation="eager")
            .eval()
        )

    def expected(self, ids: list[int]) -> Array:
        """Transformers' logits, (n, vocab), or an encoder's states, (n, dim)."""
        import torch

        if tuple(ids) not in self._expected:
            with torch.no_grad():
                self._expected[tuple(ids)] = self._result(ids)[0].numpy()
        return self._expected[tuple(ids)]

    def _result(self, ids: list[int]) -> Any:
        import torch

        if self.is_encoder:
            return self._oracle(torch.tensor([ids])).last_hidden_state
        return self._oracle(torch.tensor([ids]), use_cache=False).logits

    def vector(self, states: Array) -> Array:
        """The vector of a text whose tokens have these states in transformers."""
        if self.row.vector is not None:
            return self.row.vector(self.folder, states)
        mean = states.mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean))

    def expected_after_shift(self, n: int, last: int) -> Array:
        """Transformers' logits after ``ids`` and ``last``, if ``last`` alone does not see the first ``n``: (vocab,).

        RoPE depends on distances only, so this is what a shift by ``n`` gives.
        """
        import torch

        total = len(self.ids) + 1
        seen = torch.tril(torch.ones(total, total, dtype=torch.bool))
        seen[-1, :n] = False

        def mask(seen: Any) -> Any:
            return torch.where(seen, 0.0, -torch.inf)[None, None]

        config = self._oracle.config.get_text_config()
        masks: Any = mask(seen)
        if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            near = torch.triu(torch.ones_like(seen), 1 - (config.sliding_window or total))
            masks = {"full_attention": masks, "sliding_attention": mask(seen & near)}
        with torch.no_grad():
            logits = self._oracle(torch.tensor([[*self.ids, last]]), attention_mask=masks, use_cache=False).logits
            return logits[0, -1].numpy()

    @property
    def config(self) -> Any:
        """The config of transformers."""
        config = self._oracle.config.get_text_config()
        config.allow_global_per_layer_attribute_access = True  # some sizes differ from layer to layer
        return config

    def weights_without_effect(self) -> list[str]:
        """The weights in transformers, or single experts, that do not move the result; without ``row.unused``."""
        import torch

        self._oracle.zero_grad()
        result = self._result(self.ids)
        (result * torch.randn(result.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
        names = [name for name, _ in self._oracle.named_parameters()]
        without = [
            f"unused {pattern!r} matches nothing" for pattern in self.row.unused if not fnmatch.filter(names, pattern)
        ]
        for name, value in self._oracle.named_parameters():
            if name.endswith(("score_correction_bias", "expert_bias")):  # it only chooses experts
                continue
            if "visual." in name:  # an encoder of pictures: a text does not depend on it
                continue
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.row.unused):
                assert value.grad is None or value.grad.abs().amax() < 1e-4, f"{name} has an effect"
                continue
            moved = torch.zeros(()) if value.grad is None else value.grad.abs()
            each = moved.flatten(1).amax(dim=1) if value.ndim == 3 and "experts" in name else moved.amax()
            without += [f"{name} {i}" for i in (each < 1e-6).flatten().nonzero().flatten().tolist()]
        self._oracle.zero_grad()
        return without

    def near(self, ours: Array, expected: Array, bound: float = 0.0) -> None:
        """Compare logits within the row's bound, or this one if it is larger."""
        n = min(ours.shape[-1], expected.shape[-1])  # a file may leave out the rows of ids without a token
        assert ours.shape[:-1] == expected.shape[:-1]
        assert n >= 250 or self.is_encoder
        bound = max(self.bound, bound)
        assert np.abs(ours[..., :n] - expected[..., :n]).max() <= bound * np.abs(expected).max()

    def close(self) -> None:
        self._open.close()
