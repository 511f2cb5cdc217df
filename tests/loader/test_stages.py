"""The stages of a survey: each returns what passed and the verdicts on the rest; verdicts keep the order of plugins."""

from __future__ import annotations

from hotshoe_loader import Outcome, load_all
from hotshoe_loader.find import find_plugins
from hotshoe_loader.ggml.file_names import LibraryCandidate
from hotshoe_loader.ggml.without_plugin import vet_without_plugin
from hotshoe_loader.policy import Policy
from hotshoe_loader.vet import vet_plugins


def test_vet_returns_the_plugins_that_pass_and_a_verdict_on_each_other_one(site):
    for name in ("aaa", "bbb", "ccc"):
        site.good(name)
    plugins = find_plugins().plugins
    policy = Policy(block=["bbb", "no-such"])
    passed, verdicts = vet_plugins(plugins, policy)
    assert [plugin.name for plugin in passed] == ["aaa", "ccc"]
    assert [plugin.name for plugin in verdicts] == ["bbb"]
    assert [verdict.outcome for verdict in verdicts[plugins[1]]] == [Outcome.BLOCKED]
    assert policy.unmatched == [("block", "no-such")]


def test_libraries_without_a_plugin_pass_if_a_plugin_drives_them(natives):
    natives.variant("strange", None)
    found = {
        name: [LibraryCandidate(natives.folder / f"libggml-{name}.so", name, "")]
        for name in ("strange", "gpu", "reference")
    }
    passed, verdicts = vet_without_plugin(found, Policy(), has_driver=True)
    assert passed == {"strange": found["strange"]}
    assert [(verdict.candidate, verdict.outcome) for verdict in verdicts] == [
        ("ggml-gpu", Outcome.INCOMPATIBLE_API),
        ("ggml-reference", Outcome.SHADOWED),
    ]


def test_the_verdicts_keep_the_order_of_the_plugins(site):
    """Whatever stage they come from: refused before the probe, rejected by it, or usable."""
    site.good("aaa", "'aaa', devices=('aaa:0',)")
    site.install("bbb", "raise KeyboardInterrupt")
    site.install("ccc", "import nowhere")
    site.good("ddd", "'ddd', devices=('aaa:0', 'ddd:0')")
    found = [(verdict.candidate, verdict.outcome.value) for verdict in load_all(block="bbb").verdicts]
    assert found[:4] == [("aaa", "available"), ("bbb", "blocked"), ("ccc", "missing-dependency"), ("ddd", "available")]
    assert found[-1] == ("reference", "available")
