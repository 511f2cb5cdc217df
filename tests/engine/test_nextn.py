"""Models with a layer that drafts tokens (NextN): its guesses next to transformers' layers, and whole texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.convert import convert
from tests.families.made import Made
from tests.families.rows import ROWS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

LAYER = 3  # one with attention
N_LAYERS = 5
FAMILIES = ("qwen35", "qwen35moe", "qwen3next")


class WithLayer:
    """A checkpoint with a drafting layer, whose weights ``change`` may edit, and its file."""

    def __init__(self, name: str, folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> None:
        plain = Made(name, ROWS[name], folder / "plain")
        self.folder = folder / "hf"
        self.folder.mkdir()
        for path in plain.folder.iterdir():
            (self.folder / path.name).write_bytes(path.read_bytes())
        weights = safetensors.load_file(self.folder / "model.safetensors")
        dim = weights["model.norm.weight"].shape[0]
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int, scale: float = 0.1) -> Any:
            return torch.randn(*shape, generator=generator) * scale

        of_layer = f"model.layers.{LAYER}."
        for key, value in list(weights.items()):
            if key.startswith(of_layer):
                noise = random(*value.shape) * value.std() if value.ndim > 1 else random(*value.shape)
                weights[f"mtp.layers.0.{key.removeprefix(of_layer)}"] = value + noise
        weights["mtp.fc.weight"] = random(dim, 2 * dim, scale=dim**-0.5)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            weights[f"mtp.{norm}.weight"] = random(dim)
        if change is not None:
            change(weights)
        safetensors.save_file(weights, self.folder / "model.safetensors", {"format": "pt"})
        self.weights = weights
        self.row = ROWS[name]
        self.path = convert(self.folder, folder / "nextn.gguf", "f32")


@pytest.fixture(scope="module", params=FAMILIES)
def with_layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithLayer]:
    yield WithLayer(request.param, tmp_path_factory.mktemp(request.param))


def _is_expert(key: str, first: str) -> bool:
    """Whether a tensor is that of an expert, as ``first`` is of expert 0."""
    start, end = first.split(".0.")
    return key.startswith(f"{start}.") and key.endswith(f".{end}")


class Oracle:
    """The model and its drafting layer in transformers' classes; how they are joined follows DeepSeek-V3, 2.2."""

    def __init__(self, made: WithLayer) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(made.folder, dtype=torch.float32)
        self.w = {key.removeprefix("mtp."): value for key, value in made.weights.items() if key.startswith("mtp.")}
        inner = self.model.model
        self.layer = type(inner.layers[0])(inner.config, LAYER)
        prefix = "layers.0."
        state = {key.removeprefix(prefix): value for key, value in self.w.items() if key.startswith(prefix)}
        for part in [key for key in state if "experts.0." in key and "up_proj" not in key]:
            names = [part.replace(".0.", f".{i}.") for i in range(sum(_is_expert(key, part) for key in state))]
            gates = [name.replace("gate_proj", "up_proj") for name in names]
            both = [torch.cat([state.pop(a), state.pop(b)]) if a != b else state.pop(a) for a, b in zip(names, gates)]
            stem = part.split(".0.")[0]
            state[f"{stem}.{'down_proj' if 'down' in part else 'gate_up_proj'}"] = torch.stack(both)
        missing = self.layer.load_state_dict(state)
        assert not missing.missing_keys and not missing.unexpected_keys
        self.eps = inner.config.rms_norm_eps

    def norm(self, x: Any, name: str) -> Any:
        weight = 1 + self.w[f"{name}.weight"]
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    @torch.no_grad()
    def draft(self, tokens: list[int], n: int) -> list[int]:
        """Guess ``n`` tokens after the last one and the token that the model gives. Their logits too."""
        inner = self.model.model
        states = inner(torch.tensor([tokens])).last_hidden_state[0]
        first = int(self.model.lm_head(states[-1]).argmax())
        tokens = [*tokens, first]
        before = torch.cat([torch.zeros_like(states[:1]), states])
        found: list[int] = []
        for _ in range(n):
            e = self.norm(inner.embed_tokens(torch.tensor(tokens)), "pre_fc_norm_embedding")
            h = self.norm(before, "pre_fc_norm_hidden")
            x = (torch.cat([e, h], -1) @ self.w["fc.weight"].T)[None]
            positions = torch.arange(len(tokens))[None]
            ropes = inner.rotary_emb(x, positions[None].expand(3, -1, -1) if self.has_sections else positions)
            mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
            x = self.layer(x, position_embeddings=ropes, attention_mask=mask)
            x = x[0] if isinstance(x, tuple) else x
            after = self.norm(x[0], "norm")
            found.append(int(self.model.lm_head(after[-1]).argmax()))
            tokens, before = [*tokens, found[-1]], torch.cat([before, after[-1:]])
        return [first, *found]

    @property
    def has_sections(self) -> bool:
        return "mrope_section" in str(self.model.model.config.rope_parameters)
