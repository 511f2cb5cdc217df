"""docs/towers.md: its package, built and installed by pip, against transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest

import hotshoe
from hotshoe.runner.items import EmbeddingSpan
from tests.families.row import COMMON, Row, make_folder
from tests.support.pages import install_page, run
from tests.towers.row import picture, with_tokens

PAGE = Path(__file__).parents[2] / "docs" / "towers.md"
VISION = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
ROW = Row(
    "VipLlavaForConditionalGeneration",
    "llama",
    dict.fromkeys(COMMON.keys() - {"vocab_size"}, ...)
    | {"text_config": {"model_type": "llama", **COMMON}, "vision_feature_layers": [-1, -2, 1]}
    | {"vision_config": VISION | {"num_attention_heads": 2, "image_size": 28, "patch_size": 7}},
    tokenizer=lambda _: None,
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, built and installed by pip into a folder."""
    return install_page(PAGE, "hotshoe_vip", ("vision.py", "convert.py"), tmp_path_factory.mktemp("page"))


def test_the_tower_of_the_page(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    transformers: Any = pytest.importorskip("transformers", reason="the oracle")
    folder = tmp_path / "hf"
    tokens: Any = SimpleNamespace(tokens=("<image>",), ids={"image_token_index": "<image>"})
    ids = with_tokens(tokens, folder)
    make_folder(Row(ROW.model, ROW.arch, dict(ROW.config) | ids, tokenizer=ROW.tokenizer), folder)
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor.save_pretrained(folder)
    for arguments in (["-o", "vip.gguf"], ["--mmproj", "-o", "mmproj-vip.gguf"]):
        arguments[-1] = str(tmp_path / arguments[-1])
        done = run("hotshoe", "convert", str(folder), *arguments, "--type", "f32", path=installed)
        assert done.returncode == 0, done.stderr
    pixels = picture(40, 61)
    PIL.Image.fromarray(pixels).save(tmp_path / "a.png")
    asked = [str(tmp_path / "vip.gguf"), "--image", str(tmp_path / "a.png"), "the", "--max-tokens", "2"]
    done = run("hotshoe", "run", *asked, "--device", "reference", path=installed)
    assert done.returncode == 0, done.stderr

    monkeypatch.syspath_prepend(str(installed))
    oracle = getattr(transformers, ROW.model).from_pretrained(folder).eval()
    given = dict(processor(images=[PIL.Image.fromarray(pixels)], return_tensors="pt"))
    with hotshoe.load_model(tmp_path / "vip.gguf", "reference", task="text", n_ctx=64, kv_dtype="f32") as model:
        assert model.images is not None
        items = model.images.items("a <image> b", [pixels], add_special=False)
        marker = ids["image_token_index"]
        sequence = [i for item in items for i in ([marker] * len(item) if isinstance(item, EmbeddingSpan) else [item])]
        with torch.no_grad():
            expected = oracle(input_ids=torch.tensor([sequence]), **given).logits[0].numpy()
        assert np.abs(model.logits(items) - expected).max() <= 1e-5 * np.abs(expected).max()
