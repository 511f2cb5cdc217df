"""Families by entry point: a third party's, as docs/models.md has it; two that claim one name; one that is broken."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotshoe import families
from hotshoe.cli import main
from hotshoe.convert import convert
from hotshoe.nn import Module
from hotshoe_core.errors import ModelDefinitionError, ModelError, UnknownArchitectureError
from hotshoe_core.gguf import GGUFFile
from tests.support.pages import install_page, run
from tests.support.rewrite import rewrite
from tests.support.text_models import load, transformers_logits
from tests.support.tiny_text import ARCHITECTURES, make_tiny

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
IDS = [5, 17, 99, 3, 42, 250, 8, 8, 61]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, built and installed by pip into a folder."""
    return install_page(PAGE, "hotshoe_olmo", ("model.py", "convert.py"), tmp_path_factory.mktemp("page"))


def test_the_family_of_the_page(installed: Path, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line converts and runs it without an import; its logits are those of transformers."""
    monkeypatch.setitem(ARCHITECTURES, "OlmoForCausalLM", ("OlmoConfig", {"clip_qkv": 1.0}))
    folder, path = make_tiny("OlmoForCausalLM", tmp_path / "hf"), tmp_path / "olmo.gguf"
    done = run("hotshoe", "convert", str(folder), "-o", str(path), "--type", "f32", path=installed)
    assert done.returncode == 0, done.stderr
    with GGUFFile(path) as file:  # the logits of a tiny model do not show OlmoLayerNorm's epsilon
        assert file.metadata.arch["attention.layer_norm_epsilon"] == pytest.approx(1e-5)
    done = run("hotshoe", "run", str(path), "the", "--max-tokens", "3", "--device", device, path=installed)
    assert done.returncode == 0, done.stderr
    done = run("hotshoe", "run", str(path), "the", path=tmp_path)
    assert done.returncode == 2
    assert "no model implements the architecture 'olmo'" in done.stderr

    monkeypatch.syspath_prepend(str(installed))
    expected = transformers_logits(folder, IDS)
    with load(path, device) as model:
        for ours in (model.logits(IDS), np.stack([s.append(i) for s in [model.sequence()] for i in IDS])):
            assert np.abs(ours - expected).max() <= 1e-5 * np.abs(expected).max()


Add = Callable[..., None]


def test_an_error_names_the_author_s_line(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ShapeError is hotshoe's own; the command line shows where the family's code led to it."""
    monkeypatch.setitem(ARCHITECTURES, "OlmoForCausalLM", ("OlmoConfig", {}))
    folder, path = make_tiny("OlmoForCausalLM", tmp_path / "hf"), tmp_path / "olmo.gguf"
    site = tmp_path / "site"
    shutil.copytree(installed, site)
    module = site / "hotshoe_olmo" / "model.py"
    text = module.read_text().replace("ops.layer_norm(x,", "ops.layer_norm(x + x[:, :3],")
    module.write_text(text)
    assert run("hotshoe", "convert", str(folder), "-o", str(path), path=site).returncode == 0
    done = run("hotshoe", "run", str(path), "the", "--device", "reference", path=site)
    line = 1 + text.splitlines().index("        return ops.layer_norm(x + x[:, :3], eps=self.config.norm_eps)")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"at: {module}, line {line}; HOTSHOE_DEBUG=1 shows the whole traceback" in done.stderr
    monkeypatch.setenv("HOTSHOE_DEBUG", "1")
    done = run("hotshoe", "run", str(path), "the", "--device", "reference", path=site)
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.rstrip().endswith("shows the whole traceback")


def test_two_configs_with_slots(add: Add, llama: Path, tmp_path: Path) -> None:
    code = """
from dataclasses import dataclass
from hotshoe.nn import ExpertConfig, TextConfig, key
@dataclass(frozen=True, slots=True, kw_only=True)
class A(TextConfig):
    a: int = key("a", default=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Both(A, ExpertConfig):  # the experts of hotshoe have no slots
    pass
@dataclass(frozen=True, slots=True, kw_only=True)
class B(TextConfig):
    b: int = key("b", default=1)
class Neither(A, B):
    pass
"""
    add("odd-mine", "mine = odd_slots:family", odd_slots=code)
    path = rewrite(llama, tmp_path / "m.gguf", {"general.architecture": "mine"})
    with pytest.raises(ModelError, match=r"lay-out conflict[\s\S]*leave slots=True out of one of them, see .*line 13"):
        model_of(path)
    sys.modules.pop("odd_slots", None)


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """``add(distribution, entries)``: a distribution with these entry points, and its module ``code``."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def get(name: str, entries: str, group: str = families.MODELS, **modules: str) -> None:
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{entries}\n")
        for module, code in modules.items():
            (site / f"{module}.py").write_text(code)

    return get


def model_of(path: Path) -> type[Module]:
    with GGUFFile(path) as file:
        return families.find_model(file.metadata)


@pytest.fixture
def llama(data: Path) -> Path:
    return data / "llamacpp" / "LlamaForCausalLM.gguf"


def test_two_that_claim_one_name(add: Add, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither wins silently, not ours either; blocking one chooses the other."""
    add("better-llama", "llama = better_llama:family", better_llama=_OWN)
    with pytest.raises(
        ModelError, match=r"'llama' .*claimed by 2.*better-llama 1\.0.*hotshoe 0[\s\S]*HOTSHOE_BLOCK=better-llama"
    ):
        model_of(llama)
    monkeypatch.setenv("HOTSHOE_BLOCK", "Better_Llama")
    assert model_of(llama).__module__ == "hotshoe.models.llama"
    monkeypatch.setenv("HOTSHOE_BLOCK", "hotshoe")
    assert model_of(llama).__module__ == "better_llama"


_OWN = """
from hotshoe.families import Family
from hotshoe.nn import Module

class Model(Module):
    pass

family = Family(Model)
"""


def test_one_that_cannot_be_imported(add: Add, llama: Path, tmp_path: Path) -> None:
    add("broken-mine", "mine = broken_mine:family", broken_mine="import nothing_that_is_there  # line 1\n")
    path = rewrite(llama, tmp_path / "m.gguf", {"general.architecture": "mine"})
    with pytest.raises(ModelError, match=r"mine = broken_mine:family of broken-mine 1\.0.*ModuleNotFoundError") as e:
        model_of(path)
    cause = e.value.__cause__
    assert isinstance(cause, ModuleNotFoundError)
    assert re.match(r"correct .*broken_mine\.py, line 1; if it is not yours, pip install", str(e.value.hint))


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("x = 1\ndef f(:\n", r"syntax_mine\.py, line 2; "),
        ("x = 1\n\nx.nothing\n", r"syntax_mine\.py, line 3; "),
        ("import sys\nsys.exit(0)\n", r"syntax_mine\.py, line 2; "),
        ("x = 1\n", "correct the module syntax_mine; "),
        (
            "from hotshoe_core.errors import ModelDefinitionError as E\nraise E('wrong', hint='write it so')\n",
            "^write it so$",
        ),
    ],
)
def test_the_hint_names_the_line_to_correct(
    code: str, place: str, add: Add, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("syntax-mine", "mine = syntax_mine:family", syntax_mine=code)
    path = rewrite(llama, tmp_path / "m.gguf", {"general.architecture": "mine"})
    with pytest.raises(ModelError) as caught:
        model_of(path)
    assert re.search(place, str(caught.value.hint))
    assert str(caught.value).count("hint:") == 1
    sys.modules.pop("syntax_mine", None)


def test_a_command_is_not_ended_by_a_family(
    add: Add, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys\nfrom hotshoe.families import Family\nfamily = Family(lambda metadata: sys.exit(0))\n"
    add("exiting-mine", "mine = exiting:family", exiting=code)
    path = rewrite(llama, tmp_path / "m.gguf", {"general.architecture": "mine"})
    assert main(["run", str(path), "x"]) == 2
    assert re.search(r"was ended by sys\.exit\(0\) in .*exiting\.py, line 3$", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize(
    ("entry", "error", "words"),
    [
        ("mine = odd_mine:nothing", ModelError, r"mine = odd_mine:nothing of odd-mine 1\.0.*AttributeError"),
        ("mine = odd_mine", ModelError, "does not name an object; expected 'module:attribute'"),
        (
            "mine = odd_mine:number",
            ModelDefinitionError,
            r"is of type int; expected a Family[\s\S]*family = Family\(Model\)",
        ),
        (
            "mine = odd_mine:no_module",
            ModelDefinitionError,
            r"'mine', .* returned .*dict.*; expected a subclass",
        ),
    ],
)
def test_entry_points_that_are_not_a_family(
    entry: str, error: type[Exception], words: str, add: Add, llama: Path, tmp_path: Path
) -> None:
    code = "from hotshoe.families import Family\nnumber = 3\nno_module = Family(lambda metadata: dict)\n"
    add("odd-mine", entry, odd_mine=code)
    path = rewrite(llama, tmp_path / "m.gguf", {"general.architecture": "mine"})
    with pytest.raises(error, match=words):
        model_of(path)
    sys.modules.pop("odd_mine", None)


def test_an_unknown_architecture_says_in_short_where_the_known_ones_are_listed(llama: Path, tmp_path: Path) -> None:
    path = rewrite(llama, tmp_path / "m.gguf", {"general.architecture": "lama"})
    with pytest.raises(UnknownArchitectureError, match="'lama'") as error:
        model_of(path)
    assert "docs/families.md" in str(error.value.hint)
    assert len(str(error.value.hint)) < 120


def test_a_third_party_s_tokenizer_and_converter_are_found(add: Add, folder: Callable[..., Path]) -> None:
    add("odd-tokens", "odd = odd_tokens:build", families.TOKENIZERS, odd_tokens="build = 3\n")
    assert families.find(families.TOKENIZERS, "odd") == 3
    assert {"bert", "gpt2", "odd"} <= set(families.names(families.TOKENIZERS))
    add("other-llama", "LlamaForCausalLM = other_llama:describe", families.CONVERTERS)
    with pytest.raises(ModelError, match=r"'LlamaForCausalLM' .*claimed by 2"):
        convert(folder("LlamaForCausalLM"), folder("LlamaForCausalLM").parent / "never.gguf")
