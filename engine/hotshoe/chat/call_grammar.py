"""Grammars that bind a model to calls of tools: made from a response template and the schemas of the tools.

The patterns of the template say how a call begins and ends, and the schemas what its arguments may be. Texts that are
special tokens of the vocabulary are matched as tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from hotshoe.chat.response import ResponseTemplate
from hotshoe.sampling._json_schema import WHITESPACE, prepare
from hotshoe_core.errors import GrammarError
from hotshoe_core.errors.arguments import described

if TYPE_CHECKING:
    from hotshoe.tokenizers import Tokenizer

__all__ = ["call_grammar", "reasoning_marks"]

_MOST = 8  # repetitions of a character that a pattern allows without end, such as white space
_OBJECT_KEYS = frozenset(
    {
        "type",
        "properties",
        "required",
        "description",
        "title",
        "additionalProperties",
        "$defs",
        "definitions",
        "$schema",
    }
)
_TEXT_KEYS = frozenset(
    {"type", "description", "title", "default", "examples", "enum", "const", "minLength", "maxLength"}
)
_DEFINITIONS = ("$defs", "definitions")


def call_grammar(
    template: ResponseTemplate,
    tools: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    *,
    thinking: bool = False,
    several: bool = True,
) -> str:
    """Return a grammar in llguidance's Lark syntax: an answer that calls one of the tools, or several.

    thinking: the prompt has begun the reasoning already; otherwise the model may begin with reasoning, where the
    template has it. several: whether several calls are allowed. Raises GrammarError if the format has no calls, or
    cannot express a schema.
    """
    return _Writer(template, tokenizer).grammar(tools, thinking=thinking, several=several)


def reasoning_marks(template: ResponseTemplate) -> tuple[str, str] | None:
    """Return the texts that begin and end the reasoning in a format; None if it has no reasoning."""
    field = _reasoning(template)
    if field is None or field.open is None or field.close is None:
        return None
    begin, end = (_texts(_parser.parse(each.pattern.pattern, re.DOTALL)) for each in (field.open, field.close))
    return (begin[0], end[0]) if begin and end and begin[0] and end[0] else None


def _reasoning(template: ResponseTemplate) -> Any:
    return next((f for f in template.fields.values() if f.name.startswith(("reasoning", "thinking"))), None)


class _Writer:
    """Writes one grammar: its rules, and what they have in common."""

    def __init__(self, template: ResponseTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._rules: dict[str, str] = {}

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, thinking: bool, several: bool) -> str:
        field = self._template.fields.get("tool_calls")
        if field is None or field.open is None or not isinstance(field.transform, dict):
            raise GrammarError("the response template of this model has no calls of tools")
        functions = [tool.get("function", tool) for tool in tools]
        function = field.transform.get("function", field.transform)
        name, arguments = _reference(function.get("name")), _reference(function.get("arguments"))
        close = "" if field.close is None else self._pattern(field.close.pattern.pattern)
        open_ = field.open.pattern.pattern
        if field.transform_each:
            items = self._list(field.content, functions, name, arguments, several)
            calls = self._sequence(self._pattern(open_), items, close)
        else:
            alternatives = []
            for each in functions:
                content = self._content(field.content, field.content_args, each, name, arguments)
                begin = self._pattern(open_, {name[0]: self._plain(each["name"])} if name[0] != "content" else {})
                alternatives.append(self._sequence(begin, content, close))
            call = self._rule(" | ".join(alternatives))
            whole = open_.startswith(r"\A")  # a call is the whole answer
            calls = f"{call}+" if several and field.repeats and close and not whole else call
        return "\n".join(
            [f"start: {self._sequence(self._thinking(thinking, open_), calls)}", *map(": ".join, self._rules.items())]
        )

    def _thinking(self, begun: bool, calls: str) -> str:
        """The reasoning before a call. calls: the pattern with which calls begin."""
        field = _reasoning(self._template)
        if field is None or field.open is None or field.close is None:
            return ""
        rest = self._free(field.close.pattern.pattern)
        if begun:
            return self._sequence(rest, self._space())
        if calls.startswith(r"\A"):  # they are the whole answer
            return ""
        return f"({self._sequence(self._pattern(field.open.pattern.pattern), rest, self._space())})?"

    # The contents of calls

    def _content(
        self, kind: str, args: Mapping[str, Any], function: Mapping[str, Any], name: list[str], arguments: list[str]
    ) -> str:
        schema = _parameters(function)
        if kind == "xml-inline":
            return self._tags(args["tag_pattern"], schema)
        if kind != "json" or arguments[0] != "content":
            raise GrammarError(f"calls in the format {kind!r} cannot be bound by a grammar")
        if len(arguments) == 1:
            return self._json(schema)
        return self._json(_object({name[-1]: {"const": function["name"]}, arguments[-1]: schema}))

    def _list(
        self, kind: str, functions: Sequence[Mapping[str, Any]], name: list[str], arguments: list[str], several: bool
    ) -> str:
        if kind == "json":
            items = [_object({name[-1]: {"const": f["name"]}, arguments[-1]: _parameters(f)}) for f in functions]
            schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
            return self._json(_hoisted(schema | ({} if several else {"maxItems": 1})))
        if kind != "python-call-list":
            raise GrammarError(f"calls in the format {kind!r} cannot be bound by a grammar")
        calls = []
        for function in functions:
            schema, root = _parameters(function), _plain_object(_parameters(function))
            values = {key: self._plain(f"{key}=") + " " + self._json(_within(schema, v)) for key, v in root.items()}
            required = set(schema.get("required", ()))
            listed = _listed([(values[key], key in required) for key in root], '", "')
            calls.append(self._sequence(self._plain(f"{function['name']}("), listed, '")"'))
        call = self._rule(" | ".join(calls))
        return f'"[" {call} (", " {call})* "]"' if several else f'"[" {call} "]"'

    def _tags(self, pattern: str, schema: Mapping[str, Any]) -> str:
        before, value, after = re.split(r"(\(\?P<value>.*?\))(?![*+?])", pattern, maxsplit=1)
        if not value:
            raise GrammarError("calls whose tags have no value cannot be bound by a grammar")
        required, parts = set(schema.get("required", ())), []
        for key, declared in _plain_object(schema).items():
            begin = self._pattern(before, {"key": self._plain(key)})
            choices = [self._tagged(_within(schema, choice), after) for choice in _choices(declared)]
            tag = self._rule(self._sequence(begin, f"({' | '.join(choices)})", self._space()))
            parts.append(tag if key in required else f"{tag}?")
        return self._sequence(self._space(), *parts)

    def _tagged(self, schema: Mapping[str, Any], after: str) -> str:
        """A value and the end of its tag. A text has no quotes there; other values are JSON."""
        if not _is_text(schema):
            return self._sequence(self._json(schema), self._pattern(after))
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        if choices is None and (least or most != ""):  # short texts of one line
            mark = "".join(sorted({_escaped(text[:1]) for text in _texts(_parser.parse(after, re.DOTALL))}))
            text = rf"/[^\n{mark}]{{{max(1, least)},{most}}}/" if most != 0 else ""
            return self._sequence(text if least or not text else f"({text})?", self._pattern(after))
        if choices is None:
            return self._free(after)
        return self._sequence(f"({' | '.join(map(self._plain, choices))})", self._pattern(after))

    def _json(self, schema: Mapping[str, Any]) -> str:
        prepared = json.loads(prepare(_hoisted(schema)))
        prepared["x-guidance"] = {"whitespace_pattern": WHITESPACE}
        return self._rule(f"%json {json.dumps(prepared, ensure_ascii=False)}")

    # Pieces of grammar

    def _rule(self, body: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules[name] = body
        return name

    @staticmethod
    def _sequence(*parts: str) -> str:
        return " ".join(f"({part})" if " | " in part and not part.startswith("(") else part for part in parts if part)

    @staticmethod
    def _space() -> str:
        return rf"(/[ \n]{{1,{_MOST}}}/)?"

    @staticmethod
    def _plain(text: Any) -> str:
        return json.dumps(str(text), ensure_ascii=False) if str(text) else ""

    def _literal(self, text: str) -> str:
        """A text, with the special tokens in it as tokens. A token that ends texts is left out: the end is allowed."""
        parts: list[str] = []
        plain = b""
        for id in [*self._tokenizer.encode(text, add_special=False), None]:
            if id is not None and self._tokenizer.decode([id]):
                plain += self._tokenizer.piece(id)
                continue
            if plain:
                parts.append(self._plain(plain.decode()))
                plain = b""
            if id is not None and id not in self._tokenizer.stop_ids:
                parts.append(f"<[{id}]>")
        return " ".join(parts)

    def _free(self, closing: str) -> str:
        """Any text up to what ``closing`` matches, and that."""
        texts = _texts(_parser.parse(closing, re.DOTALL))
        if not texts or "" in texts:
            raise GrammarError(f"the end of a text, {closing!r:.80}, cannot be found by a grammar")
        ends = [self._literal(text) for text in texts]
        special = [end for end in ends if end.startswith("<[")]
        plain = [_escaped(text) for text, end in zip(texts, ends, strict=True) if "<[" not in end]
        choices = [f"(/(.|\\n)+/)? ({' | '.join(special)})"] if special else []  # no text contains such a token
        if plain:
            name = f"r{len(self._rules)}"
            self._rules[f"{name}[lazy]"] = rf"/(.|\n)*({'|'.join(plain)})/"
            choices.append(name)
        return f"({' | '.join(choices)})"

    def _pattern(self, pattern: str, fill: Mapping[str, str] | None = None) -> str:
        """A regular expression as grammar. Groups in ``fill`` are replaced; assertions hold by what surrounds them."""
        try:
            parsed = _parser.parse(pattern, re.DOTALL)
        except re.error as error:
            raise GrammarError(f"the pattern {pattern!r:.80} cannot be made a grammar: {error}") from None
        names = {number: name for name, number in parsed.state.groupdict.items()}
        return self._items(parsed, names, fill or {})

    def _items(self, items: Iterable[Any], names: Mapping[int, str], fill: Mapping[str, str]) -> str:
        parts: list[str] = []
        text = ""
        for kind, value in [*items, (None, None)]:
            if kind is op.LITERAL:
                text += chr(value)
                continue
            if text:
                parts.append(self._literal(text))
                text = ""
            if kind is None:
                continue
            part = self._item(kind, value, names, fill)
            if part.startswith("(/[A-Za-z0-9_]"):
                _append_word(parts, part)
            else:
                parts.append(part)
        return self._sequence(*parts)

    def _item(self, kind: Any, value: Any, names: Mapping[int, str], fill: Mapping[str, str]) -> str:
        if kind in (op.AT, op.ASSERT, op.ASSERT_NOT):
            return ""
        if kind is op.SUBPATTERN:
            group, _, _, inner = value
            name = names.get(group, "")
            return fill[name] if name in fill else self._items(inner, names, fill)
        if kind is op.BRANCH:
            choices = list(dict.fromkeys(self._items(each, names, fill) for each in value[1]))
            body = " | ".join(choice for choice in choices if choice)
            return f"({body}){'?' if '' in choices else ''}" if body else ""
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, inner = value
            characters = _characters(inner)
            if characters:
                body = f"/{characters}{{{max(1, least)},{max(1, least, min(int(most), _MOST))}}}/"
            else:
                body = self._items(inner, names, fill)
            return f"({body})?" if body and not least else body
        characters = _characters([(kind, value)])
        if not characters:
            raise GrammarError(f"a pattern with {kind} cannot be made a grammar")
        return f"/{characters}/"


def _append_word(parts: list[str], word: str) -> None:
    """Add a word that may be missing to the optional part before it: after the name of a tool it would change it."""
    at = len(parts) - 1
    while at >= 0 and parts[at].startswith("(/"):  # white space
        at -= 1
    if at >= 0 and parts[at].endswith(")?"):
        parts[at] = f"{parts[at][:-2]} {word})?"


def _characters(items: Any) -> str:
    """A single character of a pattern as a class; "" for anything else."""
    if len(items) != 1:
        return ""
    kind, value = items[0]
    if kind is op.ANY:
        return r"(.|\n)"
    if kind is op.NOT_LITERAL:
        return f"[^{_escaped(chr(value))}]"
    if kind is not op.IN:
        return ""
    classes = {op.CATEGORY_SPACE: r" \n", op.CATEGORY_WORD: "A-Za-z0-9_", op.CATEGORY_DIGIT: "0-9"}
    found = "["
    for entry, what in value:
        if entry is op.NEGATE:
            found += "^"
        elif entry is op.LITERAL:
            found += _escaped(chr(what))
        elif entry is op.RANGE:
            found += f"{_escaped(chr(what[0]))}-{_escaped(chr(what[1]))}"
        elif entry is op.CATEGORY and what in classes:
            found += classes[what]
        else:
            raise GrammarError(f"a class of characters with {what} cannot be made a grammar")
    return f"{found}]"


def _escaped(text: str) -> str:
    """A text inside a regular expression of Lark."""
    return re.sub(r"([\\/.*+?()\[\]{}|^$&~#\-])", r"\\\1", text).replace("\n", r"\n")


def _texts(items: Any) -> list[str]:
    """The texts that a pattern matches, without white space that may be missing; none if they are too many."""
    found = [""]
    for kind, value in items:
        if kind is op.LITERAL:
            more = [chr(value)]
        elif kind in (op.AT, op.ASSERT, op.ASSERT_NOT):
            continue
        elif kind is op.SUBPATTERN:
            more = _texts(value[3])
        elif kind is op.BRANCH:
            more = [text for each in value[1] for text in _texts(each)]
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT) and value[0] == 0:
            inner = [] if _characters(value[2]) else _texts(value[2])
            more = ["", *inner] if value[1] == 1 else [""]
        else:
            more = []
        found = list(dict.fromkeys(before + text for before in found for text in more))
        if len(found) > _MOST:
            return []
    return found


def _reference(placeholder: Any) -> list[str]:
    if not isinstance(placeholder, str) or not re.fullmatch(r"\{[\w.]+\}", placeholder):
        raise GrammarError("the calls of this response template cannot be bound by a grammar")
    return placeholder[1:-1].split(".")


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return dict(function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return _hoisted(found)


def _hoisted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose definitions are at its root, where references look for them."""
    found: dict[str, Any] = {}

    def without(value: Any, depth: int) -> Any:
        if isinstance(value, list):
            return [without(each, depth) for each in value]
        if not isinstance(value, Mapping):
            return value
        for name in _DEFINITIONS:
            if depth and isinstance(value.get(name), Mapping):
                found.setdefault(name, {}).update(value[name])
        return {k: without(v, depth + 1) for k, v in value.items() if not depth or k not in _DEFINITIONS}

    whole = without(schema, 0)
    for name, definitions in found.items():
        whole[name] = {**definitions, **whole.get(name, {})}
    return dict(whole)


def _within(root: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """A schema with the definitions of its root."""
    if not isinstance(schema, Mapping):
        return {} if schema is True else {"not": {}}
    return {name: root[name] for name in _DEFINITIONS if name in root} | dict(schema)


def _plain_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an object. Raises GrammarError for what only JSON can be bound to."""
    if unknown := sorted(schema.keys() - _OBJECT_KEYS):
        raise GrammarError(
            f"the parameters of a tool have {unknown[0]!r}, which calls in this format cannot be bound to"
        )
    return dict(schema.get("properties") or {})


def _choices(schema: Any) -> list[Any]:
    """The schemas of which a value fits one."""
    if isinstance(schema, Mapping):
        if isinstance(types := schema.get("type"), list):
            texts = [value for value in schema.get("enum", ()) if isinstance(value, str)]
            limits = {"string": {"enum": texts}} if "enum" in schema else {}
            found = [dict(schema) | {"type": each} | limits.get(each, {}) for each in types]
            return [choice for choice in found if choice.get("enum") != []]
        rest = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf", "type")}
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and not rest.keys() - _TEXT_KEYS:
                return [choice for each in schema[name] for choice in _choices(each)]
    return [schema]


def _is_text(schema: Any) -> bool:
    """Whether a value is a text without quotes. Raises GrammarError for a limit that a grammar cannot keep there."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if schema.get("type") != "string" and not (values and all(isinstance(value, str) for value in values)):
        return False
    if unknown := sorted(schema.keys() - _TEXT_KEYS - {*_DEFINITIONS}):
        raise GrammarError(f"a text has {unknown[0]!r}, which calls in this format cannot be bound to")
    for name in ("minLength", "maxLength"):
        if type(schema.get(name, 0)) is not int:
            raise GrammarError(f"{name} is {described(schema[name])}; expected an integer")
    return True


def _listed(parts: Sequence[tuple[str, bool]], separator: str) -> str:
    """Parts with separators between them, of which some may be left out."""
    required = [part for part, needed in parts if needed]
    optional = [part for part, needed in parts if not needed]
    if required:
        return f" {separator} ".join(required) + "".join(f" ({separator} {part})?" for part in optional)
    choices = [" ".join([part, *(f"({separator} {p})?" for p in optional[i + 1 :])]) for i, part in enumerate(optional)]
    return f"({' | '.join(choices)})?" if choices else ""
