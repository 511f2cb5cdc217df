"""The engines that benchmarks/generate.py compares, with their settings, and how each is measured.

A measure is a list as benchmarks/engines.py takes it: ["prompt", tokens], ["fresh", tokens], ["decode", depth, steps],
["many", depth, steps], ["write", depth, steps], ["start", depth, steps], ["generate", depth, steps],
["look", width, height]. Only one engine computes at a time.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

Measure = Sequence[Any]
Answer = Mapping[str, Any]
NEW_PROCESS = ("start", "fresh")
"""Measures that use a process of their own."""
LONG = 2048
"""From this number of tokens on a measure is long: it runs fewer times, and warms itself up."""


def is_long(measure: Measure) -> bool:
    """Whether it reads LONG tokens or more, or a picture."""
    return measure[0] == "look" or (measure[0] in ("prompt", "fresh", "decode", "write") and int(measure[1]) >= LONG)


def warms_itself_up(measure: Measure) -> bool:
    """Whether the first turn counts: a long prompt comes before what is timed, and touches the same memory."""
    return measure[0] in ("decode", "write") and is_long(measure)


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


class MeasureError(Exception):
    """An engine could not be measured; the message contains its output."""


class Contender(Protocol):
    """An engine in one setting that has a file open, or opens it for each measure."""

    def ask(self, measure: Measure) -> Answer:
        """Measure once; return the numbers by name."""

    def close(self) -> None:
        """End its process."""


@dataclass(frozen=True)
class Job:
    """What to open: a file, with a cache for ``n_ctx`` tokens of each of ``sequences`` sequences."""

    file: Path
    threads: int
    n_ctx: int
    sequences: int = 1
    kv_dtype: str = "f16"
    projector: Path | None = None
    """The file of the encoder of pictures."""

    def arguments(self) -> dict[str, Any]:
        """The arguments for the constructor of an engine in benchmarks/engines.py."""
        return asdict(self) | {"file": str(self.file), "projector": self.projector and str(self.projector)}


@dataclass(frozen=True)
class Setting:
    """An engine with its options. ``measures`` are the names of the measures that it supports."""

    engine: str
    name: str
    measures: frozenset[str]
    how: tuple[str, ...]
    options: Mapping[str, Any] = field(hash=False, default_factory=dict)

    def open(self, job: Job) -> Contender:
        if self.engine == "ik_llama.cpp":
            return LlamaBench(Path(self.how[0]), job, self.options["repack"])
        return Worker([*self.how, self.engine], {**job.arguments(), **self.options})


def settings(
    llama_python: str | None, ik_bench: str | None, device: str = "cpu", library: str | None = None
) -> list[Setting]:
    """hotshoe and the given peers, each in all settings that are tried; the best one counts.

    device: hotshoe's. library: the file with which llama.cpp's ggml opens the same device.
    """
    worker = str(Path(__file__).with_name("engines.py"))
    common = frozenset({"prompt", "decode", "many", "write", "look"})
    new = frozenset(NEW_PROCESS)
    ours = {"device": device}
    found = [Setting("hotshoe", "", common | new | {"generate"}, (sys.executable, worker), ours)]
    if llama_python:
        for flash, repack in itertools.product((True, False), (False,) if library else (True, False)):
            name = f"flash attention {_on(flash)}" + ("" if library else f", repack {_on(repack)}")
            options = {"flash": flash, "repack": repack, "library": library}
            found.append(Setting("llama.cpp", name, common | new, (llama_python, worker), options))
    if ik_bench:
        many = {"many"} if batched_bench(Path(ik_bench)).exists() else set()
        for repack in (False, True):
            known = frozenset({"prompt", "decode", *many})
            found.append(Setting("ik_llama.cpp", f"-rtr {repack:d}", known, (ik_bench,), {"repack": repack}))
    return found


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def batched_bench(llama_bench: Path) -> Path:
    """The program for several sequences at once, next to llama-bench."""
    return llama_bench.with_name(llama_bench.name.replace("llama-bench", "llama-batched-bench"))


class Worker:
    """A process that loads the file once and then measures on request. A measure of NEW_PROCESS uses a new one."""

    def __init__(self, command: Sequence[str], arguments: Mapping[str, Any]) -> None:
        self.command = [*command, json.dumps(arguments)]
        self.process: subprocess.Popen[str] | None = None

    def ask(self, measure: Measure) -> Answer:
        if measure[0] in NEW_PROCESS:
            self.close()
        time.sleep(0.1)  # threads of the previous engine spin for a while before they sleep
        if not self.process:
            pipe = subprocess.PIPE
            self.complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 | until it is closed
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=self.complaints, text=True)
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(json.dumps(measure) + "\n")
            self.process.stdin.flush()
            answer: Answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError) as error:  # a broken pipe, or a line that is not JSON
            self.process.kill()
            raise MeasureError(self._why(measure[0])) from error
        if measure[0] in NEW_PROCESS:
            self.close()
        return answer

    def _why(self, what: str) -> str:
        assert self.process
        code = self.process.wait()
        self.complaints.seek(0)
        output = self.complaints.read().strip()[-2000:]
        self.close()
        return f"{' '.join(self.command)}: ended with code {code} at {what!r}\n{output}"

    def close(self) -> None:
        if not self.process:
            return
        with self.process, self.complaints, suppress(OSError):  # the process may have ended already
            self.process.communicate()
        self.process = None


class LlamaBench:
    """ik_llama.cpp's own programs, started for each measure, with flash attention, which is their default.

    A measure of fewer than LONG tokens runs twice in the process; the first, which touches the pages, does not count.
    """

    def __init__(self, program: Path, job: Job, repack: bool) -> None:
        self.program, self.job, self.repack = program.absolute(), job, repack

    def ask(self, measure: Measure) -> Answer:
        name, *sizes = measure
        n, *steps = map(int, sizes)
        if name == "many":
            return {"many": self._many(n, *steps)}
        if name == "prompt":
            what = ["-p", str(n), "-n", "0"]
        else:
            what = ["-p", "0", "-n", "0", "-gp", f"{n},{steps[0]}"]
        repetitions = "1" if is_long(measure) else "2"
        done = self._run(self.program, "-fa", "1", "-rtr", f"{self.repack:d}", *what, "-r", repetitions, "-o", "json")
        [test] = json.loads(done.stdout)
        return {str(name): test["samples_ts"][-1]}

    def _many(self, depth: int, steps: int) -> float:
        n = self.job.sequences
        sizes = {"-c": n * (depth + steps), "-npp": depth, "-ntg": steps, "-npl": n, "-tb": self.job.threads}
        flags = [str(word) for pair in sizes.items() for word in pair] + ["-rtr"] * self.repack
        done = self._run(batched_bench(self.program), "-fa", "on", *flags)
        row = re.search(rf"^\|\s*{depth} \|\s*{steps} \|\s*{n} \|(.*)\|", done.stdout + done.stderr, re.MULTILINE)
        if not row:
            raise MeasureError(f"{' '.join(done.args)}: printed no row of speeds\n{done.stderr[-2000:]}")
        return float(row[1].split("|")[4])  # N_KV, T_PP, S_PP, T_TG, S_TG, …

    def _run(self, program: Path, *options: str) -> subprocess.CompletedProcess[str]:
        cache = [word for flag in ("-ctk", "-ctv") for word in (flag, self.job.kv_dtype)]
        command: list[Any] = [program, "-m", self.job.file.absolute(), "-t", self.job.threads, *cache, *options]
        command = [str(word) for word in command]
        with tempfile.TemporaryDirectory() as scratch:  # it leaves a log where it runs
            done = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
        if done.returncode:
            raise MeasureError(f"{' '.join(command)}: ended with code {done.returncode}\n{done.stderr[-2000:]}")
        return done

    def close(self) -> None:
        """Do nothing: no process stays open."""
