"""What a notebook shows of a registry, a model, a plan and a comparison, and their short reprs."""

from __future__ import annotations

from pathlib import Path

import hotshoe
from hotshoe.cli.compare import compare
from hotshoe.loading import plan_model
from hotshoe_core import Device, DeviceType
from hotshoe_core.inspect.trace import trace
from hotshoe_core.inspect.tracefile import read_trace

MODEL = Path(__file__).resolve().parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"


def test_a_registry_shows_devices_and_verdicts() -> None:
    registry = hotshoe.load_all()
    html = registry._repr_html_()
    assert registry.why() in html
    assert all(f">{verdict.candidate}<" in html for verdict in registry.verdicts)


def test_a_model_shows_its_memory_until_it_is_closed() -> None:
    with hotshoe.load_model(MODEL, "reference") as model:
        assert repr(model) == "<TextModel KJV 3M n_ctx=512 on reference>"
        assert ">reference<" in model._repr_html_()
        assert ">reference<" in model.memory()._repr_html_()
    assert "(closed)" in model._repr_html_()


def test_a_plan_says_whether_it_fits() -> None:
    gpu = Device("npu:0", DeviceType.GPU, "acme", "acme", "Acme", 1 << 30, 1 << 30)
    plan = plan_model(MODEL, simulate=[gpu])
    assert repr(plan) == "<Plan: llama, n_ctx=512, on npu:0: fits>"
    assert "available 1.0 GiB" in plan._repr_html_()
    small = Device("npu:0", DeviceType.GPU, "acme", "acme", "Acme", 1 << 20, 1 << 20)
    assert repr(plan_model(MODEL, simulate=[small])).endswith("does not fit>")


def test_a_comparison_shows_where_two_traces_differ(tmp_path: Path) -> None:
    for name, text in (("a", "In the beginning"), ("b", "In the midst of"), ("c", "In the beginning")):
        with hotshoe.load_model(MODEL, "reference") as model, trace(tmp_path / f"{name}.jsonl"):
            model.logits(model.tokenizer.encode(text))
    a, b, c = (read_trace(tmp_path / f"{name}.jsonl") for name in "abc")
    same = compare(a, c)
    assert repr(same).endswith("all agree>")
    assert same._repr_html_().count("<tr>") == 21
    other = compare(a, b)
    assert other.first is not None
    assert f"the first difference is at {other.first.node.name}" in repr(other)
    assert f">{other.first.node.name}<" in other._repr_html_()
