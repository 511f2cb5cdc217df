"""NextN: a layer that guesses one token more than the model gives (multi-token prediction)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from hotshoe.kvcache import AttentionSpec, LayerSpec, RecurrentSpec, RecurrentView
from hotshoe.nn.basic import Linear, RMSNorm
from hotshoe.nn.module import Module, submodule
from hotshoe_core import Tensor, ops

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["NextN"]

_HIDDEN = "hidden"


class NextN(Module):
    """A drafting layer (MTP, NextN): it follows the model's own layers, and guesses the token after the next one.

        class NextN(nn.NextN):
            block: Block = submodule()

        class Model(nn.Decoder):
            blocks: list[Block] = layers("blk")
            nextn: list[NextN] = nextn_layers("blk")

    A guess needs the model's hidden state after a token, and the embedding of the token that follows. The layer's
    output can replace the model's next hidden state, so that the layer can go on from its own guess.

    Source: DeepSeek-V3 (2024, arXiv:2412.19437), section 2.2. As in Qwen 3.5, hidden states are those after the last
    norm, and the embedding and the output matrix are the model's own.
    """

    embedding_norm: RMSNorm = submodule("nextn.enorm", shape=lambda c, i: (c.dim,))
    hidden_norm: RMSNorm = submodule("nextn.hnorm", shape=lambda c, i: (c.dim,))
    projection: Linear = submodule("nextn.eh_proj", shape=lambda c, i: (c.dim, 2 * c.dim))
    block: Any
    """The layer itself, which attends; a subclass declares it."""
    norm: RMSNorm = submodule("nextn.shared_head_norm", shape=lambda c, i: (c.dim,))

    def __init__(self, config: Any, prefixes: tuple[str, ...] = ("",), name: str = "", layer: int = -1) -> None:
        super().__init__(_with_layers(config, layer + 1), prefixes, name, layer)

    def cache_spec(self) -> LayerSpec:
        """The last hidden state of the model, then what the block keeps."""
        kept = self.block.cache_spec()
        assert isinstance(kept, AttentionSpec)
        return RecurrentSpec({_HIDDEN: (1, self.config.dim)}), kept

    def __call__(self, embeddings: Tensor, hidden: Tensor, batch: Batch, view: Any) -> Tensor:
        """Hidden states that stand for the model's next ones, (n, dim).

        embeddings: of the batch's tokens, (n, dim). hidden: of the model, each after the token before, (n, dim).
        """
        x = ops.concat(self.embedding_norm(embeddings), self.hidden_norm(hidden), axis=-1)
        return self.norm(self.block(self.projection(x), batch, view))

    def store(self, embeddings: Tensor, hidden: Tensor, batch: Batch, views: tuple[RecurrentView, Any]) -> None:
        """Store what later guesses attend to. hidden: of the model, each after the batch's token itself, (n, dim)."""
        last, view = views
        after = last.split(hidden)  # (n_sequences, t, dim)
        before = last.roll(_HIDDEN, after)
        if after.shape[1] > 1:
            before = ops.concat(before, after[:, :-1], axis=1)
        # nothing reads the result, so that only keys and values are computed
        self(embeddings, last.merge(before), batch, view)


def _with_layers(config: Any, n: int) -> Any:
    """Return the config of a model with ``n`` layers; the new ones are like its last layer."""
    longer: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple) and len(value) == config.n_layers:
            longer[field.name] = value + value[-1:] * (n - len(value))
    return replace(config, **longer, n_layers=n)
