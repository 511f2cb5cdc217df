"""Reading the command line: option names are never guessed, and names of llama.cpp and Ollama are known."""

from __future__ import annotations

import argparse
import re
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hotshoe_core.errors.text import shown

__all__ = ["COMMAND_HINTS", "CommandParser", "Subparsers", "parse_command"]

Subparsers = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns

_ALIASES = {
    "MODEL": ("-m", "--model"),
    "--max-tokens": ("-n", "--n-predict", "--predict", "--num-predict"),
    "--ctx": ("-c", "--ctx-size", "--num-ctx"),
    "--threads": ("-t", "--num-thread"),
    "--prompt": ("-p",),
    "--text": ("-f", "--file"),
    "--temperature": ("--temp",),
    "--typical-p": ("--typical",),
    "--repetition-penalty": ("--repeat-penalty",),
    "--seed": ("-s",),
    "--stop": ("-r", "--reverse-prompt"),
    "--gpu-layers": ("--n-gpu-layers", "--num-gpu"),
    "--device": ("-dev",),
    "--tensor-split": ("-ts",),
    "--main-gpu": ("-mg",),
    "--no-kv-offload": ("-nkvo",),
    "--cpu-moe": ("-cmoe",),
    "--n-cpu-moe": ("-ncmoe",),
    "--flash-attention": ("-fa", "--flash-attn"),
    "--n-batch": ("-b", "--batch-size", "--num-batch"),
    "--n-ubatch": ("-ub", "--ubatch-size"),
    "--sequences": ("-np", "--parallel"),
    "--system": ("-sys", "--system-prompt"),
    "--chat-template": ("--chat-template-file",),
    "--json-schema": ("-j", "--json-schema-file", "-jf"),
    "--grammar": ("--grammar-file",),
}
"""Our options, and what llama.cpp and Ollama call them. A command takes such a name if it has our option, and no option
of that name itself. MODEL is the first argument."""

_ADVICE = {
    ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"): "keys and values have one type here: --kv-dtype TYPE",
    ("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url"): (
        "hotshoe loads files of this machine: download the file first (hf download REPO FILE.gguf), then name it"
    ),
    ("-i", "--interactive", "-cnv", "--conversation"): "hotshoe chat MODEL holds a conversation",
    ("-no-cnv", "--no-conversation"): "leave it out: hotshoe run continues a text, hotshoe chat holds a conversation",
    ("--verbose-prompt", "--log-disable"): "leave it out: hotshoe prints only results; -v adds device and speed",
}
"""Options of llama.cpp and Ollama that hotshoe does not have, and what to do instead."""

COMMAND_HINTS = {
    "show": "did you mean 'inspect'?",
    "info": "did you mean 'inspect'?",
    "generate": "did you mean 'run'?",
    "complete": "did you mean 'run'?",
    "cli": "did you mean 'run' or 'chat'?",
    "perplexity": "in Python: model.score(text).perplexity",
    "pull": "hotshoe loads files of this machine: download a GGUF file first (hf download REPO FILE.gguf)",
    "serve": "hotshoe has no server yet; hotshoe run and hotshoe chat answer in the terminal",
    "list": "hotshoe keeps no list of models: every command takes the path of a file",
    "ps": "hotshoe keeps no models loaded: each command loads its own",
}
"""Commands of other programs, and what to do instead."""

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")  # what argparse takes for a negative number, not an option


class _Help(argparse.HelpFormatter):
    """Formats help. A description with line ends is printed unchanged; others are wrapped."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, max_help_position=27, **options)
        self._action_max_length = 14  # room for the longest command, which argparse takes for too long

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """argparse's parser, which knows an option by its whole name only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Help, **options})


def parse_command(parser: CommandParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of one command. Texts may stand before and after the options. Exits with code 2 on errors."""
    options = parser._option_string_actions
    for option, names in _ALIASES.items():
        for name in names if option in options else ():
            options.setdefault(name, options[option])
    args, rest = parser.parse_known_args(_checked(parser, argv))
    if "--" in rest:  # argparse leaves it there if texts stand before it too
        rest.remove("--")
    if rest and not isinstance(getattr(args, "text", None), list):
        parser.error(f"unexpected argument {shown(rest[0])}: {parser.format_usage().strip()}")
    if rest:
        args.text += rest
    return args


def _checked(parser: CommandParser, argv: Sequence[str]) -> list[str]:
    """``argv`` with -m MODEL moved to the front. An option that the command does not have ends the program."""
    options = parser._option_string_actions
    takes_model = any(action.dest == "model" for action in parser._actions)
    waiting, checked, model = deque(argv), list[str](), list[str]()
    while waiting:
        argument = waiting.popleft()
        if argument == "--":
            return [*model, *checked, argument, *waiting]
        name, equals, value = argument.partition("=")
        is_option = len(argument) > 1 and argument[0] == "-" and " " not in name and not _NUMBER.match(argument)
        if takes_model and name in _ALIASES["MODEL"] and (equals or waiting):
            model = [value if equals else waiting.popleft()]
        elif not is_option or name in options or _is_joined(argument, options.get(argument[:2])):
            checked.append(argument)
        else:
            parser.error(f"unknown option {shown(name)}\n  hint: {_hint(name, options, parser.prog)}")
    return [*model, *checked]


def _is_joined(argument: str, option: argparse.Action | None) -> bool:
    """Whether this is an option of one letter with its value: ``-n12``, ``-oFILE``."""
    if option is None or option.nargs == 0 or argument.startswith("--"):
        return False
    return argument[2:3].isdigit() or option.type in (None, Path)


def _hint(name: str, options: Iterable[str], prog: str) -> str:
    advice = next((text for names, text in _ADVICE.items() if name in names), None)
    if advice is not None:
        return advice
    from difflib import get_close_matches  # 2 ms, only after a mistake

    near = get_close_matches(name, options, n=1)
    return f"did you mean {near[0]}?" if near else f"{prog} --help lists the options"
