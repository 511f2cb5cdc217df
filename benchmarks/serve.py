"""Load `hotshoe serve` with many clients, next to llama.cpp's server: speed, waiting, memory, and the same answers.

    python benchmarks/serve.py MODEL.gguf --clients 1,8,32 --rounds 3 --llama-server PATH
    python benchmarks/serve.py MODEL.gguf --clients 64 --seconds 300 --check
    python benchmarks/serve.py MODEL.gguf --long 16000 --ctx 20000
    python benchmarks/serve.py MODEL.gguf --swap 16000 --ctx 20000

--check: every greedy answer of hotshoe must be the one that a single client gets. --near: except for near ties: where
they part, the log probabilities of the two tokens differ by less (0 by default; a GPU needs it). --long: while prompts
of so many words arrive, how long do those wait who talk, and a short request? --swap: how long does the second turn of
a conversation of so many words take after the model was unloaded, and how long did the first?
--llama-server: llama.cpp's server runs twice, with flash attention and without; the better one of each round counts.
Servers take turns, with the same file, threads and room in the cache; only one computes at a time. The last lines have
the medians of the ratios of all rounds; above 1, hotshoe is better.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

WORDS = "the river was wide and slow so nobody had ever tried to cross it before winter came with snow".split()
_MOST_WAITING = 600.0  # seconds for a server to start


@dataclass
class Request:
    """A prompt of about ``n`` words, and the tokens of its answer."""

    prompt: str
    n_predict: int


@dataclass
class Result:
    """What a client saw of one request: seconds, and the answer."""

    request: Request
    first: float
    gaps: list[float]
    seconds: float
    text: str
    n_prompt: int
    n_tokens: int


@dataclass
class Load:
    """The numbers of one load of one server."""

    server: str
    clients: int
    tokens_per_second: float = 0.0
    prompt_tokens_per_second: float = 0.0
    first_p50: float = 0.0
    first_p95: float = 0.0
    gap_p50: float = 0.0
    gap_p95: float = 0.0
    longest_gap: float = 0.0
    requests: int = 0
    lost: int = 0
    near_ties: int = 0
    """Answers that went on with another token than alone, where both were about as probable."""
    differ: int = 0
    """Answers that differ otherwise."""
    megabytes: list[int] = field(default_factory=list)


def request_of(draw: random.Random, low: int = 16, high: int = 400) -> Request:
    """A request of a random length; the first words of many are the same, as system prompts are."""
    shared = WORDS * draw.choice((0, 0, 2, 4))
    n = round(low * (high / low) ** draw.random())
    return Request(" ".join(shared + draw.choices(WORDS, k=n)), draw.choice((8, 16, 32, 64)))


class Server:
    """A server in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], port: int) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def start(self, client: httpx.AsyncClient) -> None:
        """Wait until it answers."""
        end = time.monotonic() + _MOST_WAITING
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if (await client.get(f"{self.url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
        raise SystemExit(f"{self.name} did not start")

    def megabytes(self) -> int:
        """The resident memory of its processes, without the file, which is mapped."""
        found = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                text = status.read_text()
            except OSError:
                continue
            parent = re.search(r"^PPid:\s+(\d+)", text, re.MULTILINE)
            if parent and self.process.pid in (int(parent[1]), int(status.parent.name)):
                found += sum(int(kb) for kb in re.findall(r"^RssAnon:\s+(\d+)", text, re.MULTILINE))
        return found >> 10

    async def ask(self, client: httpx.AsyncClient, request: Request) -> Result:
        """Send a request, and read its answer as it comes."""
        body = {"prompt": request.prompt, "n_predict": request.n_predict, "temperature": 0, "stream": True}
        start = last = time.perf_counter()
        first, gaps, text, end = 0.0, list[float](), "", dict[str, Any]()
        async with client.stream("POST", f"{self.url}/completion", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ConnectionError(event["error"])
                now = time.perf_counter()
                if event["content"]:
                    if first:
                        gaps.append(now - last)
                    first, last = first or now - start, now
                text += event["content"]
                end = event if event["stop"] else end
        seconds = time.perf_counter() - start
        return Result(request, first or seconds, gaps, seconds, text, end["tokens_evaluated"], end["tokens_predicted"])

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


async def load(
    server: Server, client: httpx.AsyncClient, n: int, seconds: float, near: float | None, most_words: int
) -> Load:
    """Let ``n`` clients ask for some seconds, one request after the other. near: None for no check of the answers."""
    found, results, memory = Load(server.name, n), list[Result](), [server.megabytes()]
    end = time.monotonic() + seconds

    async def ask(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            try:
                results.append(await server.ask(client, request_of(draw, high=most_words)))
            except (httpx.HTTPError, OSError):
                found.lost += 1

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(min(10.0, seconds / 4))
            memory.append(server.megabytes())

    start = time.perf_counter()
    await asyncio.gather(watch(), *(ask(i) for i in range(n)))
    took = time.perf_counter() - start
    gaps = [gap for result in results for gap in result.gaps]
    found.requests, found.megabytes = len(results), memory
    found.tokens_per_second = sum(result.n_tokens for result in results) / took
    found.prompt_tokens_per_second = sum(result.n_prompt for result in results) / took
    found.first_p50, found.first_p95 = quantiles([result.first for result in results])
    found.gap_p50, found.gap_p95 = quantiles(gaps)
    found.longest_gap = max(gaps, default=0.0)
    if near is not None:  # the same requests again, one at a time
        for result in results:
            alone = await server.ask(client, result.request)
            if alone.text != result.text:
                tie = await is_near_tie(server, client, alone, result.text, near)
                found.near_ties, found.differ = found.near_ties + tie, found.differ + (not tie)
    return found


async def is_near_tie(server: Server, client: httpx.AsyncClient, alone: Result, text: str, near: float) -> bool:
    """Whether ``text`` goes on with a token about as probable as the one of the answer alone, where the two part."""
    request = alone.request
    body = {"model": "m", "prompt": request.prompt, "max_tokens": request.n_predict, "temperature": 0, "logprobs": 5}
    answer = (await client.post(f"{server.url}/v1/completions", json=body)).json()["choices"][0]
    return answer["text"] == text or parts_at_near_tie(answer["logprobs"], text, near)


def parts_at_near_tie(logprobs: dict[str, Any], text: str, near: float) -> bool:
    """Whether ``text`` takes another token, about as probable, at the first place where it leaves these tokens.

    near: the log probabilities of the two differ by less.
    """
    start = 0
    for token, best, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        others = [other for other, value in top.items() if other != token and best - value < near]
        if any(text.startswith(other, start) for other in others):
            return True
        if not text.startswith(token, start):
            return False
        start += len(token)
    return False


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 95th of 100."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return cuts[9], cuts[18]


async def long_prompts(server: Server, client: httpx.AsyncClient, n: int, talkers: int = 4) -> dict[str, Any]:
    """While two prompts of ``n`` words arrive: the longest waits of those who talk, and of short requests."""
    draw = random.Random(1)
    await server.ask(client, Request("Once", 4))
    arriving = [
        asyncio.ensure_future(server.ask(client, Request(" ".join(draw.choices(WORDS, k=n)), 1))) for _ in range(2)
    ]
    talks, shorts = list[Result](), list[Result]()

    async def talk() -> None:
        while not all(task.done() for task in arriving):
            talks.append(await server.ask(client, Request(" ".join(draw.choices(WORDS, k=20)), 100)))

    async def ask_shortly() -> None:
        while not all(task.done() for task in arriving):
            shorts.append(await server.ask(client, Request(" ".join(draw.choices(WORDS, k=50)), 1)))
            await asyncio.sleep(1)

    await asyncio.gather(*arriving, ask_shortly(), *(talk() for _ in range(talkers)))
    gaps = [gap for result in talks for gap in result.gaps]
    return {
        "server": server.name,
        "long_prompt_tokens": arriving[0].result().n_prompt,
        "long_prompt_seconds": [round(task.result().seconds, 1) for task in arriving],
        "gap_p50": round(quantiles(gaps)[0], 3),
        "gap_p95": round(quantiles(gaps)[1], 3),
        "longest_gap": round(max(gaps, default=0.0), 3),
        "short_first_p50": round(quantiles([r.first for r in shorts])[0], 3),
        "short_first_longest": round(max(r.first for r in shorts), 3),
    }


async def swap(server: Server, client: httpx.AsyncClient, n: int) -> dict[str, Any]:
    """The seconds to the first token of a conversation's first turn, and of its second after the model was unloaded."""
    prompt = " ".join(random.Random(2).choices(WORDS, k=n))
    first = await server.ask(client, Request(prompt, 8))
    done = await client.post(f"{server.url}/api/generate", json={"model": "m", "keep_alive": 0})
    done.raise_for_status()
    start = time.perf_counter()
    await client.post(f"{server.url}/api/generate", json={"model": "m"})
    loading = time.perf_counter() - start
    second = await server.ask(client, Request(f"{prompt}{first.text} and then", 8))
    return {
        "server": server.name,
        "prompt_tokens": [first.n_prompt, second.n_prompt],
        "first_turn": round(first.first, 3),
        "loading": round(loading, 3),
        "second_turn": round(second.first, 3),
        "ratio": round(first.first / (loading + second.first), 2),
    }


def ratios(rounds: Sequence[Sequence[Load]]) -> list[dict[str, Any]]:
    """For each number of clients: how many times better hotshoe is than the best other server, as medians of rounds."""
    found = []
    for n in dict.fromkeys(each.clients for loads in rounds for each in loads):
        line: dict[str, Any] = {"clients": n}
        for name in ("tokens_per_second", "first_p95", "gap_p95"):
            each_round = []
            for loads in rounds:
                ours = [getattr(each, name) for each in loads if each.clients == n and each.server == "hotshoe"]
                others = [getattr(each, name) for each in loads if each.clients == n and each.server != "hotshoe"]
                each_round.append(ours[0] / max(others) if name == "tokens_per_second" else min(others) / ours[0])
            line[name] = [
                round(value, 2) for value in (statistics.median(each_round), min(each_round), max(each_round))
            ]
        found.append(line)
    return found


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def servers_of(args: argparse.Namespace, folder: str) -> list[Server]:
    """The servers, each with room for the same number of tokens. folder: for prefixes on the disk."""
    port, threads = free_port(), str(args.threads)
    command = [sys.executable, "-m", "hotshoe", "serve", f"m={args.model}", "--port", str(port), "--threads", threads]
    command += ["--device", args.device, "--ctx", str(args.ctx), "--sequences", str(args.sequences)]
    command += ["--max-requests", "128", "--prefix-memory", args.prefix_memory, "--prefix-folder", folder]
    command += ["--prefix-disk", "4GiB" if args.swap else "0"]
    command += ["--max-draft", str(args.max_draft)]
    command += ["--max-step-seconds", str(args.max_step_seconds)] if args.max_step_seconds is not None else []
    found = [Server("hotshoe", command, port)]
    for flash in ("on", "off") if args.llama_server else ():
        port = free_port()
        command = [args.llama_server, "-m", str(args.model), "--port", str(port), "-t", threads, "-fa", flash]
        command += ["-c", str(args.ctx * args.sequences), "-np", str(args.slots), "-kvu"]
        found.append(Server(f"llama.cpp, flash attention {flash}", command, port))
    return found


async def measure(args: argparse.Namespace, folder: str) -> int:
    """Measure; return 1 if an answer was lost or differs."""
    servers = servers_of(args, folder)
    rounds: list[list[Load]] = []
    try:
        async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:
            for server in servers:
                await server.start(client)
            if args.swap:
                print(json.dumps(await swap(servers[0], client, args.swap)), flush=True)
                return 0
            for _ in range(args.rounds):
                rounds.append([])
                for server in servers if args.long else ():
                    print(json.dumps(await long_prompts(server, client, args.long)), flush=True)
                for n, server in [] if args.long else [(n, server) for n in args.clients for server in servers]:
                    found = await load(server, client, n, args.seconds, args.near, min(400, args.ctx // 4))
                    rounds[-1].append(found)
                    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(found).items()}
                    print(json.dumps(rounded), flush=True)
    finally:
        for server in servers:
            server.stop()
    for line in ratios(rounds) if len(servers) > 1 else ():
        print(json.dumps(line))
    return int(any(found.lost or found.differ for loads in rounds for found in loads))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each load")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="compare each answer with that to a single client")
    parser.add_argument("--near", type=float, help="the log probabilities of a near tie differ by less; default: 0")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--long", type=int, default=0, metavar="N", help="prompts of N words arrive meanwhile")
    kinds.add_argument("--swap", type=int, default=0, metavar="N", help="a conversation of N words, its model unloaded")
    parser.add_argument("--llama-server", metavar="PATH", help="the program of llama.cpp's server")
    parser.add_argument("--slots", type=int, default=32, help="of llama.cpp's server")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=8, help="room in the cache, in texts of --ctx tokens")
    parser.add_argument("--prefix-memory", default="128MiB")
    parser.add_argument("--max-draft", type=int, default=0, help="of hotshoe's server; llama.cpp's guesses no tokens")
    parser.add_argument("--max-step-seconds", type=float, help="of hotshoe's server; default: the server's own")
    args = parser.parse_args()
    if args.check and (args.long or args.swap):
        parser.error("--check compares the answers to --clients; leave out --long and --swap")
    if args.near is not None and not args.check:
        parser.error("--near says what --check takes for a near tie; add --check")
    if args.check and args.near is None:
        args.near = 0.0
    if args.swap and args.llama_server:
        parser.error("--swap measures hotshoe only; leave out --llama-server")
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(args, folder))


if __name__ == "__main__":
    sys.exit(main())
