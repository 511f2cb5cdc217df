"""What transformers computes of Llama 3.2 Vision: its pictures are not rows of the text.

Two things of transformers differ from the published model, Meta's own program, and are made equal here:

- It joins states after layers; the published numbers of layers mean the states before them. The numbers are reduced
  by one.
- Rows before the first picture of a prompt attend to pictures that come later, with nothing masked. So the prompt is
  computed in pieces, with a cache: first the rows before a picture, in which transformers skips the layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.towers.made import MadeTower

__all__ = ["features", "logits"]

Array = np.ndarray[Any, Any]


def _oracle(made: MadeTower) -> Any:
    model = made.oracle
    joined = model.config.vision_config.intermediate_layers_indices
    model.model.vision_model.intermediate_layers_indices = [i - 1 for i in joined]
    return model


def _inputs(made: MadeTower, pictures: Sequence[Array]) -> tuple[dict[str, Any], list[int]]:
    given = dict(made.processed(pictures))
    return given, given.pop("num_tiles")[0]


def features(made: MadeTower, pictures: Sequence[Array]) -> Array:
    """The rows of all pictures, without those of missing tiles."""
    import torch

    model = _oracle(made).model
    rows = []
    for picture in pictures:
        given, (n_tiles,) = _inputs(made, [picture])
        with torch.no_grad():
            found = model.multi_modal_projector(model.vision_model(**given).last_hidden_state)
        rows.append(found[0, 0, :n_tiles].reshape(-1, found.shape[-1]).numpy())
    return np.concatenate(rows)


def logits(made: MadeTower, ids: Sequence[int], pictures: Sequence[Array]) -> Array:
    """The logits of token ids, computed in pieces that begin where pictures stand."""
    import torch
    from transformers import DynamicCache

    model = _oracle(made)
    places = [i for i, token in enumerate(ids) if token == made.row_id]
    assert len(places) == len(pictures)
    cuts = [*dict.fromkeys([0, *places]), len(ids)]
    n_patches, n_max = model.model.vision_model.num_patches, model.config.vision_config.max_num_tiles
    cache, found, tiles = DynamicCache(config=model.config), [], []
    for start, stop in itertools.pairwise(cuts):
        given: dict[str, Any] = {}
        if start in places:
            given, n_tiles = _inputs(made, [pictures[places.index(start)]])
            tiles.append(n_tiles[0])
        if tiles:
            # a row attends to the last picture, and to those that stand directly before that one
            last = places[len(tiles) - 1]
            seen = [last - places[i] == len(tiles) - 1 - i for i in range(len(tiles))]
            mask = [[int(sees and tile < n) for tile in range(n_max)] for sees, n in zip(seen, tiles, strict=True)]
            given["cross_attention_mask"] = torch.tensor([[mask] * (stop - start)])
        with torch.no_grad():
            piece = torch.tensor([list(ids[start:stop])])
            found.append(model(input_ids=piece, cache=cache, use_cache=True, **given).logits[0].numpy())
    assert cache.get_seq_length(0) == len(ids)
    assert not tiles or cache.layers[1].keys.shape[2] == len(tiles) * n_max * n_patches
    return np.concatenate(found)
