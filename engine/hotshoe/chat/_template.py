"""ChatTemplate: a Jinja2 chat template, compiled once, with errors that say what is wrong with what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, UndefinedError

from hotshoe.chat._environment import MAX_SIZE, Budget, ChatEnvironment, RefusedError, bounded
from hotshoe_core.errors import ChatTemplateError, did_you_mean

__all__ = ["ROLES", "ChatTemplate", "Message"]

Message = Mapping[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PROBE = "hotshoe-probe"


class ChatTemplate:
    """Turns messages into the text a model was trained on. May be used by several threads at once.

    The text holds the special tokens that the template writes, the first one included where the model wants one:
    encode it with ``add_special=False``.
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
        """``bos_token``, ``eos_token`` and ``special_tokens`` (such as "unk_token") are variables for the template.

        A message may have a standard role (system, developer, user, assistant, tool, function), one that the
        template names, or one of ``roles``. ``name`` is used in messages; ``now`` is what ``strftime_now`` tells.
        Raises ChatTemplateError for a source that is no Jinja2, with the line.
        """
        if not isinstance(source, str):
            raise ChatTemplateError(f"{name} is {type(source).__name__}; expected str")
        self.source = source
        self.name = name
        self.special_tokens = {"bos_token": bos_token, "eos_token": eos_token, **(special_tokens or {})}
        environment = ChatEnvironment(now)
        try:
            tree = environment.parse(source)
            self.variables = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
            literals = {n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str)}
            self._takes_calls = "tool_calls" in literals | {n.attr for n in tree.find_all(nodes.Getattr)}
            self._template = environment.from_string(bounded(tree))
        except jinja2.TemplateSyntaxError as e:
            lines = source.splitlines()
            line = lines[e.lineno - 1].strip()[:80] if e.lineno <= len(lines) else ""
            raise ChatTemplateError(f"{name} is not valid Jinja2: line {e.lineno}: {e.message}: {line!r}") from e
        except RecursionError as e:
            raise ChatTemplateError(f"{name} is nested too deeply") from e
        self._custom_roles = frozenset(roles)
        self._known_roles = self._custom_roles | literals
        self.roles = ROLES | self._custom_roles  # those the template names itself are known besides

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt. ``tools`` and ``documents`` are passed as they are; ``kwargs`` are variables for the template.

        add_generation_prompt: whether to end with what makes the model answer.
        A template that never looks at what it was given (tools, tool_calls, documents, a keyword) is a
        ChatTemplateError, as is a template that refuses the conversation or breaks. Where the template takes texts
        only, a content of parts that are all text is joined by line ends.
        """
        given = {"tools": tools, "documents": documents, **kwargs}
        self._check_variables({name for name, value in given.items() if value is not None})
        plain = [self._message(i, message) for i, message in enumerate(_sequence("messages", messages))]
        variables = {name: None if value is None else _plain(name, value) for name, value in given.items()}
        return self._render(plain, add_generation_prompt, variables)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether a content may be a list of parts (``{"type": "text", "text": …}``); found out by trying."""
        content = [{"type": "text", "text": _PROBE}]
        try:
            text = self._render([{"role": "user", "content": content}], True, {"tools": None, "documents": None})
        except ChatTemplateError:
            return False
        # a template that knows strings only writes the list as Python or JSON would
        return _PROBE in text and "'text'" not in text and '"text"' not in text

    def __repr__(self) -> str:
        return f"<ChatTemplate {self.name}, {len(self.source)} characters>"

    def _render(self, messages: list[dict[str, Any]], prompt: bool, variables: Mapping[str, Any]) -> str:
        tokens = {name: token for name, token in self.special_tokens.items() if token is not None}
        token = Budget.current.set(Budget())
        out: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                {**tokens, "messages": messages, "add_generation_prompt": prompt, **variables}
            ):
                out.append(piece)
                size += len(piece)
                if size > MAX_SIZE:
                    raise SecurityError(f"it writes more than {MAX_SIZE:,} characters")
        except RefusedError as e:
            raise ChatTemplateError(f"{self.name} refuses the conversation: {e.message}") from None
        except SecurityError as e:
            raise ChatTemplateError(
                f"{self.name} does what a template may not: {e.message}", hint="do not trust the file it comes from"
            ) from e
        except UndefinedError as e:
            raise ChatTemplateError(
                f"{self.name} uses something that is not there: {e.message}",
                hint="a message may lack a key, or the template expects another keyword argument",
            ) from e
        except RecursionError as e:
            raise ChatTemplateError(f"{self.name} calls itself without end") from e
        except Exception as e:  # whatever somebody else's code does
            raise ChatTemplateError(f"{self.name} failed: {type(e).__name__}: {e}") from e
        finally:
            Budget.current.reset(token)
        return "".join(out)

    def _check_variables(self, given: set[str]) -> None:
        reserved = given & {"messages", "add_generation_prompt", *self.special_tokens}
        if reserved:
            raise ChatTemplateError(f"{min(reserved)!r} cannot be given as a variable; the template has it already")
        unused = sorted(given - self.variables)
        if unused:
            raise ChatTemplateError(
                f"{self.name} never looks at {', '.join(map(repr, unused))}, so it would change nothing",
                hint=f"leave it out; variables of the template: {', '.join(sorted(self.variables)[:30])}",
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
                f"{where} has the role {role!r}, which {self.name} does not name",
                hint=did_you_mean(role, self.roles),
            )
        if message.get("tool_calls") and not self._takes_calls:
            raise ChatTemplateError(f"{where} has tool_calls, which {self.name} never looks at: they would be lost")
        plain: dict[str, Any] = _plain(where, message)
        content = plain.get("content")
        if isinstance(content, list) and not self.takes_parts:
            plain["content"] = self._joined(f"{where}['content']", content)
        return plain

    def _joined(self, where: str, parts: list[Any]) -> str:
        for part in parts:
            if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ChatTemplateError(f"{where} holds a part of type {kind!r}; {self.name} takes texts only")
        return "\n".join(part["text"] for part in parts)


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise ChatTemplateError(
            f"{name} is {type(value).__name__}; expected a sequence of mappings",
            hint='for one text: [{"role": "user", "content": text}]',
        )
    return value


def _plain(where: str, value: Any) -> Any:
    """A copy out of JSON's types: methods of other objects are beyond what the sandbox can judge."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_key(where, k): _plain(f"{where}[{k!r}]", v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(f"{where}[{i}]", v) for i, v in enumerate(value)]
    if isinstance(value, str):  # of classes derived from these, the value only
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise ChatTemplateError(f"{where} is {type(value).__name__}; expected what JSON can hold")


def _key(where: str, key: Any) -> Any:
    if not isinstance(key, (str, int)):
        raise ChatTemplateError(f"{where} has the key {key!r}; expected a string")
    return _plain(where, key)
