"""ChatTemplate: a Jinja2 chat template, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from hotshoe.chat._child import MAX_TEXT, MEMORY, SECONDS
from hotshoe.chat._process import ask
from hotshoe_core.errors import ChatTemplateError, did_you_mean
from hotshoe_core.errors.arguments import described, listed
from hotshoe_core.errors.text import format_bytes, printable

__all__ = ["ROLES", "ChatTemplate", "Message"]

Message = Mapping[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PROBE = "hotshoe-probe"
_MAX_SOURCE = 1 << 20


class ChatTemplate:
    """Turns messages into a prompt in the format that a model was trained with. Thread-safe.

        template = ChatTemplate(source, "<s>", "</s>")
        prompt = template.render([{"role": "user", "content": "Hello"}])

    The prompt already contains special tokens, including the first one if the model needs it. Encode it with
    ``add_special=False``.
    """

    def __init__(
        self,
        source: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        roles: Iterable[str] = (),
        name: str = "the chat template",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Make a template from its source.

        bos_token, eos_token, special_tokens: variables of the template. A key of ``special_tokens`` is a name such as
        "unk_token".
        roles: roles that messages may have, in addition to the standard ones (system, developer, user, assistant, tool,
        function) and those that the template names.
        name: what error messages call the template.
        now: returns the time that ``strftime_now`` formats.

        Raises ChatTemplateError, with the line, if the source is not valid Jinja2.
        """
        if not isinstance(source, str):
            raise ChatTemplateError(f"{name} is {type(source).__name__}; expected str")
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"{name} has {len(source):,} characters; expected at most {_MAX_SOURCE:,}")
        self.source = source
        self.name = name
        if special_tokens is not None and not isinstance(special_tokens, Mapping):
            raise ChatTemplateError(
                f"special_tokens is {described(special_tokens)}; expected a mapping of names to texts"
            )
        if not callable(now):
            raise ChatTemplateError(f"now is {described(now)}; expected a function that returns a datetime")
        tokens = {"bos_token": bos_token, "eos_token": eos_token, **(special_tokens or {})}
        self.special_tokens: dict[str, str | None] = _plain("special_tokens", tokens)
        self._now = now
        facts = self._ask({"source": source})
        self.variables = frozenset(facts["names"])
        literals = set(facts["literals"])
        self._takes_calls = "tool_calls" in literals or "tool_calls" in facts["attributes"]
        self._custom_roles = frozenset(_strings("roles", roles))
        self._known_roles = self._custom_roles | literals
        self.roles = ROLES | self._custom_roles  # roles that the template names are accepted as well

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Render a conversation as a prompt.

        messages: mappings with "role" and "content". A content may be a list of parts. If the template does not support
        parts, and all are texts, they are joined by line ends.
        tools, documents: passed to the template unchanged.
        add_generation_prompt: end the prompt with the start of the model's answer.
        kwargs: more variables for the template.

        Raises ChatTemplateError if the template refuses the conversation or fails, or if it does not use tools,
        tool_calls, documents or a keyword that it was given.
        """
        given = {"tools": tools, "documents": documents, **kwargs}
        self._check_variables({name for name, value in given.items() if value is not None})
        try:
            plain = [self._message(i, message) for i, message in enumerate(_sequence("messages", messages))]
            variables = {name: None if value is None else _plain(name, value) for name, value in given.items()}
        except RecursionError as e:
            raise ChatTemplateError(
                "the conversation is nested too deeply, or contains itself; expected data that JSON can hold"
            ) from e
        return self._render(plain, add_generation_prompt, variables)

    @cached_property
    def takes_parts(self) -> bool:
        """True if a content may be a list of parts (``{"type": "text", "text": …}``). Found by rendering an example."""
        content = [{"type": "text", "text": _PROBE}]
        try:
            text = self._render([{"role": "user", "content": content}], True, {"tools": None, "documents": None})
        except ChatTemplateError:
            return False
        # a template that supports only strings writes the list in the syntax of Python or JSON
        return _PROBE in text and "'text'" not in text and '"text"' not in text

    def __repr__(self) -> str:
        return f"<ChatTemplate {self.name}, {len(self.source)} characters>"

    def _render(self, messages: list[dict[str, Any]], prompt: bool, variables: Mapping[str, Any]) -> str:
        tokens = {name: token for name, token in self.special_tokens.items() if token is not None}
        given = {**tokens, "messages": messages, "add_generation_prompt": prompt, **variables}
        now = _moment(self._now()) if "strftime_now" in self.variables else None
        text: str = self._ask({"source": self.source, "variables": given, "now": now})["text"]
        return text

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the child process. Raises ChatTemplateError if its reply is an error."""
        reply = ask(request)
        if "error" in reply:
            raise self._error(reply["error"], printable(reply["message"]), reply.get("line", 0))
        return reply

    def _error(self, kind: str, message: str, line: int) -> ChatTemplateError:
        name, distrust = self.name, "do not trust the file it comes from"
        if kind == "refused":
            return ChatTemplateError(f"{name} refuses the conversation: {message}")
        if kind == "syntax":
            lines = self.source.splitlines()
            excerpt = lines[line - 1].strip()[:80] if line <= len(lines) else ""
            return ChatTemplateError(f"{name} is not valid Jinja2: line {line}: {message}: {excerpt!r}")
        if kind == "undefined":
            return ChatTemplateError(
                f"{name} uses an undefined value: {message}",
                hint="a message may lack a key, or the template expects another keyword argument",
            )
        if kind == "depth":
            return ChatTemplateError(f"{name} calls itself endlessly, or is nested too deeply")
        if kind == "failed":
            return ChatTemplateError(f"{name} failed: {message}")
        does = {
            "security": f"does something that is forbidden: {message}",
            "time": f"takes more than {SECONDS:g} seconds, so it may never end",
            "memory": f"takes more than {format_bytes(MEMORY)} of memory",
            "length": f"writes more than {MAX_TEXT:,} characters",
            "ended": f"ended the process that renders it ({message})",
        }
        return ChatTemplateError(f"{name} {does[kind]}", hint=distrust)

    def _check_variables(self, given: set[str]) -> None:
        reserved = given & {"messages", "add_generation_prompt", *self.special_tokens}
        if reserved:
            raise ChatTemplateError(f"{min(reserved)!r} cannot be passed as a variable; the template has it already")
        unused = sorted(given - self.variables)
        if unused:
            raise ChatTemplateError(
                f"{self.name} does not use {', '.join(map(repr, unused))}, so it would have no effect",
                hint=f"omit it; variables of the template: {', '.join(sorted(self.variables)[:30])}",
            )

    def _message(self, i: int, message: Any) -> dict[str, Any]:
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise ChatTemplateError(
                f"{where} is {type(message).__name__}; expected a mapping with 'role' and 'content'",
                hint='for one text: [{"role": "user", "content": text}]',
            )
        role = message.get("role")
        if not isinstance(role, str):
            raise ChatTemplateError(f"{where}['role'] is {role!r}; expected a string such as 'user'")
        if role not in ROLES and role not in self._known_roles:
            raise ChatTemplateError(
                f"{where} has the role {role!r}, which {self.name} does not know",
                hint=did_you_mean(role, self.roles),
            )
        if message.get("tool_calls") and not self._takes_calls:
            raise ChatTemplateError(f"{where} has tool_calls, but {self.name} does not use them: they would be lost")
        plain: dict[str, Any] = _plain(where, message)
        content = plain.get("content")
        if isinstance(content, list) and not self.takes_parts:
            plain["content"] = self._join_parts(f"{where}['content']", content)
        return plain

    def _join_parts(self, where: str, parts: list[Any]) -> str:
        for part in parts:
            if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ChatTemplateError(f"{where} has a part of type {kind!r}; {self.name} supports only texts")
        return "\n".join(part["text"] for part in parts)


def _strings(what: str, given: Iterable[str]) -> list[str]:
    strings = listed(what, given, "strings", ChatTemplateError)
    for string in strings:
        if not isinstance(string, str):
            raise ChatTemplateError(f"{what} contains {described(string)}; expected strings")
    return strings


def _moment(now: datetime) -> tuple[Any, ...]:
    offset = now.utcoffset()
    fields = (*now.timetuple()[:6], now.microsecond)
    return fields, None if offset is None else offset.total_seconds(), now.tzname()


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise ChatTemplateError(
            f"{name} is {type(value).__name__}; expected a sequence of mappings",
            hint='for one text: [{"role": "user", "content": text}]',
        )
    return value


def _plain(where: str, value: Any) -> Any:
    """Copy a value to JSON's types, because the sandbox cannot judge the methods of other objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_key(where, k): _plain(f"{where}[{k!r}]", v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(f"{where}[{i}]", v) for i, v in enumerate(value)]
    if isinstance(value, str):  # subclasses of these types: keep only the value
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise ChatTemplateError(f"{where} is {type(value).__name__}; expected data that JSON can hold")


def _key(where: str, key: Any) -> Any:
    if not isinstance(key, (str, int)):
        raise ChatTemplateError(f"{where} has the key {key!r}; expected a string")
    return _plain(where, key)
