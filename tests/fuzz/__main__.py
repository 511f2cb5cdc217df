"""`python -m tests.fuzz MINUTES`: every target in turn, in children with limits; ends with a table of outcomes.

A target is a module of this folder with ``run(seed) -> str``, which makes one case from a seed and says what came of
it ("same", "refused", "answered"), or raises Fault; see tests/fuzz/targets.py. A child that crashes, takes longer than
20 s for a case or more than 2 GiB costs its batch, never the run; each fault is printed with the command that repeats
it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.targets import TARGETS, load, outcome_of

SECONDS = 20.0  # for one case
RESIDENT = 2 << 30  # bytes
BATCH = 30.0  # seconds of one child
SOUND = ("same", "refused", "answered")
REPEAT = "python -m tests.fuzz --repeat {target} {seed}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10.0, help="for all targets together")
    parser.add_argument("--targets", default=",".join(TARGETS), help="some of them, with commas")
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first case of each target")
    parser.add_argument("--repeat", nargs=2, metavar=("TARGET", "SEED"), help="one case, in this process")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return work(args.child[0], int(args.child[1]), float(args.child[2]))
    if args.repeat:
        target = load(args.repeat[0])
        print(target.run(int(args.repeat[1])))
        return 0
    names = args.targets.split(",")
    unknown = set(names) - set(TARGETS)
    if unknown:
        parser.error(f"no target {sorted(unknown)[0]!r}; there are {', '.join(TARGETS)}")
    outcomes = {name: Counter[str]() for name in names}
    seeds = dict.fromkeys(names, args.seed)
    end = time.monotonic() + 60 * args.minutes
    for name in itertools.cycle(names):
        left = end - time.monotonic()
        if left <= 0:
            break
        seeds[name] = batch(name, seeds[name], min(BATCH, left), outcomes[name])
    print(table(outcomes, seeds, args.seed), flush=True)
    return int(any(found.keys() - set(SOUND) for found in outcomes.values()))


def batch(name: str, first: int, seconds: float, outcomes: Counter[str]) -> int:
    """Cases of one target in a child, from seed ``first`` on. Returns the seed to go on with."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", "--child", name, str(first), str(seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    assert child.stderr is not None
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
    listening = threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True)
    listening.start()
    seed, began, found = first, time.monotonic() + 40, ""  # 40 s more for what it sets up
    while True:
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            if time.monotonic() - began > SECONDS:
                found = "hang"
            elif _resident(child.pid) > RESIDENT:
                found = "large"
            if found:
                child.kill()
                break
            continue
        if line is None:
            break
        number, _, outcome = line.partition(" ")
        if not outcome:
            seed, began = int(number), time.monotonic()
            continue
        word, _, message = outcome.partition(": ")
        outcomes[word] += 1
        seed, began = int(number) + 1, time.monotonic()
        if word not in SOUND:
            print(f"{name}: {word}: {message}\n    {REPEAT.format(target=name, seed=number)}", flush=True)
    code = child.wait()
    listening.join(5)
    if code or found:
        found = found or (f"crash ({-code})" if code < 0 else "died")
        outcomes[found] += 1
        last = "".join(errors[-12:]).rstrip()
        print(f"{name}: {found}\n    {REPEAT.format(target=name, seed=seed)}\n{last}", flush=True)
        seed += 1
    return seed


def work(name: str, first: int, seconds: float) -> int:
    """In a child: cases for so many seconds. A line with the seed before each case, one with the outcome after it."""
    target = load(name)
    end = time.monotonic() + seconds
    known = target.SEEDS if first == 1_000_000 else ()
    for seed in itertools.chain(known, itertools.count(first)):
        if time.monotonic() > end:
            break
        print(seed, flush=True)
        print(seed, outcome_of(target, seed), flush=True)
    return 0


def table(outcomes: dict[str, Counter[str]], seeds: dict[str, int], first: int) -> str:
    """Of each target: cases by outcome, and where its seeds ended."""
    others = sorted({word for found in outcomes.values() for word in found} - set(SOUND))
    rows = [["target", "cases", *SOUND, *others, "seeds"]]
    for name, found in outcomes.items():
        counts = [str(found[word]) for word in (*SOUND, *others)]
        rows.append([name, str(found.total()), *counts, f"{first} to {seeds[name] - 1}"])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _read(stream: object, lines: queue.Queue[str | None]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line.rstrip("\n"))
    lines.put(None)


def _resident(pid: int) -> int:
    """Bytes of a process in memory; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
