"""Measure the start of a program against its budgets: imports, discovery, load_all cold, warm and repeated.

    python benchmarks/loader.py [--rounds 11] [--json]

Each step runs in a new interpreter and times itself, without the interpreter's own start. The steps take turns.
Discovery is measured with folders of invented distributions, load_all with the installed plugins and a cache of its
own. The budget of its cold start is for 14 CPU libraries; a checkout builds two. HOTSHOE_GGML may name a folder with
a complete set, such as the one in npm's @node-llama-cpp/linux-x64.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

# A step may call t(), which starts the clock again; the clock first starts before the first line.
PRELUDE = """
import sys, time
def t():
    global begun
    begun = time.perf_counter()
t()
{code}
print(1000 * (time.perf_counter() - begun))
"""

DISCOVER = """
import os, hotshoe_loader.find as find
sys.path[:] = [p for p in sys.path if not p.endswith(("site-packages", "dist-packages"))] + [os.environ["SITE"]]
t()
found = find.find_plugins().plugins
assert [plugin.name for plugin in found] == ["made-up"], found
"""

PLUGINS = 2000
"""The number of distributions in a folder where each one is a plugin."""

DISCOVER_ALL = DISCOVER.replace('[plugin.name for plugin in found] == ["made-up"]', f"len(found) == {PLUGINS}")


class Step(NamedTuple):
    """One measured step: its code, its budget in milliseconds, and its environment."""

    name: str
    code: str
    budget: float | None = None
    cache: str | None = None  # "cold": empty each time; "warm": filled before
    distributions: int = 0


STEPS = (
    Step("import hotshoe", "import hotshoe", 25),
    Step("import numpy", "import numpy"),
    Step("import hotshoe, load_model", "import hotshoe; hotshoe.load_model"),
    Step("discovery, 200 distributions", DISCOVER, 20, distributions=200),
    Step("discovery, 1000 distributions", DISCOVER, distributions=1000),
    Step("discovery, 2000 plugins", DISCOVER_ALL, distributions=PLUGINS),
    Step("load_all, cold, after numpy", "import numpy; t(); import hotshoe; hotshoe.load_all()", 500, "cold"),
    Step("load_all, warm, after numpy", "import numpy; t(); import hotshoe; hotshoe.load_all()", 60, "warm"),
    Step("load_all, warm", "import hotshoe; hotshoe.load_all()", None, "warm"),
    Step("load_all, second call", "import hotshoe; hotshoe.load_all(); t(); hotshoe.load_all()", 1, "warm"),
)


def make_site(folder: Path, n: int) -> Path:
    """Make a folder with the metadata of ``n`` distributions, as pip writes it. One is a plugin; of PLUGINS, all."""
    site = folder / f"site-{n}"
    for i in range(n):
        info = site / f"made_up_{i}-1.{i}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: made-up-{i}\nVersion: 1.{i}\n\n" + "words\n" * 200
        )
        (info / "RECORD").write_text("".join(f"made_up_{i}/part{j}.py,sha256=0,{j}\n" for j in range(40)))
        plugin = i == n // 2 or n == PLUGINS
        group = "hotshoe.backends" if plugin else "console_scripts"
        if i % 3 == 0 or plugin:  # about the share that has entry points in an environment for machine learning
            (info / "entry_points.txt").write_text(f"[{group}]\nmade-up = made_up_{i}:main\n")
    return site


def measure(step: Step, folder: Path, sites: dict[int, Path], warm: Path) -> float:
    """Milliseconds of one step in one new interpreter."""
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith("HOTSHOE_") or key == "HOTSHOE_GGML"
    }
    # An installed package has bytecode files; here the first round writes them, regardless of the caller's environment.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        environ["XDG_CACHE_HOME"] = empty if step.cache == "cold" else str(warm)
        if step.distributions:
            environ["SITE"] = str(sites[step.distributions])
        command = [sys.executable, "-c", PRELUDE.format(code=step.code)]
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
    if done.returncode:
        sys.exit(f"{step.name} failed:\n{done.stderr}")
    return float(done.stdout)


def installed() -> str:
    """The plugins and libraries that load_all finds here: its numbers depend on them."""
    import hotshoe

    verdicts = hotshoe.load_all().verdicts
    plugins = [v for v in verdicts if v.kind == "plugin" and v.outcome.usable and v.candidate != "reference"]
    libraries = [v for v in verdicts if v.kind == "library"]
    return f"{len(plugins)} plugins ({', '.join(v.candidate for v in plugins)}), {len(libraries)} native libraries"


def main() -> None:
    parser = argparse.ArgumentParser(description="time the first steps of a program that uses hotshoe")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    times: dict[str, list[float]] = {step.name: [] for step in STEPS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sites = {n: make_site(folder, n) for n in {step.distributions for step in STEPS if step.distributions}}
        warm = folder / "warm"
        warm.mkdir()
        for round in range(args.rounds + 1):
            for step in STEPS:
                took = measure(step, folder, sites, warm)
                if round:  # the first round fills the caches of the disk, Python and hotshoe
                    times[step.name].append(took)
    rows = [(step, statistics.median(times[step.name]), min(times[step.name])) for step in STEPS]
    if args.json:
        report = {step.name: {"median": median, "least": least, "budget": step.budget} for step, median, least in rows}
        print(json.dumps({"installed": installed(), "ms": report}, indent=2))
        return
    print(f"{'ms':32} {'median':>7} {'least':>7} {'budget':>7}")
    for step, median, least in rows:
        over = "  over" if step.budget is not None and median > step.budget else ""
        print(f"{step.name:32} {median:7.1f} {least:7.1f} {step.budget or '':>7}{over}")
    print(f"\nload_all over {installed()}")


if __name__ == "__main__":
    main()
