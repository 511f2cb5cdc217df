"""Find the chat template of a model file, or choose a named one for a file without a template.

A named template is chosen by its name, or by the tokens in the vocabulary. The first row that matches is used:

    <|im_start|>, <|im_end|>                  chatml
    <|start_header_id|>, <|eot_id|>           llama3
    <start_of_turn>, <end_of_turn>            gemma
    <|user|>, <|assistant|>, <|end|>          phi3
    [INST], [/INST]                           mistral

llama2 and zephyr are only chosen by name: their markers are ordinary text, so a vocabulary does not contain them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hotshoe.chat._template import ChatTemplate
from hotshoe_core.errors import ChatTemplateError, did_you_mean

__all__ = ["NAMES", "ChatVocabulary", "from_metadata", "from_source", "named"]


class ChatVocabulary(Protocol):
    """The methods of a tokenizer that are needed here; ``hotshoe.tokenizers.Tokenizer`` has them."""

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    def token(self, id: int) -> str: ...
    def encode(self, text: str, add_special: bool = ...) -> list[int]: ...


_CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

_THREE_ROLES = """\
{%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('expected the roles system, user and assistant; found ' + message.role) -}}
{%- endif -%}
{%- endfor -%}
"""

_LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

_PHI3 = """\
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

_ZEPHYR = """\
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

# The next three formats have no system message; its text is put before the first message of the user.
_SYSTEM_FIRST = """\
{%- if messages and messages[0].role == 'system' -%}
{%- set system = messages[0].content | trim -%}{%- set turns = messages[1:] -%}
{%- else -%}
{%- set system = '' -%}{%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
{%- if message.role != ('user' if loop.index0 is even else 'assistant') -%}
{{- raise_exception('expected user and assistant in turn, after at most one system message; found '
    + message.role + ' at message ' + (loop.index0 + messages | length - turns | length) | string) -}}
{%- endif -%}
{%- endfor -%}
"""

_LLAMA2 = (
    _SYSTEM_FIRST
    + """\
{%- for message in turns -%}
{%- if message.role == 'user' -%}
{{- bos_token + '[INST] ' -}}
{%- if loop.first and system -%}{{- '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' -}}{%- endif -%}
{{- message.content | trim + ' [/INST]' -}}
{%- else -%}
{{- ' ' + message.content | trim + ' ' + eos_token -}}
{%- endif -%}
{%- endfor -%}
"""
)

_MISTRAL = (
    _SYSTEM_FIRST
    + """\
{{- bos_token -}}
{%- for message in turns -%}
{%- if message.role == 'user' -%}
{{- '[INST] ' + (system + '\\n\\n' if loop.first and system else '') + message.content + '[/INST]' -}}
{%- else -%}
{{- ' ' + message.content + eos_token -}}
{%- endif -%}
{%- endfor -%}
"""
)

_GEMMA = (
    _SYSTEM_FIRST
    + """\
{{- bos_token -}}
{%- for message in turns -%}
{{- '<start_of_turn>' + ('user' if message.role == 'user' else 'model') + '\\n' -}}
{{- (system + '\\n\\n' if loop.first and system else '') + message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""
)

_SOURCES = {
    "chatml": _CHATML,
    "gemma": _GEMMA,
    "llama2": _LLAMA2,
    "llama3": _THREE_ROLES + _LLAMA3,
    "mistral": _MISTRAL,
    "phi3": _THREE_ROLES + _PHI3,
    "zephyr": _THREE_ROLES + _ZEPHYR,
}
_RULES = (
    ("chatml", ("<|im_start|>", "<|im_end|>")),
    ("llama3", ("<|start_header_id|>", "<|eot_id|>")),
    ("gemma", ("<start_of_turn>", "<end_of_turn>")),
    ("phi3", ("<|user|>", "<|assistant|>", "<|end|>")),
    ("mistral", ("[INST]", "[/INST]")),
)
_KEY = "tokenizer.chat_template"

NAMES = tuple(_SOURCES)
"""The names of the templates that ``named`` returns."""


def named(name: str, tokenizer: ChatVocabulary) -> ChatTemplate:
    """Return a template by its name, one of ``NAMES``. Raises ChatTemplateError for another name."""
    if name not in _SOURCES:
        raise ChatTemplateError(
            f"unknown chat template {name!r}; expected one of {', '.join(NAMES)}",
            hint=did_you_mean(name, NAMES),
        )
    return ChatTemplate(_SOURCES[name], *_bos_and_eos(tokenizer), name=f"the chat template {name!r} of hotshoe")


def from_source(source: str, tokenizer: ChatVocabulary, *, name: str) -> ChatTemplate:
    """Make a template from Jinja2 source. ``name`` is used in messages. Raises ChatTemplateError if it is invalid."""
    return ChatTemplate(source, *_bos_and_eos(tokenizer), name=f"the chat template {name!r}")


def from_metadata(metadata: Mapping[str, Any], tokenizer: ChatVocabulary, name: str | None = None) -> ChatTemplate:
    """Return the template of a GGUF file or, if it has none, a named template that fits the vocabulary.

    name: "default", the name of another template in the file ("tool_use", "rag"), or one of ``NAMES``. None means the
    default of the file.

    Raises ChatTemplateError if the name is unknown, or if there is no template and none fits the vocabulary.
    """
    in_file = {key[len(_KEY) + 1 :] or "default": key for key in metadata if key == _KEY or key.startswith(f"{_KEY}.")}
    if name in in_file or (name is None and "default" in in_file):
        key = in_file[name or "default"]
        return ChatTemplate(metadata[key], *_bos_and_eos(tokenizer), name=key)
    if name in _SOURCES:
        return named(name, tokenizer)
    if name is not None and name != "default":
        available = ", ".join(sorted(in_file)) or "none"
        raise ChatTemplateError(
            f"unknown chat template {name!r}; the file has {available}",
            hint=did_you_mean(name, {*in_file, *NAMES}),
        )
    found = next((n for n, marks in _RULES if all(_has(tokenizer, mark) for mark in marks)), None)
    if found is None:
        raise ChatTemplateError(
            f"the file has no {_KEY}, and its vocabulary fits none of hotshoe's chat templates",
            hint="a base model is not made for chat: use generate (hotshoe run). For a chat model name its "
            f"template, chat_template=NAME: {', '.join([*sorted(in_file), *NAMES])}",
        )
    return named(found, tokenizer)


def _has(tokenizer: ChatVocabulary, mark: str) -> bool:
    ids = tokenizer.encode(mark, add_special=False)
    return len(ids) == 1 and tokenizer.token(ids[0]) == mark


def _bos_and_eos(tokenizer: ChatVocabulary) -> tuple[str | None, str | None]:
    bos, eos = (None if id is None else tokenizer.token(id) for id in (tokenizer.bos, tokenizer.eos))
    return bos, eos
