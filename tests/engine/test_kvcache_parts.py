"""Layers that keep several things, and layers that read what another keeps, against a cache of nothing but arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe import load_request, nn
from hotshoe.kvcache import AttentionSpec, AttentionView, LayerSpec, RecurrentSpec
from hotshoe.loading import plan_model
from hotshoe.nn import Linear, TextConfig, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe.tasks import Task
from hotshoe_core import DeviceType, Tensor, ops
from hotshoe_core.errors import GraphError, ModelDefinitionError
from tests.support import forward
from tests.support.converted import tensors
from tests.support.fake_registry import FakeRegistry, fake
from tests.support.forward import Forward
from tests.support.gguf_files import write_gguf
from tests.support.text_models import load
from tests.support.vocabularies import byte_bpe

DIM, HEADS, KV_HEADS, HEAD_DIM, N_LAYERS, WINDOW, KERNEL = 24, 4, 2, 8, 5, 7, 3
IDS = np.random.default_rng(4).integers(0, 250, 37).tolist()


class Attention(nn.Attention):
    """Layers 0 and 3 have a window."""

    @property
    def window(self) -> int:
        return WINDOW if self.layer in (0, 3) else 0


class Both(nn.Block):
    """Attention and a convolution, as Falcon-H1 has attention and a state space."""

    attention: Attention = submodule()
    conv: Tensor = tensor("conv.weight", use="ssm_conv", shape=lambda c, i: (c.dim, KERNEL))

    def cache_spec(self) -> LayerSpec:
        return self.attention.cache_spec(), RecurrentSpec({"conv": (KERNEL - 1, self.config.dim)})

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        keys, states = view
        history, split = states.read("conv"), states.split(x)
        states.write("conv", ops.concat(history, split, axis=1)[:, split.shape[1] :])
        return x + self.attention(x, batch, keys) + states.merge(ops.ssm_conv(split, history, self.conv))


class Own(nn.Block):
    attention: Attention = submodule()

    def cache_spec(self) -> LayerSpec:
        return self.attention.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        return x + self.attention(x, batch, view)


class Shared(nn.Block):
    """Queries only; the keys and values are those of an earlier layer."""

    q: Linear = submodule("attn_q", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim))
    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.n_heads[i] * c.head_dim))

    def cache_spec(self) -> LayerSpec:
        return AttentionSpec(like={2: 0, 4: 1}[self.layer])

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        q = self.q(x).reshape(*x.shape[:-1], -1, self.config.head_dim)
        q = ops.rope(q, batch.positions, config=self.config.rope)
        y = ops.attention(q, *view.read(), view.mask, scale=HEAD_DIM**-0.5)
        return x + self.out(y.reshape(*x.shape[:-1], -1))


class Model(nn.Decoder):
    """A window with a convolution, all tokens; two layers that read these; a window."""

    config: TextConfig
    blocks: list[Both | Own | Shared] = layers("blk", choose=lambda c, i: (Both, Own, Shared, Own, Shared)[i])

    def unused_keys(self) -> dict[str, str]:
        return {"pooling_type": "of other models"}


class Plain(Model):
    """Without the convolution, whose state cannot be shifted."""

    blocks: list[Own | Shared] = layers("blk", choose=lambda c, i: (Own, Own, Shared, Own, Shared)[i])  # type: ignore[assignment]

    def unused_tensors(self) -> dict[str, str]:
        return {"blk.0.conv.weight": "of other models"}


class Encoder(nn.Backbone):
    config: TextConfig
    task = Task.EMBEDDING
    causal = True
    blocks: list[Own | Shared] = layers("blk", choose=lambda c, i: (Own, Own, Shared, Own, Shared)[i])

    def unused_tensors(self) -> dict[str, str]:
        return {"blk.0.conv.weight": "of other models"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0).standard_normal
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (258, DIM), "blk.0.conv.weight": (DIM, KERNEL)}
    for i in range(N_LAYERS):
        shapes |= {
            f"blk.{i}.attn_q.weight": (HEADS * HEAD_DIM, DIM),
            f"blk.{i}.attn_output.weight": (DIM, HEADS * HEAD_DIM),
        }
        if i not in (2, 4):
            shapes |= dict.fromkeys((f"blk.{i}.attn_k.weight", f"blk.{i}.attn_v.weight"), (KV_HEADS * HEAD_DIM, DIM))
    weights = {name: (draw(shape) * shape[-1] ** -0.5).astype(np.float32) for name, shape in shapes.items()}
    sizes = {
        "context_length": 128, "embedding_length": DIM, "block_count": N_LAYERS, "feed_forward_length": DIM,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 100.0, "pooling_type": 1,
    }  # fmt: skip
    keys = {f"llama.{key}": value for key, value in sizes.items()}
    keys |= byte_bpe(merges=["a b"], special=["<|end|>"], eos_token_id=257)
    weights["output_norm.weight"] = np.ones(DIM, np.float32)
    return write_gguf(tmp_path_factory.mktemp("parts") / "model.gguf", keys, weights)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def choose(model: Any) -> None:
        monkeypatch.setattr(load_request, "find_model", lambda metadata: model)
        monkeypatch.setattr(forward, "find_model", lambda metadata: model)

    return choose


@pytest.fixture
def expected(path: Path, use: Callable[[Any], None]) -> Iterator[Callable[..., np.ndarray]]:
    """Return the logits after the last of these tokens, computed as a whole."""
    opened: list[Forward] = []

    def get(ids: list[int], model: Any = Model) -> np.ndarray:
        if not opened:
            use(model)
            opened.append(Forward(path, "reference"))
        return opened[0].logits(ids)[-1]

    yield get
    for each in opened:
        each.__exit__()


def near(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("model", [Model, Plain])
def test_pieces_forks_and_prefixes(model: Any, device: str, path: Path, expected: Callable[..., np.ndarray]) -> None:
    expected(IDS, model)
    with load(path, device, n_batch=8, n_ctx=64) as loaded:
        with loaded.sequence() as sequence:
            near(sequence.append(*IDS[:20]), expected(IDS[:20]))
            near(sequence.append(IDS[20]), expected(IDS[:21]))
            twin = sequence.fork()
            near(twin.append(7), expected([*IDS[:21], 7]))
            near(sequence.append(*IDS[21:23]), expected(IDS[:23]))
            near(twin.append(8), expected([*IDS[:21], 7, 8]))
            sequence.truncate(18)
            near(sequence.append(9), expected([*IDS[:18], 9]))
            twin.close()
        with loaded.sequence([*IDS[:20], 5]) as again:
            near(again.append(), expected([*IDS[:20], 5]))
        many = [loaded.sequence() for _ in range(3)]
        texts = [IDS[:9], IDS[3:30], IDS[5:6]]
        for logits, text in zip(loaded.extend(zip(many, texts, strict=True)), texts, strict=True):
            near(logits, expected(text))


def test_a_shift_moves_shared_keys_once(device: str, path: Path, use: Callable[[Any], None]) -> None:
    """With one layer of keys that depend on nothing but a token, a shift is as if the tokens had not been there."""
    use(Plain)
    with load(path, device, n_ctx=64) as model:
        blocks: Any = model._model.blocks  # type: ignore[attr-defined]
        for i in (0, 2, 3):
            blocks[i] = lambda x, batch, view: x
        with model.sequence() as sequence:
            sequence.append(*IDS[:20])
            sequence.shift(3, 6)
            after = sequence.append(*IDS[20:25])
            near(after, model.logits([*IDS[:3], *IDS[9:25]])[-1])


def test_a_state_next_to_keys_refuses_a_shift(path: Path, use: Callable[[Any], None]) -> None:
    use(Model)
    with load(path, "reference", n_ctx=64) as model, model.sequence() as sequence:
        sequence.append(*IDS[:20])
        with pytest.raises(GraphError, match="recurrent state"):
            sequence.shift(3, 6)


def test_shared_keys_take_no_memory(path: Path, use: Callable[[Any], None]) -> None:
    use(Model)
    with load(path, "reference", n_ctx=64) as model:
        cache = {layer: memory.size for layer, memory in model.memory().devices[0].cache.items()}
    assert set(cache) == {0, 1, 3}


def test_layers_on_several_devices(
    path: Path, use: Callable[[Any], None], expected: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer reads keys that another device holds; the plan is what is then allocated."""
    want = expected(IDS)
    devices = (fake("gpu:0"), fake("gpu:1"), fake("host:0", type=DeviceType.CPU))
    monkeypatch.setattr("hotshoe.loading.load_all", lambda **options: FakeRegistry(*devices))
    options: dict[str, Any] = {"n_ctx": 64, "kv_dtype": "f32", "tensor_split": (2, 4)}
    with hotshoe.load_model(path, ["gpu:0", "gpu:1"], **options) as model:
        near(model.logits(IDS)[-1], want)
        found = {d.device: {i: m.size for i, m in d.cache.items()} for d in model.memory().devices}
    assert [sorted(layers) for layers in found.values() if layers] == [[0, 1], [3]]
    planned = plan_model(path, ["gpu:0", "gpu:1"], **options).memory
    assert {d.device: {i: m.size for i, m in d.cache.items() if m.size} for d in planned.devices} == found


# Models that do not keep to their spec


class Idle(Own):
    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        return x


def test_a_shared_layer_that_updates(path: Path, use: Callable[[Any], None]) -> None:
    class Updates(Shared):
        def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
            view.update(x, x)
            return x

    class Wrong(Model):
        blocks: list[Both | Own | Updates] = layers("blk", choose=lambda c, i: (Both, Own, Updates, Own, Updates)[i])  # type: ignore[assignment]

    use(Wrong)
    with pytest.raises(GraphError, match=r"layer 2 updates keys and values.* another layer"):
        load(path, "reference")


def test_a_shared_layer_before_the_keys(path: Path, use: Callable[[Any], None]) -> None:
    class Wrong(Model):
        blocks: list[Both | Idle | Shared] = layers("blk", choose=lambda c, i: (Both, Idle, Shared, Idle, Shared)[i])  # type: ignore[assignment]

    use(Wrong)
    with pytest.raises(GraphError, match=r"keys and values of layer 1 are read before they are stored"):
        load(path, "reference")


# Models that read whole texts


class Bare(Plain):
    def logits(self, x: Tensor) -> Tensor:
        return x


def test_an_encoder_shares_keys(path: Path, use: Callable[[Any], None], expected: Callable[..., np.ndarray]) -> None:
    """The embedding of a causal model with mean pooling."""
    use(Encoder)
    with hotshoe.load_model(path, "reference") as model:
        ours = model.states_of(IDS)
    near(ours[-1], expected(IDS, Bare))


class Near(nn.Attention):
    rope = None
    window = 6

    def cache_spec(self) -> AttentionSpec:
        return AttentionSpec(KV_HEADS, HEAD_DIM, window=self.window, both_sides=True)


class NearBlock(Own):
    attention: Near = submodule()  # type: ignore[assignment]


class Nothing(nn.Block):
    def cache_spec(self) -> None:
        return None

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        return x


class Symmetric(nn.Backbone):
    """One layer; the file has more, which it does not use."""

    config: TextConfig
    blocks: list[NearBlock | Nothing] = layers("blk", choose=lambda c, i: Nothing if i else NearBlock)
    task = Task.EMBEDDING

    def unused_tensors(self) -> dict[str, str]:
        names = [f"blk.{i}.attn_*.weight" for i in range(1, N_LAYERS)]
        return dict.fromkeys(["blk.0.conv.weight", *names], "of other models")


@pytest.mark.parametrize("window", [1, 6, 7, 100])
def test_a_window_on_both_sides(
    window: int, path: Path, use: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Near, "window", window)
    use(Symmetric)
    with hotshoe.load_model(path, "reference") as model:
        found = model.states_of(IDS)
    weights = {name: array for name, (_, array) in tensors(path).items()}
    x = weights["token_embd.weight"][IDS]
    q, k, v = ((x @ weights[f"blk.0.attn_{n}.weight"].T).reshape(len(x), -1, HEAD_DIM) for n in "qkv")
    k, v = (np.repeat(each, HEADS // KV_HEADS, 1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) * HEAD_DIM**-0.5
    back = np.abs(np.arange(len(x))[:, None] - np.arange(len(x)))
    scores[:, back > window // 2] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v).reshape(len(x), -1)
    x = x + y @ weights["blk.0.attn_output.weight"].T
    near(found, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))


@pytest.mark.parametrize(
    ("causal", "spec", "message"),
    [
        (True, AttentionSpec(KV_HEADS, HEAD_DIM, window=4, both_sides=True), "has both_sides; causal is True"),
        (False, AttentionSpec(KV_HEADS, HEAD_DIM, window=4), "has a window without both_sides; causal is False"),
        (False, AttentionSpec(KV_HEADS, HEAD_DIM, chunk=4), "has a chunk; causal is False"),
        (False, RecurrentSpec({"x": (2,)}), "has a RecurrentSpec"),
    ],
)
def test_a_spec_that_an_encoder_cannot_have(
    causal: bool, spec: LayerSpec, message: str, path: Path, use: Callable[[Any], None]
) -> None:
    class Wrong(Symmetric):
        def cache_spec(self) -> tuple[LayerSpec, ...]:
            return (None, spec, None, None, None)

    Wrong.causal = causal
    use(Wrong)
    with pytest.raises(ModelDefinitionError, match=f"layer 1 {message}"):
        hotshoe.load_model(path, "reference")
