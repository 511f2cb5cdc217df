"""How much the logits of a mixture change if one token gets another expert, as it may on a device that rounds more.

    python tools/nearest_ties.py mixtral lfm2moe …      # models of the table in tests/families; needs transformers

CUDA rounds F32 to TF32 before it multiplies. If the last expert that a token gets and the first one that it does not
get have nearly the same score, this rounding can exchange them. For each model, the program finds the tokens whose
scores are nearest. It exchanges the two experts by the smallest change of the router's input. The last number of a
line is the largest change of a logit, as a part of the largest logit. The number before is the distance of the two
scores, in typical errors of TF32.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.families.made import Made
from tests.families.recorded import STRIDE
from tests.families.rows import ROWS

SHOWN = 3
_N_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_SLOPE_OF_SIGMOID = 0.25


class Tie(NamedTuple):
    """Two experts of a token with nearly the same score, and the change of the router's input that exchanges them."""

    distance: float
    router: str
    token: int
    change: torch.Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=sorted(ROWS), metavar="MODEL")
    for name in parser.parse_args().rows:
        with tempfile.TemporaryDirectory() as folder:
            made = Made(name, ROWS[name], Path(folder))
            model, ids = made._oracle, torch.tensor([made.ids])
            inputs: dict[str, torch.Tensor] = {}
            exact = logits(model, ids, inputs)
            for tie in sorted(ties(model, inputs), key=lambda tie: tie.distance)[:SHOWN]:
                changed = logits(model, ids, inputs, tie)
                share = np.abs(changed - exact).max() / np.abs(exact).max()
                print(f"{name:20} token {tie.token:3} of {tie.router:40} {tie.distance:8.2f} {share:9.4f}", flush=True)
            made.close()


def routers(model: Any) -> dict[str, Any]:
    """The modules that choose experts, by name."""
    config = getattr(model.config, "text_config", model.config)
    sizes = {(getattr(config, name), config.hidden_size) for name in _N_EXPERTS if getattr(config, name, None)}
    named = ((name, module) for name, module in model.named_modules() if "gate" in name or "router" in name)
    return {name: m for name, m in named if tuple(getattr(getattr(m, "weight", None), "shape", ())) in sizes}


def logits(model: Any, ids: torch.Tensor, inputs: dict[str, torch.Tensor], tie: Tie | None = None) -> Any:
    """Every STRIDE-th logit of each token. Without a tie, notes the inputs of routers; with one, changes one input."""

    def hook(name: str) -> Any:
        def before(_: Any, args: tuple[Any, ...]) -> Any:
            if tie is None:
                inputs[name] = args[0].detach().reshape(-1, args[0].shape[-1]).clone()
                return None
            rows = args[0].clone()
            if tie.router == name:
                rows.view(-1, rows.shape[-1])[tie.token] += tie.change
            return rows, *args[1:]

        return before

    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in routers(model).items()]
    try:
        with torch.no_grad():
            return model(ids).logits[0, :, ::STRIDE].numpy()
    finally:
        for each in hooks:
            each.remove()


def ties(model: Any, inputs: dict[str, torch.Tensor]) -> list[Tie]:
    """For each token and router: the last expert that is chosen, and the first one that is not."""
    config = getattr(model.config, "text_config", model.config)
    k, found = config.num_experts_per_tok, []
    for name, module in routers(model).items():
        x, weight = inputs[name], module.weight.detach()
        scores, slope = x @ weight.T, 1.0
        for owner in (module, model.get_submodule(name.rpartition(".")[0])):
            for bias in ("e_score_correction_bias", "expert_bias"):
                if slope == 1.0 and isinstance(getattr(owner, bias, None), torch.Tensor):
                    scores, slope = scores.sigmoid() + getattr(owner, bias), _SLOPE_OF_SIGMOID
        order = scores.argsort(dim=-1, descending=True)
        for token, row in enumerate(x):
            last, first = (int(order[token, i]) for i in (k - 1, k))
            gap = float(scores[token, last] - scores[token, first]) / slope
            towards = weight[first] - weight[last]
            each = float((row.abs() * (weight[first].abs() + weight[last].abs())).sum())
            error = each * 2**-11 / math.sqrt(len(row))
            found.append(Tie(gap / error, name, token, towards * (1.5 * gap / float(towards @ towards) + 1e-6)))
    return found


if __name__ == "__main__":
    main()
