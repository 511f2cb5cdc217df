"""How much faster guessed tokens make a text that repeats what it has read, and what they cost one that does not.

    python benchmarks/drafting.py MODEL.gguf [--rounds 5] [--threads N] [--tokens N]
    python benchmarks/drafting.py MODEL.gguf --llama-server PATH [--rounds 5] [--threads 2] [--tokens 400]
    python benchmarks/drafting.py MODEL.gguf --right 0.8,0.65,0.5 [--rounds 5] [--threads N] [--tokens N]
    python benchmarks/drafting.py MODEL.gguf --history COMMIT [--costs 1,1.13,1.5,2.06,3.1]

Without an option: the model writes a source file of hotshoe with some changes. Once it has read the file ("edit"), once
it has not ("new"). Each token is given by a constraint, so a file of random weights will do. With ``max_draft`` 0 and
15 by turns: tokens/s, the ratio, the tokens of a step, and the guesses that were right.

--right: for a model with a layer that guesses tokens (NextN), such as synthetic.py makes with --nextn. The layer
computes its guesses, but these are replaced: the first one is right with the first probability, the second one with the
second if the first was right, and so on. So a file of random weights shows how fast a trained one is.

--llama-server: llama.cpp's server and hotshoe's continue a prompt that has the file and the beginning of its copy, with
temperature 0. So the model must be one that copies, such as SmolLM2. llama.cpp runs without drafts, and with each way
of guessing from the text itself. The tokens/s are those that the servers report.

--history: simulate the choice of a draft's length on changes of hotshoe's own files, in a clone with its history: some
of the 400 commits up to this one. The model's file gives only the tokenizer. --costs: how long steps of 1, 2, 4, 8 and
16 rows take.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from serve import Server, free_port
from vocabulary import shown

import hotshoe
from hotshoe.runner import drafting
from hotshoe_core.gguf import GGUFFile

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "engine" / "hotshoe" / "runner" / "pace.py"
CHANGES = (("per_pair", "per_attended"), ("Pace", "Speed"), ("    rows = pairs = 0.0\n", ""))
COSTS = "1,1.13,1.5,2.06,3.1"
GUESSING = ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
Lengths = tuple[tuple[float, int], ...]
LENGTHS: dict[str, Lengths] = {
    "as it is": drafting.LENGTHS,
    "at most 7": ((0.8, 7), (0.5, 3), (0.25, 1)),
    "always 3": ((0.0, 3),),
    "always 7": ((0.0, 7),),
    "always 15": ((0.0, 15),),
}


class Given:
    """A constraint that allows one token at each place."""

    def __init__(self, tokens: Sequence[int], n_vocab: int) -> None:
        self._tokens = list(tokens)
        self._n = 0
        self._mask = np.ones(n_vocab, bool)

    @property
    def complete(self) -> bool:
        return self._n == len(self._tokens)

    def forbidden(self) -> np.ndarray[Any, Any]:
        self._mask[:] = True
        self._mask[self._tokens[self._n]] = False
        return self._mask

    def accept(self, id: int) -> None:
        self._n += 1


def texts() -> tuple[str, str]:
    """The source file, and the same with changes."""
    old = new = SOURCE.read_text(encoding="utf-8")
    for before, after in CHANGES:
        new = new.replace(before, after)
    return old, new


def replace_guesses(model: Any, n_prompt: int, tokens: Sequence[int], right: Sequence[float]) -> None:
    """Let the guesses of the model's layer be right so often. tokens: the text after ``n_prompt`` rows."""
    nextn, chance = model.engine.nextn, random.Random(0)
    if nextn is None:
        sys.exit("--right is for a model with a layer that guesses tokens; this one has none")
    compute = nextn.draft

    def draft(slot: int, items: Any, hidden: Any, n: int) -> list[int]:
        found = len(compute(slot, items, hidden, n))
        n_right = next((i for i, rate in enumerate(right[:found]) if chance.random() >= rate), min(found, len(right)))
        done = len(items) - n_prompt
        known = list(tokens[done : done + n_right])
        return known + [0] * (found - len(known))

    nextn.draft = draft


def compare(
    path: Path, rounds: int, threads: int | None, n_tokens: int | None, right: Sequence[float] | None = None
) -> None:
    old, new = texts()
    options: dict[str, Any] = {"n_ctx": 8192, "task": "text"} | ({"n_threads": threads} if threads else {})
    models = {n: hotshoe.load_model(path, "cpu", max_draft=n, **options) for n in (0, drafting.MAX_DRAFT)}
    tokenizer = models[0].tokenizer
    tokens = tokenizer.encode(new, add_special=False)[:n_tokens]
    kinds = {
        "edit": f"```\n{old}\n```\nThe same with other names:\n```\n",
        "new": "A new file:\n```\n",
    }
    if right is not None:
        del kinds["edit"]
        replace_guesses(models[drafting.MAX_DRAFT], len(tokenizer.encode(kinds["new"])), tokens, right)
    for kind, prompt in kinds.items():
        speeds: dict[int, list[float]] = {n: [] for n in models}
        ids = tokenizer.encode(prompt)
        done: dict[int, Any] = {}
        for i in range(rounds + 1):  # the first one builds the graphs
            for n, model in models.items():
                given = Given(tokens, tokenizer.vocab_size)
                done[n] = model.generate(ids, temperature=0, grammar=given, stop_tokens=[])
                if i:
                    speeds[n].append(done[n].tokens_per_second)
        plain, guessed = speeds.values()
        last = done[drafting.MAX_DRAFT]
        steps = len(last.tokens) - last.n_accepted
        print(
            f"{path.name}, {kind}: {shown(plain, 1)} tokens/s, with guesses {shown(guessed, 1)}, "
            f"ratio {shown([b / a for a, b in zip(plain, guessed, strict=True)], 2)}; {len(last.tokens)} tokens, "
            f"{len(last.tokens) / steps:.2f} a step, {last.n_accepted} of {last.n_drafted} guesses right",
            flush=True,
        )
    for model in models.values():
        model.close()


async def compare_servers(path: Path, rounds: int, threads: int, n_tokens: int, llama_server: Path) -> None:
    old, _ = texts()
    prompt = f"```\n{old}\n```\nThe same file again:\n```\n{old[:300]}"
    body = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0}
    ours = [sys.executable, "-m", "hotshoe", "serve", f"m={path}", "--device", "cpu", "--ctx", "8192"]
    ours += ["--threads", str(threads)]
    theirs = [str(llama_server), "-m", str(path), "-t", str(threads), "-c", "8192", "-np", "1"]
    commands = {"hotshoe, --max-draft 0": [*ours, "--max-draft", "0"], "hotshoe": ours, "llama.cpp": theirs}
    commands |= {f"llama.cpp, {kind}": [*theirs, "--spec-type", kind] for kind in GUESSING}
    speeds: dict[str, list[float]] = {name: [] for name in commands}
    servers = [Server(name, [*command, "--port", str(port := free_port())], port) for name, command in commands.items()]
    try:
        async with httpx.AsyncClient(timeout=600) as client:
            for server in servers:
                await server.start(client)
            for i in range(rounds + 1):
                for server in servers:
                    answer = await client.post(f"{server.url}/completion", json=body)
                    if i:
                        speeds[server.name].append(answer.json()["timings"]["predicted_per_second"])
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()
    for name, values in speeds.items():
        ratios = [a / b for a, b in zip(speeds["hotshoe"], values, strict=True)]
        print(f"{path.name}, {name}: {shown(values, 1)} tokens/s, hotshoe's is {shown(ratios, 2)} times as much")


def simulate(path: Path, last: str, costs: Sequence[float]) -> None:
    """Print how many tokens a unit of time would give. A step of one row takes 1."""
    from hotshoe.tokenizers import load_tokenizer

    with GGUFFile(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    pairs = [(tokenizer.encode(old), tokenizer.encode(new)) for old, new in changed_files(last)]
    print(f"{len(pairs)} files of {sum(len(new) for _, new in pairs):,} tokens, cost of 1, 2, 4, 8, 16 rows: {costs}")
    for name, lengths in LENGTHS.items():
        for kind in ("edit", "new"):
            runs = [run_of(old if kind == "edit" else [], new, costs, lengths) for old, new in pairs]
            n, seconds, n_drafted, n_accepted = (sum(column) for column in zip(*runs, strict=True))
            slowest = min(run[0] / run[1] for run in runs)
            print(
                f"{name}, {kind}: {n / seconds:.2f} times as fast, the slowest file {slowest:.2f}; "
                f"{n_accepted / max(1, n_drafted):.0%} of the guesses right"
            )


def run_of(
    prompt: Sequence[int], text: Sequence[int], costs: Sequence[float], lengths: Lengths
) -> tuple[int, float, int, int]:
    """Return tokens, time, guesses and right guesses of a text."""
    drafter = drafting.Drafter(prompt, lengths=lengths)
    done, seconds, n_drafted, n_accepted = 0, 0.0, 0, 0
    while done < len(text):
        draft = drafter.draft(min(drafting.MAX_DRAFT, len(text) - done - 1)) if done else []
        right = next((i for i, token in enumerate(draft) if token != text[done + i]), len(draft))
        seconds += float(np.interp(1 + len(draft), (1, 2, 4, 8, 16), costs))
        n_drafted, n_accepted = n_drafted + len(draft), n_accepted + right
        for token in text[done : done + right + 1]:
            drafter.add(token)
        done += right + 1
    return len(text), seconds, n_drafted, n_accepted


def changed_files(last: str) -> Iterator[tuple[str, str]]:
    """A file before and after a change, of every seventh of 400 commits."""
    for commit in git("log", "--format=%H", "-400", last).split()[::7]:
        for name in git("diff", "--name-only", "--diff-filter=M", f"{commit}~1", commit).split():
            if name.endswith((".py", ".md")):
                old, new = git("show", f"{commit}~1:{name}"), git("show", f"{commit}:{name}")
                if 500 < len(new) < 12_000:
                    yield old, new
                    break


def git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def rates(given: str) -> list[float]:
    found = [float(rate) for rate in given.split(",")]
    if not all(0 <= rate <= 1 for rate in found):
        raise ValueError
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, help="written by the model")
    parser.add_argument("--right", type=rates, help="of the guesses of the model's layer, such as 0.8,0.65,0.5")
    parser.add_argument("--llama-server", type=Path, metavar="PATH")
    parser.add_argument("--history", metavar="COMMIT")
    parser.add_argument("--costs")
    args = parser.parse_args(arguments)
    if args.history and (args.rounds or args.threads or args.tokens or args.llama_server or args.right):
        parser.error("--history simulates: of the other options it takes only --costs")
    if args.right and args.llama_server:
        parser.error("--right is without --llama-server")
    if args.costs and not args.history:
        parser.error("--costs is for --history")
    if args.history:
        simulate(args.file, args.history, [float(cost) for cost in (args.costs or COSTS).split(",")])
    elif args.llama_server:
        rounds, threads, n_tokens = args.rounds or 5, args.threads or 2, args.tokens or 400
        asyncio.run(compare_servers(args.file, rounds, threads, n_tokens, args.llama_server))
    else:
        compare(args.file, args.rounds or 5, args.threads, args.tokens, args.right)


if __name__ == "__main__":
    main()
