"""Which template a model file has, and named ones for files that have none.

Chosen by name, or by the tokens a vocabulary has (first row that fits):

    <|im_start|>, <|im_end|>                  chatml
    <|start_header_id|>, <|eot_id|>           llama3
    <start_of_turn>, <end_of_turn>            gemma
    <|user|>, <|assistant|>, <|end|>          phi3
    [INST], [/INST]                           mistral

llama2 and zephyr are never guessed: their marks are ordinary text, which no vocabulary gives away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hotshoe.chat._template import ChatTemplate
from hotshoe_core.errors import ChatTemplateError, did_you_mean

__all__ = ["NAMES", "ChatVocabulary", "from_metadata", "from_source", "named"]


class ChatVocabulary(Protocol):
    """What is asked of a tokenizer; ``hotshoe.tokenizers.Tokenizer`` has it."""

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

# The three below have no place for a system message: it goes before the first message of the user.
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
"""Names that ``named`` knows."""


def named(name: str, tokenizer: ChatVocabulary) -> ChatTemplate:
    """One of the templates of this module. Raises ChatTemplateError for another name."""
    if name not in _SOURCES:
        raise ChatTemplateError(
            f"there is no chat template named {name!r}; expected one of {', '.join(NAMES)}",
            hint=did_you_mean(name, NAMES),
        )
    return ChatTemplate(_SOURCES[name], *_bos_and_eos(tokenizer), name=f"the chat template {name!r} of hotshoe")


def from_source(source: str, tokenizer: ChatVocabulary, *, name: str) -> ChatTemplate:
    """A template of your own, in Jinja2. ``name`` is used in messages. Raises ChatTemplateError if it is invalid."""
    return ChatTemplate(source, *_bos_and_eos(tokenizer), name=f"the chat template {name!r}")


def from_metadata(metadata: Mapping[str, Any], tokenizer: ChatVocabulary, name: str | None = None) -> ChatTemplate:
    """The template of a GGUF file; without one, a named template that fits the vocabulary.

    name: "default", one of the file's own others ("tool_use", "rag"), or one of ``NAMES`` to use in its place.
    None for the file's default. Raises ChatTemplateError if there is none of that name, or none at all.
    """
    own = {key[len(_KEY) + 1 :] or "default": key for key in metadata if key == _KEY or key.startswith(f"{_KEY}.")}
    if name in own or (name is None and "default" in own):
        key = own[name or "default"]
        return ChatTemplate(metadata[key], *_bos_and_eos(tokenizer), name=key)
    if name in _SOURCES:
        return named(name, tokenizer)
    if name is not None and name != "default":
        have = ", ".join(sorted(own)) or "none"
        raise ChatTemplateError(
            f"there is no chat template {name!r}; the file has {have}, hotshoe has {', '.join(NAMES)}",
            hint=did_you_mean(name, {*own, *NAMES}),
        )
    found = next((n for n, marks in _RULES if all(_has(tokenizer, mark) for mark in marks)), None)
    if found is None:
        raise ChatTemplateError(
            f"the file has no {_KEY}, and its vocabulary has the marks of none that hotshoe knows",
            hint=f"name one (--chat-template NAME): {', '.join([*sorted(own), *NAMES])}; a base model has none and is "
            "not made for chat",
        )
    return named(found, tokenizer)


def _has(tokenizer: ChatVocabulary, mark: str) -> bool:
    ids = tokenizer.encode(mark, add_special=False)
    return len(ids) == 1 and tokenizer.token(ids[0]) == mark


def _bos_and_eos(tokenizer: ChatVocabulary) -> tuple[str | None, str | None]:
    bos, eos = (None if id is None else tokenizer.token(id) for id in (tokenizer.bos, tokenizer.eos))
    return bos, eos
