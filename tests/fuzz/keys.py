"""Keys of a model's architecture, one of them added, removed or changed: it is read with effect, or refused.

A file that loads and computes what it computed before ignores the key, unless its value is known to change nothing.
LLAMA_PYTHON, if set, is a Python with llama-cpp-python: its logits for each file that loads are compared too.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import hotshoe
from hotshoe.families import find_model
from hotshoe.loading import task_of
from hotshoe.tasks import Task
from hotshoe.unread_keys import HARMLESS, NEUTRAL
from hotshoe_core.errors import HotshoeError
from hotshoe_core.gguf import GGUFFile
from tests.fuzz.fault import Fault
from tests.fuzz.gguf_parts import CODES, STRING, Key, Parts, pack
from tests.support.forward import Forward

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS = ()
SHARE = 120
DATA = Path(__file__).parents[1] / "data/llamacpp"
IDS = list(range(40, 64))
NAMES = (
    *("Llama", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Phi3", "Gemma3", "Lfm2", "Mamba2", "DeepseekV2"),
    *("DeepseekV3",),
)
UINT, FLOAT, BOOL = 4, 6, 7
# what no model has, or what no recorded file says
ADDED: dict[str, tuple[int, Any]] = {
    **dict.fromkeys(NEUTRAL, (FLOAT, 0.5)),
    "attention.causal": (BOOL, False),
    "attention.head_count": (UINT, 3),
    "attention.indexer.top_k": (UINT, 2),
    "attention.key_length": (UINT, 6),
    "attention.key_length_swa": (UINT, 6),
    "attention.shared_kv_layers": (UINT, 1),
    "attention.sliding_window": (UINT, 3),
    "attention.sliding_window_pattern": (UINT, 2),
    "attention.temperature_length": (UINT, 3),
    "attention.value_length": (UINT, 6),
    "attention.invented": (FLOAT, 2.0),
    "embedding_length_out": (UINT, 16),
    "expert_count": (UINT, 2),
    "expert_gating_func": (UINT, 2),
    "expert_group_count": (UINT, 2),
    "expert_group_used_count": (UINT, 1),
    "expert_shared_count": (UINT, 1),
    "expert_used_count": (UINT, 1),
    "expert_weights_norm": (BOOL, True),
    "feed_forward_length": (UINT, 8),
    "full_attention_interval": (UINT, 2),
    "interleave_moe_layer_step": (UINT, 2),
    "leading_dense_block_count": (UINT, 1),
    "moe_every_n_layers": (UINT, 2),
    "n_deepstack_layers": (UINT, 1),
    "nextn_predict_layers": (UINT, 1),
    "pooling_type": (UINT, 3),
    "rope.dimension_count": (UINT, 4),
    "rope.dimension_count_swa": (UINT, 4),
    "rope.freq_base": (FLOAT, 300.0),
    "rope.freq_base_swa": (FLOAT, 300.0),
    "rope.scale_linear": (FLOAT, 3.0),
    "rope.scaling.attn_factor": (FLOAT, 1.5),
    "rope.scaling.factor": (FLOAT, 3.0),
    "rope.scaling.original_context_length": (UINT, 8),
    "rope.scaling.type": (STRING, "yarn"),
    "rope.scaling.yarn_attn_factor": (FLOAT, 1.5),
    "rope.scaling.yarn_beta_fast": (FLOAT, 4.0),
    "rope.scaling.yarn_ext_factor": (FLOAT, 0.5),
    "swin_norm": (BOOL, True),
    "use_parallel_residual": (BOOL, True),
}
# keys of which some values change no logits of a short text, with the reason
QUIET = {
    "context_length": "bounds the context",
    "rope.scaling.original_context_length": "only YaRN and LongRoPE use it",
    "rope.scaling.type": "without a factor there is no scaling",
    "attention.head_count_kv": "all heads of latent attention share one latent",
    "attention.temperature_length": "only with a scale",
    "attention.temperature_scale": "the text is shorter than the default length",
    "expert_weights_norm": "what most models do without the key",
    "rope.scaling.yarn_beta_fast": "the rounded ends of YaRN's ramp may be the same",
    "rope.scaling.yarn_log_multiplier": "only with YaRN",
    "interleave_moe_layer_step": "the second layer has experts anyway",
    "feed_forward_length": "of a model whose layers all have experts, which have a length of their own",
    "expert_group_count": "the same experts may be chosen",
    "expert_group_used_count": "the same experts may be chosen",
}
# keys with which our logits may be others than llama.cpp's, with the reason
DIFFERENT = {
    "attention.sliding_window": "its readers of llama and qwen2 ignore it; our converter writes it for Mistral 1",
    "expert_gating_func": "its reader of llama ignores it; it ranks groups of softmax scores by two experts",
    "expert_weights_norm": "its readers of llama and qwen3moe ignore it",
    "expert_weights_scale": "its readers of llama and qwen3moe ignore it",
    "rope.scaling.type": "its readers ignore YaRN's settings in most architectures",
    "rope.scaling.yarn_log_multiplier": "without it, it scales scores and rotated elements, transformers the latter",
}
_bases: dict[str, tuple[Parts, np.ndarray[Any, Any]]] = {}
_folder: list[tempfile.TemporaryDirectory[str]] = []

ORACLE = """
import sys, numpy
from llama_cpp import Llama
path, target, ids = sys.argv[1], sys.argv[2], [int(i) for i in sys.argv[3].split()]
model = Llama(path, n_ctx=64, logits_all=True, type_k=0, type_v=0, n_threads=1, flash_attn=False, verbose=False)
model.eval(ids)
numpy.save(target, numpy.asarray(model.scores[: len(ids)], numpy.float32))
"""


def setup() -> None:
    hotshoe.load_all()
    _folder.append(tempfile.TemporaryDirectory())
    for name in NAMES:
        path = DATA / f"{name}ForCausalLM.gguf"
        _bases[name] = Parts.of(path), _logits(path)


def run(seed: int) -> str:
    rng = random.Random(seed)
    name = rng.choice(NAMES)
    source, before = _bases[name]
    parts = Parts([Key(k.name, k.type, k.payload) for k in source.keys], source.rows)
    what, change = _change(parts, rng)
    if [(k.name, k.payload) for k in parts.keys] == [(k.name, k.payload) for k in source.keys]:
        return "same"
    path = Path(_folder[0].name) / "case.gguf"
    path.write_bytes(parts.bytes())
    try:
        with hotshoe.load_model(path, "reference"):
            if task_of(path) is not Task.TEXT:
                return "answered"  # pooling_type makes it an embedding model
        after = _logits(path)
    except HotshoeError:
        return "refused"
    if np.array_equal(before, after) and not _is_quiet(path, what):
        raise Fault("ignored", f"{name}: {change}, and the logits are the same")
    if what in DIFFERENT or "LLAMA_PYTHON" not in os.environ:
        return "answered"
    return _compared(path, f"{name}: {change}", after)


def _change(parts: Parts, rng: random.Random) -> tuple[str, str]:
    """Change one key of the architecture. Returns its name and what was done."""
    arch = next(k.payload[8:].decode() for k in parts.keys if k.name == "general.architecture")
    own = [k for k in parts.keys if k.name.startswith(f"{arch}.") and k.type in (*CODES, STRING)]
    kind = rng.choice(("add", "add", "add", "change", "change", "remove"))
    if kind == "add":
        what = rng.choice(sorted(ADDED))
        type, value = ADDED[what]
        parts.put(f"{arch}.{what}", type, pack(type, value))
        return what, f"{arch}.{what} = {value!r}"
    key = rng.choice(own)
    what = key.name.removeprefix(f"{arch}.")
    if kind == "remove":
        parts.keys.remove(key)
        return what, f"without {key.name}"
    key.payload = _other(key, rng)
    return what, f"{key.name} = {key.payload.hex()}"


def _other(key: Key, rng: random.Random) -> bytes:
    if key.type == STRING:
        return pack(STRING, rng.choice(("none", "linear", "yarn", "longrope")))
    value = np.frombuffer(key.payload, f"<{CODES[key.type]}")[0]
    if key.type == BOOL:
        return pack(BOOL, not value)
    return pack(key.type, type(value.item())(value * 2 + 1) if rng.random() < 0.5 else type(value.item())(value / 2))


def _is_quiet(path: Path, what: str) -> bool:
    """Whether the file may compute what it did before."""
    with GGUFFile(path) as file:
        model = find_model(file.metadata)
        unused = model(model.config_type().from_metadata(file.metadata)).unused_keys()
        value = file.metadata.arch.get(what)
    neutral = value is None or value in NEUTRAL.get(what, ()) or value == 0
    return what in HARMLESS or what in unused or what in QUIET or neutral


def _logits(path: Path) -> np.ndarray[Any, Any]:
    with Forward(path, "reference") as model:
        return model.logits(IDS)


def _compared(path: Path, change: str, ours: np.ndarray[Any, Any]) -> str:
    target = Path(_folder[0].name) / "theirs.npy"
    target.unlink(missing_ok=True)
    python = os.environ["LLAMA_PYTHON"]
    ids = " ".join(map(str, IDS))
    subprocess.run([python, "-c", ORACLE, str(path), str(target), ids], capture_output=True, check=False, timeout=60)
    if not target.exists():
        return "answered"  # llama.cpp refuses the file, or ends
    theirs = np.load(target)[:, : ours.shape[1]]
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    if error > 1e-3:
        raise Fault("other logits", f"{change}: {error:.2g} from llama.cpp's")
    return "same"
