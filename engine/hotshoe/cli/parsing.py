"""Reading the command line: option names are never guessed, and names of llama.cpp and Ollama are known."""

from __future__ import annotations

import argparse
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

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
        "hotshoe pull ORG/REPO:QUANT downloads a model; then give its name in the place of the file"
    ),
    ("-i", "--interactive", "-cnv", "--conversation"): "hotshoe chat MODEL holds a conversation",
    ("-no-cnv", "--no-conversation"): "leave it out: hotshoe run continues a text, hotshoe chat holds a conversation",
    ("-p", "--prompt"): "hotshoe run takes a text: hotshoe run MODEL TEXT; in hotshoe chat, type it after the start",
    ("--keep",): "--context-shift N keeps the first N tokens when the context is full",
    ("--jinja",): "leave it out: hotshoe chat uses the template of the model file unless you give --chat-template",
    ("--ignore-eos", "--mirostat", "--samplers", "-e", "--escape"): "hotshoe does not support this",
    ("--lora", "--lora-scaled", "-sm", "--split-mode"): "hotshoe does not support this",
    ("--mmap", "--no-mmap"): "only in Python: load_model(path, mmap=False)",
    ("--mlock", "--color", "--no-warmup"): "it is not needed here; leave it out",
    ("--verbose-prompt", "--log-disable"): "leave it out: hotshoe prints only results; -v adds device and speed",
}
"""Options of llama.cpp and Ollama that hotshoe does not have, and what to do instead."""

_NO_ARGUMENT_HINTS = {
    "chat": "start it, then type the message; for one text: hotshoe run MODEL TEXT",
    "devices": "leave it out: hotshoe devices lists all devices",
    "doctor": "leave it out: hotshoe doctor checks the whole machine",
    "quantize": "give the type as an option: --type TYPE",
}
"""What to do instead of one argument more, for the commands where users give one."""

COMMAND_HINTS = {
    "help": "hotshoe --help",
    "version": "hotshoe --version",
    "show": "did you mean 'inspect'?",
    "info": "did you mean 'inspect'?",
    "generate": "did you mean 'run'?",
    "complete": "did you mean 'run'?",
    "cli": "did you mean 'run' or 'chat'?",
    "perplexity": "in Python: model.score(text).perplexity",
    "ls": "did you mean 'list'?",
    "download": "did you mean 'pull'?",
    "stop": "hotshoe ps shows what a running server has loaded; it unloads a model when another one needs its place",
}
"""Commands of other programs, and what to do instead."""

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")  # what argparse takes for a negative number, not an option

_ARGPARSE_ERRORS = (
    (re.compile(r"^argument (.*): expected one argument$"), r"\1 needs a value"),
    (re.compile(r"^argument (.*): invalid int value: (.*)$"), r"\1: \2; expected a whole number"),
    (re.compile(r"^argument (.*): invalid float value: (.*)$"), r"\1: \2; expected a number"),
)


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

    def error(self, message: str) -> NoReturn:
        """Print usage and error in our words, not in those of argparse, and exit with code 2."""
        if message.startswith("the following arguments are required"):
            needed = [name for name in message.partition(": ")[2].split(", ") if name not in self._optional_names()]
            message = f"{', '.join(needed)} {'is' if len(needed) == 1 else 'are'} missing"
        for pattern, words in _ARGPARSE_ERRORS:
            message = pattern.sub(words, message)
        super().error(message)

    def _optional_names(self) -> set[str]:
        return {str(action.metavar) for action in self._actions if action.nargs in ("*", "?")}


def parse_command(parser: CommandParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of one command. Texts may stand before and after the options. Exits with code 2 on errors."""
    options = parser._option_string_actions
    for option, names in _ALIASES.items():
        for name in names if option in options else ():
            options.setdefault(name, options[option])
    args, rest = parser.parse_known_args(_checked(parser, argv))
    if "--" in rest:  # argparse leaves it there if texts stand before it too
        rest.remove("--")
    for action in parser._get_positional_actions():  # argparse leaves it at its default if an option stands before it
        if rest and action.nargs == "?" and getattr(args, action.dest) is action.default:
            setattr(args, action.dest, parser._get_values(action, [rest.pop(0)]))
    if rest and not isinstance(getattr(args, "text", None), list):
        command = parser.prog.rpartition(" ")[2]
        hint = _NO_ARGUMENT_HINTS.get(command, f"{parser.prog} --help lists the arguments")
        parser.error(f"unexpected argument {shown(rest[0])}\n  hint: {hint}")
    if rest:
        args.text += rest
    return args


def _checked(parser: CommandParser, argv: Sequence[str]) -> list[str]:
    """``argv`` with -m MODEL moved to the front. An option that the command does not have ends the program."""
    options = parser._option_string_actions
    takes_model = any(action.dest == "model" for action in parser._get_positional_actions())
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


def _hint(name: str, options: Mapping[str, argparse.Action], prog: str) -> str:
    advice = next((text for names, text in _ADVICE.items() if name in names), None)
    if advice is not None:
        return advice
    from difflib import get_close_matches  # 2 ms, only after a mistake

    known = [option for option, action in options.items() if action.help != argparse.SUPPRESS]
    near = get_close_matches(name, known, n=1, cutoff=0.75) if len(name) > 2 else []  # one letter is like any other
    return f"did you mean {near[0]}?" if near else f"{prog} --help lists the options"
