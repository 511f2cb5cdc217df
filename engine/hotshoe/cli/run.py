"""``hotshoe run MODEL PROMPT``: continue a text."""

from __future__ import annotations

import argparse
import sys

from hotshoe.cli.generating import add_options, load, options, summary

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``run``."""
    parser = subparsers.add_parser(
        "run",
        help="continue a text",
        description="Continue a text, token by token. Without a prompt, it is read from standard input.",
    )
    add_options(parser)
    parser.add_argument("text", nargs="*", metavar="prompt")
    parser.add_argument("-v", "--verbose", action="store_true", help="say on stderr where it ran, and how fast")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the continuation as it comes."""
    prompt = " ".join(args.text) or sys.stdin.read()
    with load(args) as model:
        stream = model.stream(prompt, **options(args))
        for piece in stream:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        if args.verbose:
            print(f"{model.why}\n{summary(stream.completion)}", file=sys.stderr)
    return 0
