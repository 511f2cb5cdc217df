"""Pictures in messages: take them out of the parts of a content, and leave their places for the chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotshoe_core.errors import ImageError

__all__ = ["flattened", "take_images", "with_texts"]

_TYPES = ("image", "image_url", "input_image")
_KEYS = ("image", "image_url", "path", "url", "base64", "data")


def take_images(messages: Any) -> tuple[Any, list[Any]]:
    """Return messages whose pictures are ``{"type": "image"}``, and the pictures in their order.

    A picture is ``{"type": "image", "image": source}``, where the source is what ``read_image`` reads; or OpenAI's
    ``{"type": "image_url", "image_url": {"url": "data:…"}}``. Raises ImageError for a part without a picture.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        return messages, []  # the chat template says what is wrong
    found: list[Any] = []
    taken = [_take(f"messages[{i}]", message, found) for i, message in enumerate(messages)]
    return (taken, found) if found else (messages, [])


def _take(where: str, message: Any, found: list[Any]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    parts: list[Any] = []
    for j, part in enumerate(content):
        if isinstance(part, Mapping) and part.get("type") in _TYPES:
            found.append(_source(f"{where}['content'][{j}]", part))
            part = {"type": "image"}
        parts.append(part)
    return {**message, "content": parts}


def _source(where: str, part: Mapping[str, Any]) -> Any:
    given = [key for key in _KEYS if part.get(key) is not None]
    if len(given) != 1:
        raise ImageError(
            f"{where} is a picture with {' and '.join(map(repr, given)) or 'none'} of {', '.join(_KEYS)}; expected one",
            hint='{"type": "image", "image": path, bytes, PIL image or array}',
        )
    (key,) = given
    value = part[key]
    if key == "image_url" and isinstance(value, Mapping):
        value = value.get("url")
    if key in ("base64", "data") and isinstance(value, str) and value[:5].lower() != "data:":
        return f"data:image/any;base64,{value}"
    if key in ("image_url", "url") and (not isinstance(value, str) or value[:5].lower() != "data:"):
        raise ImageError(
            f"{where}: the picture's address does not begin with data:; hotshoe fetches no addresses",
            hint="send the picture itself: data:image/png;base64,…",
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


def flattened(messages: Sequence[Any], placeholder: str) -> list[Any]:
    """Return messages whose contents are texts: a placeholder for each picture, and line ends between the parts."""

    def text_of(part: Any) -> Any:
        return {"type": "text", "text": placeholder} if part == {"type": "image"} else part

    return [
        {**message, "content": [text_of(part) for part in message["content"]]}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
