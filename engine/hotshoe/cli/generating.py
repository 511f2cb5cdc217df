"""What `hotshoe run` and `hotshoe chat` share: sampling options, grammars, loading a text model, the summary."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.options import add_backend_options, add_runner_options, load_options, read_text
from hotshoe.cli.progress import bar

if TYPE_CHECKING:
    from hotshoe.runner.stream import Completion
    from hotshoe.runner.text import TextModel
    from hotshoe.sampling import Grammar

__all__ = ["add_options", "add_media_options", "load", "read_grammar", "sampling_options", "summary"]

_SAMPLING = (
    ("temperature", float, 0.8, "how random the choice is; 0: always the most likely token"),
    ("top_k", int, 40, "choose among the N most likely tokens; 0: all"),
    ("top_p", float, 0.95, "choose among the most likely tokens whose probabilities sum to N; 1: all"),
    ("min_p", float, 0.05, "remove tokens that are less likely than N times the most likely one; 0: none"),
    ("typical_p", float, 1.0, "keep the tokens nearest to the expected probability, until they sum to N; 1: all"),
    ("repetition_penalty", float, 1.0, "make tokens that are among the last 64 less likely: divide by N; 1: off"),
    ("presence_penalty", float, 0.0, "subtract N from the logit of a token that is among the last 64; 0: off"),
    ("frequency_penalty", float, 0.0, "subtract N for each time that the token is among the last 64; 0: off"),
)
"""Fields of SamplingParams: type, default, help."""


def _or_default(text: str) -> int | None:
    """A number; -1, as in llama.cpp, for the default."""
    return None if text == "-1" else int(text)


_or_default.__name__ = "int"  # argparse names the type in its message
_COUNTS = (
    ("max_tokens", "write at most N tokens; default: until the model ends the text, or the context is full"),
    ("seed", "the same seed gives the same text; default: a new seed each time"),
    ("context_shift", "when the context is full, keep its first N tokens, remove half of the others and go on"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the model, and how to choose tokens and where to compute."""
    parser.add_argument("model", metavar="MODEL", help="a GGUF file of a text model")
    group = parser.add_argument_group("choosing tokens")
    for name, text in _COUNTS:
        group.add_argument(f"--{name.replace('_', '-')}", type=_or_default, metavar="N", help=text)
    for name, kind, default, text in _SAMPLING:
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=f"{text}. Default: {default:g}")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )
    grammars = group.add_mutually_exclusive_group()
    grammars.add_argument("--json-schema", metavar="FILE|JSON", help="write JSON that fits this JSON schema")
    grammars.add_argument(
        "--grammar", type=Path, metavar="FILE", help="write a text that fits this grammar: GBNF, or Lark if named .lark"
    )
    grammars.add_argument("--format", choices=("json",), help=argparse.SUPPRESS)  # Ollama's name
    add_runner_options(parser)
    add_backend_options(parser)
    add_media_options(parser)


def add_media_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which encoders of pictures and sounds belong to the model."""
    group = parser.add_argument_group("pictures and sounds").add_mutually_exclusive_group()
    group.add_argument(
        "--mmproj",
        type=Path,
        metavar="FILE",
        help="the encoder of pictures or sounds; default: the one in the model's folder that belongs to it",
    )
    group.add_argument("--no-mmproj", dest="mmproj", action="store_const", const=False, help="read texts only")


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of SamplingParams that were given."""
    names = (*(row[0] for row in _SAMPLING), *(row[0] for row in _COUNTS), "stop")
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def read_grammar(args: argparse.Namespace) -> Grammar | None:
    """The grammar that an option names. Raises GrammarError, or MissingPackageError if llguidance is missing."""
    if args.grammar is None and args.json_schema is None and args.format is None:
        return None
    from hotshoe.sampling import Grammar
    from hotshoe_core.errors import GrammarError

    if args.grammar is not None:
        text = read_text(args.grammar)
        try:
            return Grammar.from_lark(text) if args.grammar.suffix == ".lark" else Grammar.from_gbnf(text)
        except GrammarError as error:
            raise GrammarError(f"{args.grammar}: {error.message}", hint=error.hint) from None
    given = args.json_schema or '{"type": "object"}'
    schema = given if given.lstrip().startswith("{") else read_text(Path(given))
    return Grammar.from_json_schema(schema)


def load(args: argparse.Namespace) -> TextModel:
    """Load the model. Raises ModelError if it does not generate text."""
    import hotshoe

    with bar("loading") as progress:
        return hotshoe.load_model(
            args.model,
            args.device,
            n_ctx=args.ctx,
            projector=args.mmproj,
            **load_options(args),
            task="text",
            progress=progress,
        )


def summary(done: Completion) -> str:
    """One line: how much was computed, how fast, and why it ended."""
    computed = done.n_prompt - done.n_cached
    prompt = computed / done.prompt_seconds if done.prompt_seconds else 0.0
    guessed = f" ({done.n_accepted} of {done.n_drafted} guesses right)" if done.n_drafted else ""
    return (
        f"{done.n_prompt} prompt tokens ({done.n_cached} from the cache) at {prompt:.1f}/s, "
        f"{len(done.tokens)} tokens{guessed} at {done.tokens_per_second:.1f}/s, ended by {done.finish_reason}, "
        f"seed {done.seed}"
    )
