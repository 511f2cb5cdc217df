"""tools/upstream.py: what a newer llama.cpp has that hotshoe does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotshoe.families import MODELS, names
from tools import upstream

FILES = {
    "gguf-py/gguf/constants.py": """
class Keys:
    class LLM:
        CONTEXT_LENGTH = "{arch}.context_length"
        INVENTED       = "{arch}.invented.key"
MODEL_ARCH_NAMES: dict[MODEL_ARCH, str] = {
    MODEL_ARCH.LLAMA:            "llama",
    MODEL_ARCH.DEEPSEEK4:        "deepseek4",
    MODEL_ARCH.INVENTED:         "invented-1.5",
}
""",
    "src/llama-vocab.cpp": """
        if (tokenizer_model == "gpt2" || tokenizer_model == "invented") {
                if (tokenizer_pre == "llama-bpe" || tokenizer_pre == "invented-pre") {
""",
    "tools/mtmd/clip-impl.h": """
    { PROJECTOR_TYPE_INVENTED,  "invented_merger"},
""",
    "ggml/include/ggml.h": """
        GGML_TYPE_F32     = 0,
        // GGML_TYPE_Q4_0_4_8 = 32,
        GGML_TYPE_INVENTED = 99,
        GGML_TYPE_COUNT   = 100,
""",
}
NEW = """1 architectures: invented-1.5
1 metadata keys: invented.key
1 pre-tokenizers: invented-pre
1 tokenizer models: invented
1 projectors: invented_merger
1 tensor types: INVENTED
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(upstream, "SEEN", tmp_path / "seen.json")
    for name, text in FILES.items():
        path = tmp_path / "llama.cpp" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "llama.cpp"


def test_what_is_new_is_listed(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream.main(str(source)) == 1
    assert capsys.readouterr().out == NEW


def test_what_was_seen_is_not_listed_again(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"give a reason in refused_families\.py for: invented-1\.5"):
        upstream.main(str(source), "--accept")
    constants = source / "gguf-py/gguf/constants.py"
    constants.write_text(constants.read_text().replace("invented-1.5", "llama"))
    assert upstream.main(str(source), "--accept") == 0
    assert upstream.main(str(source)) == 0
    assert capsys.readouterr().out == ""


def test_a_file_that_moved_ends_the_program(source: Path) -> None:
    (source / "ggml/include/ggml.h").write_text("nothing")
    with pytest.raises(SystemExit, match=r"ggml\.h names no tensor types; correct the pattern"):
        upstream.main(str(source))
    (source / "ggml/include/ggml.h").unlink()
    with pytest.raises(SystemExit, match=r"ggml\.h is missing; it should name the tensor types"):
        upstream.main(str(source))


def test_the_list_of_what_was_seen_names_no_architecture() -> None:
    """An architecture has a model or a reason."""
    seen = json.loads((upstream.ROOT / "tools" / "upstream.json").read_text())
    assert seen.keys() == upstream.PLACES.keys()
    assert seen["architectures"] == []
    assert "llama" in names(MODELS)
