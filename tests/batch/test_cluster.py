"""`hotshoe batch --ray` on a real cluster of two nodes. `make ray` installs Ray and runs this; else it is skipped."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch.conftest import MODEL, batch, check_all, command, texts, write

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: make ray", allow_module_level=True)

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
nodes = [cluster.add_node(**node)]
print("address", cluster.address, flush=True)
for order in sys.stdin:
    if order == "kill\\n":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
    else:
        nodes.append(cluster.add_node(**node))
    print("done", flush=True)
cluster.shutdown()
"""


class Cluster:
    """A cluster of two nodes, both on this machine: processes of Ray, with a process that starts and ends them."""

    def __init__(self) -> None:
        variables = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=variables,
        )
        self.address = self._wait("address ").strip()

    def kill_a_node(self) -> None:
        """End the second node as if its machine were switched off."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        self._wait("done")

    def _wait(self, start: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line.removeprefix(start)
        raise AssertionError("the cluster has ended")

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    opened = Cluster()
    yield opened
    opened.close()


def test_a_node_that_is_killed_costs_nothing(cluster: Cluster, tmp_path: Path) -> None:
    n, output = 200, tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", texts(n, 16))
    options = ("--parallel", "4", "--ray", cluster.address)
    running = subprocess.Popen(command(source, output, *MODEL, *options), stderr=subprocess.PIPE, text=True)
    while not output.exists() or output.read_bytes().count(b"\n") < n // 4:
        assert running.poll() is None
        time.sleep(0.01)
    cluster.kill_a_node()
    n_before = output.read_bytes().count(b"\n")
    _, said = running.communicate(timeout=200)
    assert running.returncode == 0, said
    assert n_before < n, "the batch ended before the node did"
    assert said.count("verse: cpu (ggml-cpu") == 2, "one engine on each node"
    assert "was lost: " in said
    check_all(output, n)


def test_what_is_wrong_is_said(cluster: Cluster, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", texts(1))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    done = batch(source, tmp_path / "out.jsonl", broken, "--ray", cluster.address)
    assert done.returncode == 2
    assert "engine 0): " in done.stderr
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr
    done = batch(source, tmp_path / "out.jsonl", "--ray", *MODEL)
    assert "it takes a word after it as the address" in done.stderr
    assert (tmp_path / "out.jsonl").read_bytes() == b""
