"""Files of architectures that are like another one, of models that transformers lacks."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.support.file_forms import joined
from tests.support.forward import Forward
from tests.support.rewrite import rewrite


def test_qwen_1_is_a_qwen2_whose_files_say_twice_the_size(data: Path, tmp_path: Path, device: str) -> None:
    source = data / "llamacpp/Qwen2ForCausalLM.gguf"
    fields = gguf.GGUFReader(source).fields
    renamed = {k.replace("qwen2.", "qwen."): f.contents() for k, f in fields.items() if k.startswith("qwen2.")}
    renamed["qwen.feed_forward_length"] *= 2
    changes = dict.fromkeys(k for k in fields if k.startswith("qwen2.")) | renamed
    join = joined("attn_q", "attn_k", "attn_v", whole="attn_qkv")
    path = rewrite(source, tmp_path / "qwen.gguf", {"general.architecture": "qwen"} | changes, edit=join)
    with Forward(source, device) as qwen2, Forward(path, device) as qwen:
        expected = qwen2.logits(range(40, 60))
        np.testing.assert_allclose(qwen.logits(range(40, 60)), expected, atol=1e-5 * np.abs(expected).max())
