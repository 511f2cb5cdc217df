"""Option names: never guessed from a beginning; names of llama.cpp and Ollama; proposals for unknown ones."""

from __future__ import annotations

import argparse
import io
import logging
import re
import sys
from pathlib import Path

import pytest

import hotshoe
from hotshoe.cli import _COMMANDS, all_commands, main, options
from hotshoe.cli.generating import _COUNTS, _SAMPLING, sampling_options
from hotshoe.cli.options import SIZE, load_options
from hotshoe.cli.parsing import _ALIASES, parse_command
from hotshoe.cli.serve import _prefix_options
from hotshoe.cli.wording import in_options

ROOT = Path(__file__).parents[2]
VERSE = str(ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf")


def parse(*argv: str) -> argparse.Namespace:
    _, commands = all_commands()
    return parse_command(commands.choices[argv[0]], argv[1:])


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What the command says on stderr when it ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    assert ended.value.code == 2
    out = capsys.readouterr()
    assert out.out == ""
    return out.err


def test_the_help_says_what_serve_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server writes prompts to the disk if nothing else is said, so its help has to tell how much and where."""
    monkeypatch.setenv("HOTSHOE_CACHE_DIR", str(tmp_path))
    kept = _prefix_options()
    assert Path(kept["prefix_folder"]).parent == tmp_path
    told = " ".join(all_commands()[1].choices["serve"].format_help().split())
    for name in ("memory", "disk"):
        size = re.search(r"efault: none, and (\w+) in serve", told.partition(f"--prefix-{name} SIZE")[2])
        assert size is not None
        assert SIZE(size[1]) == kept[f"prefix_{name}"]
    assert f"Default in serve: {Path(kept['prefix_folder']).name} in hotshoe's cache folder" in told


@pytest.mark.parametrize("name", ["-n", "--n-predict", "--predict", "--num-predict", "--max-tokens"])
def test_a_number_of_tokens_is_not_a_number_of_layers(name: str) -> None:
    """argparse takes an unknown ``-n`` for the beginning of ``-ngl``."""
    args = parse("run", "m.gguf", "x", name, "12")
    assert args.max_tokens == 12
    assert args.gpu_layers is None


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        (("--temp", "0.5"), {"temperature": 0.5}),
        (("--temp=0.5",), {"temperature": 0.5}),
        (("--top-k", "3", "--top-p", "0.5", "--min-p", "0.1"), {"top_k": 3, "top_p": 0.5, "min_p": 0.1}),
        (("--repeat-penalty", "1.1"), {"repetition_penalty": 1.1}),
        (("--typical", "0.5"), {"typical_p": 0.5}),
        (("-s", "7"), {"seed": 7}),
        (("-s", "-1", "-n", "-1"), {}),
        (("-n12",), {"max_tokens": 12}),
        (("-r", "END", "--stop", "x"), {"stop": ["END", "x"]}),
    ],
)
def test_names_of_sampling_options(argv: tuple[str, ...], options: dict[str, object]) -> None:
    assert sampling_options(parse("run", "m.gguf", *argv)) == options


def test_names_of_the_other_options() -> None:
    args = parse("run", "-m", "m.gguf", "-p", "Once upon", "-t", "3", "-c", "64", "-fa", "on", "-b", "8", "-ub", "4",
                 "-ngl", "2", "-ts", "3,1", "-dev", "cuda:0", "-np", "2", "-nkvo", "-cmoe")  # fmt: skip
    assert (args.model, args.prompt, args.text, args.ctx, args.device) == ("m.gguf", "Once upon", [], 64, "cuda:0")
    assert load_options(args) == {
        "n_threads": 3,
        "flash_attention": "on",
        "matmul_precision": "stored",
        "n_batch": 8,
        "n_ubatch": 4,
        "n_sequences": 2,
        "n_gpu_layers": 2,
        "tensor_split": (3.0, 1.0),
        "kv_offload": False,
        "cpu_moe": True,
    }
    for name in ("--num-gpu", "--n-gpu-layers", "--gpu-layers"):
        assert parse("run", "m.gguf", name, "all").gpu_layers == "all"
    assert parse("run", "m.gguf", "-mg", "1").main_gpu == 1
    for name in ("--ctx-size", "--num-ctx"):
        assert parse("chat", "m.gguf", name, "9").ctx == 9
    assert parse("imatrix", "m.gguf", "-f", "text.txt").text == Path("text.txt")


def test_a_command_keeps_its_own_names() -> None:
    args = parse("bench", "m.gguf", "-p", "8", "-n", "4", "-s", "2", "-d", "0,16", "-t", "1")
    assert (args.prompt, args.generate, args.sequences, args.depth, args.threads) == ([8], [4], [2], [0, 16], 1)


def test_the_table_holds_our_options_and_other_names() -> None:
    _, commands = all_commands()
    declared = {name for parser in commands.choices.values() for name in parser._option_string_actions}
    assert set(_ALIASES) - declared == {"MODEL"}
    names = [name for row in _ALIASES.values() for name in row]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("run", "m.gguf", "--max-token", "3"), "unknown option '--max-token'\n  hint: did you mean --max-tokens?"),
        (("run", "m.gguf", "--tmep=1"), "unknown option '--tmep'\n  hint: did you mean --temp?"),
        (("run", "m.gguf", "--max", "3"), "unknown option '--max'"),
        (("run", "m.gguf", "-ng", "3"), "unknown option '-ng'\n  hint: did you mean -n"),
        (("plan", "m.gguf", "-n", "12"), "unknown option '-n'"),
        (("run", "m.gguf", "--qqq"), "hint: hotshoe run --help lists the options"),
        (("run", "m.gguf", "-ctk", "q8_0"), "--kv-dtype TYPE"),
        (("run", "-hf", "a/b"), "hotshoe pull ORG/REPO:QUANT downloads"),
        (("run", "m.gguf", "-i"), "hotshoe chat MODEL"),
        (("run", "m.gguf", "--json-schema", "{}", "--grammar", "g"), "not allowed with"),
        (("plan", "m.gguf", "x"), "unexpected argument 'x'"),
        (("rnu", "m.gguf"), "unknown command 'rnu'\n  hint: did you mean 'run'?"),
        (("show", "m.gguf"), "hint: did you mean 'inspect'?"),
        (("run", "m.gguf", "-ngl", "many"), "-ngl/--gpu-layers: 'many'; expected a number, all or auto"),
        (("bench", "m.gguf", "-p", "1,x"), "'1,x'; expected numbers of 0 or more"),
        (("run", "m.gguf", "-n", "x"), "--max-tokens: 'x'; expected a whole number"),
        (("run", "m.gguf", "--top-p", "x"), "--top-p: 'x'; expected a number"),
        (("run", "m.gguf", "--temp"), "error: --temperature needs a value"),
        (("run",), "error: MODEL is missing"),
        (("trace",), "error: MODEL, TEXT, -o/--output are missing"),
        (("chat", "m.gguf", "-p", "hello"), "hint: hotshoe run takes a text"),
        (("chat", "m.gguf", "hello"), "unexpected argument 'hello'\n  hint: start it, then type the message"),
        (("quantize", "a", "b", "q4_0"), "hint: give the type as an option: --type TYPE"),
        (("embed", "m.gguf", "-n", "5"), "hint: hotshoe embed --help lists the options"),
        (("run", "m.gguf", "--keep", "4"), "hint: --context-shift N"),
        (("run", "m.gguf", "--lora", "x"), "hint: hotshoe does not support this"),
        (("run", "m.gguf", "--forma", "x"), "hint: hotshoe run --help lists the options"),
        (("--verbose",), "unknown option '--verbose'"),
        (("help",), "hint: hotshoe --help"),
        (("m.gguf",), "hint: did you mean 'hotshoe run m.gguf'?"),
        (("run", "m.gguf", "--\x1b[2J"), "unknown option '--\\x1b[2J'"),
    ],
)
def test_what_is_unknown_is_refused_with_a_proposal(
    argv: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *argv)
    assert words in said
    assert said.startswith("usage: hotshoe")
    assert len(said.splitlines()) <= 3
    assert "\x1b" not in said


def test_values_and_texts_may_begin_with_a_dash() -> None:
    args = parse("run", "m.gguf", "--presence-penalty", "-0.5", "- one item", "--", "-n", "--tmep")
    assert args.presence_penalty == -0.5
    assert args.text == ["- one item", "-n", "--tmep"]
    assert args.max_tokens is None


def test_help_tells_the_defaults_there_are() -> None:
    params = hotshoe.SamplingParams()
    assert {name: default for name, _, default, _ in _SAMPLING} == {
        name: getattr(params, name) for name, *_ in _SAMPLING
    }
    assert all(getattr(params, name) is None for name, _ in _COUNTS)
    _, commands = all_commands()
    for command, parser in commands.choices.items():
        missing = [a.dest for a in parser._actions if not a.help]
        assert not missing, command


def test_without_arguments_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys)
    assert all(f"    {command} " in said for command in _COMMANDS)


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_is_readable(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    usage, *_ = capsys.readouterr().out.splitlines()
    assert usage.startswith(f"usage: hotshoe {command}")
    assert len(usage) <= 80


# The prompt of `run`


def test_two_prompts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m.gguf", "x", "-p", "y"]) == 2
    assert "the prompt is given twice; expected one of PROMPT, -p and -f" in capsys.readouterr().err


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The prompts and grammars that `hotshoe run` gives a model; nothing is computed."""
    from hotshoe.runner.text import TextModel

    seen: list[object] = []

    class Stopped(hotshoe.HotshoeError):
        pass

    def stream(self: TextModel, prompt: str, **options: object) -> None:
        seen.append(prompt)
        raise Stopped("enough")

    monkeypatch.setattr(TextModel, "stream", stream)
    return seen


class Terminal:
    """Standard input from a person."""

    def isatty(self) -> bool:
        return True

    def read(self) -> str:
        return "typed\n"


def test_the_last_line_end_of_standard_input_is_not_part_of_the_prompt(
    prompts: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompt.txt"
    for written, expected in (("And God", "And God"), ("And God\n", "And God"), ("a\nb\r\n", "a\nb"), ("a\n\n", "a\n")):
        file.write_bytes(written.encode())
        with file.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert main(["run", VERSE, "--device", "reference"]) == 2  # Stopped
        assert main(["run", VERSE, "--device", "reference", "-f", str(file)]) == 2
        assert prompts == [expected, expected]
        prompts.clear()
    assert main(["run", VERSE, "--device", "reference", "And", "God"]) == 2
    assert main(["run", VERSE, "--device", "reference", "-p", "And God"]) == 2
    assert main(["run", VERSE, "--device", "reference", ""]) == 2
    assert prompts == ["And God", "And God", ""]
    assert "standard input" not in capsys.readouterr().err


def test_a_person_is_told_that_the_prompt_is_read(
    prompts: list[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    main(["run", VERSE, "--device", "reference"])
    out = capsys.readouterr()
    assert prompts == ["typed"]
    assert out.out == ""
    assert out.err.startswith("reading the prompt from standard input, until Ctrl-")


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (("--max-tokens", "-5"), "--max-tokens is -5; expected 1 or more", "leave --max-tokens out for no limit"),
        (("--ctx", "0"), "--ctx is 0", ""),
        (("--cpu-moe",), "--cpu-moe: the model has no experts", "leave it out"),
        (("--n-cpu-moe", "2"), "--n-cpu-moe 2: the model has no experts", "leave it out"),
        (("--layer-devices", "reference=0-1"), "--layer-devices names 2 layers", ""),
        (
            ("--gpu-layers", "9"),
            "--gpu-layers 9: expected a GPU or another device; the model is on reference only",
            "leave it out to use reference",
        ),
        (("--temperature", "-1"), "--temperature is -1.0", "--temperature 0 always"),
        (("--json-schema", "nofile.json"), "'nofile.json' does not exist; check the path", ""),
    ],
)
def test_errors_name_options(argv: tuple[str, ...], error: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", VERSE, "a", "--device", "reference", *argv]) == 2
    said = capsys.readouterr().err
    assert f"hotshoe: error: {error}" in said
    assert (f"  hint: {hint}" if hint else "") in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("use a larger n_ctx, or shorten the text", "use a larger --ctx, or shorten the text"),
        ("split it, or pass truncate=True to use its beginning", "split it, or pass --truncate to use its beginning"),
        ("allow it to be replaced: overwrite=True", "allow it to be replaced: --overwrite"),
        ("name it: device='cuda:0'; or leave it out", "name it: --device cuda:0; or leave it out"),
        (
            "a smaller share in tensor_split, or lower n_gpu_layers",
            "a smaller share in --tensor-split, or lower --gpu-layers",
        ),
        ("tensor_split=(3.0, 1.0): expected a GPU", "--tensor-split 3.0,1.0: expected a GPU"),
        ("tensor_split=(1.0,), kv_offload=False: not", "--tensor-split 1.0, --no-kv-offload: not"),
        ("cpu_moe is 9; cpu_moe=True for all", "--n-cpu-moe is 9; --cpu-moe for all"),
        ("leave out fallback=False", "leave out --no-fallback"),
        ("stop holds '' (str)", "--stop holds '' (str)"),
        ("top_n is 0; expected 1 or more", "--top is 0; expected 1 or more"),
        ("tensor_types: '[' is not a pattern", "--tensor-type: '[' is not a pattern"),
        ("'cpu' is blocked by block= or HOTSHOE_BLOCK", "'cpu' is blocked by HOTSHOE_BLOCK"),
        ("(found 0 s ago; load_all(refresh=True) tests it again)", "(found 0 s ago; `hotshoe devices` tests it again)"),
        ("files/n_ctx.gguf: the key llama.n_ctx is 5", "files/n_ctx.gguf: the key llama.n_ctx is 5"),
        ("a device of the seed, token_embd.weight", "a device of the seed, token_embd.weight"),
    ],
)
def test_python_arguments_become_options(text: str, expected: str) -> None:
    assert in_options(text, _SOME) == expected


_SOME = {"--ctx", "--truncate", "--overwrite", "--device", "--stop", "--top", "--tensor-type", "--tensor-split"}
_SOME |= {"--gpu-layers", "--no-kv-offload", "--no-fallback", "--cpu-moe", "--n-cpu-moe"}


def test_warnings_name_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's warnings do, those of a program that called it and goes on do not."""
    warning = logging.makeLogRecord({"msg": "%s ignores %s=%r", "args": ("reference", "n_threads", 2)})
    handler, shown = logging.StreamHandler(), list[str]()
    monkeypatch.setattr(logging, "lastResort", handler)

    def load(*args: object, **options: object) -> None:
        shown.append(handler.format(warning))
        raise hotshoe.HotshoeError("enough")

    monkeypatch.setattr(hotshoe, "load_model", load)
    assert main(["run", VERSE, "a", "--device", "reference", "-n", "1"]) == 2
    assert shown == ["reference ignores --threads 2"]
    assert handler.format(warning) == "reference ignores n_threads=2"


def test_simulated_devices_must_include_the_cpu_for_what_is_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", VERSE, "--simulate", "gpu0=8GiB", "--gpu-layers", "1"]) == 2
    assert "  hint: add the CPU to the devices: cpu, or cpu=32GiB if they are simulated" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [("embed", "m.gguf"), ("rerank", "m.gguf", "query")])
def test_nothing_to_read_is_an_error(
    argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(argv) == 2
    what = "text" if argv[0] == "embed" else "document"
    assert f"no {what} was given, and standard input is empty" in capsys.readouterr().err


def test_bench_without_a_test_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", VERSE, "-p", "0", "-n", "0"]) == 2
    captured = capsys.readouterr()
    assert "--prompt and --generate are 0, so there is nothing to measure" in captured.err
    assert not captured.out


def test_arguments_that_a_command_lacks_keep_their_name() -> None:
    assert in_options("n_ctx is 0", {"--threads"}) == "n_ctx is 0"


def test_a_text_without_an_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "_MAX_TEXT", 1 << 20)
    (tmp_path / "text.txt").write_bytes("é\r\nz".encode())
    assert options.read_text(tmp_path / "text.txt") == "é\nz"
    (tmp_path / "text.txt").write_bytes(bytes((1 << 20) + 1))
    for path in (tmp_path / "text.txt", *([Path("/dev/zero")] if sys.platform == "linux" else [])):
        for command in ("run --file", "run x --json-schema", "chat --grammar", "imatrix -o new.gguf --text"):
            first, *rest = command.split()
            assert main([first, "m.gguf", *rest, str(path)]) == 2
            assert f"{path} has more than 1 MiB; expected a text file" in capsys.readouterr().err


def test_a_file_that_does_not_exist_names_those_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("out.gguf", "out2.gguf"):
        (tmp_path / name).touch()
    assert main(["run", str(tmp_path / "foo"), "x"]) == 2
    assert f"  hint: the folder {tmp_path} has out.gguf, out2.gguf" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["run", "foo", "x"]) == 2
    assert "  hint: this folder has out.gguf, out2.gguf" in capsys.readouterr().err
