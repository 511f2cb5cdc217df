"""Pictures and sounds in messages: take them out of a content, and leave their places for the chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotshoe.media._medium import MEDIA, Medium

__all__ = ["Given", "flattened", "take_media", "with_texts"]

Given = dict[Medium, list[Any]]
"""The sources of pictures and sounds, in their order. A medium that is not given has no entry."""


def take_media(messages: Any) -> tuple[Any, Given]:
    """Return messages whose pictures are ``{"type": "image"}`` and whose sounds are ``{"type": "audio"}``; and these.

    A picture is ``{"type": "image", "image": source}``, where the source is what ``read_image`` reads; or OpenAI's
    ``{"type": "image_url", "image_url": {"url": "data:…"}}``. A sound is ``{"type": "audio", "audio": source}``, where
    the source is what ``read_audio`` reads; or OpenAI's ``{"type": "input_audio", "input_audio": {"data": "…",
    "format": "wav"}}`` with the file in base64. Raises ImageError or AudioError for a part without its source.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        return messages, {}  # the chat template says what is wrong
    found: Given = {}
    taken = [_take(f"messages[{i}]", message, found) for i, message in enumerate(messages)]
    return (taken, found) if found else (messages, {})


def _take(where: str, message: Any, found: Given) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    parts: list[Any] = []
    for j, part in enumerate(content):
        medium = _medium_of(part)
        if medium is not None:
            found.setdefault(medium, []).append(_source(f"{where}['content'][{j}]", part, medium))
            part = {"type": medium.name}
        parts.append(part)
    return {**message, "content": parts}


def _medium_of(part: Any) -> Medium | None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return next((medium for medium in MEDIA if kind in medium.types), None)


def _source(where: str, part: Mapping[str, Any], medium: Medium) -> Any:
    given = [key for key in medium.keys if part.get(key) is not None]
    if len(given) != 1:
        raise medium.error(
            f"{where} is a {medium.one} with {' and '.join(map(repr, given)) or 'none'} of {', '.join(medium.keys)}; "
            "expected one",
            hint=f'{{"type": "{medium.name}", "{medium.name}": source}}; a source is {medium.expected}',
        )
    (key,) = given
    value = part[key]
    is_address = key.endswith("url")
    if isinstance(value, Mapping) and (is_address or key == "input_audio"):
        inner = "url" if is_address else "data"
        value = value.get(inner)
        if value is None:
            raise medium.error(f"{where}: {key} has no {inner!r}; it holds the {medium.one}")
    if key in ("base64", "data", "input_audio") and isinstance(value, str) and value[:5].lower() != "data:":
        return f"data:{medium.name}/any;base64,{value}"
    if is_address and (not isinstance(value, str) or value[:5].lower() != "data:"):
        raise medium.error(
            f"{where}: the {medium.one}'s address does not begin with data:; hotshoe fetches no addresses",
            hint=f"send the {medium.one} itself: {medium.example}",
        )
    return value


def with_texts(messages: Sequence[Any], change: Callable[[str], str]) -> list[Any]:
    """Return messages with ``change`` applied to the texts of their contents."""

    def content_of(content: Any) -> Any:
        if isinstance(content, str):
            return change(content)
        if not isinstance(content, (list, tuple)):
            return content
        return [
            {**part, "text": change(part["text"])}
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]

    return [
        {**message, "content": content_of(message.get("content"))} if isinstance(message, Mapping) else message
        for message in messages
    ]


def flattened(messages: Sequence[Any], placeholders: Mapping[Medium, str]) -> list[Any]:
    """Return messages whose contents are texts: a placeholder for each picture and sound, in the place of its part."""

    def text_of(part: Any) -> Any:
        medium = _medium_of(part)
        return part if medium is None else {"type": "text", "text": placeholders[medium]}

    return [
        {**message, "content": [text_of(part) for part in message["content"]]}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
