"""Prompts with pictures: a text or a conversation, and the items that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hotshoe.images import flattened, take_images, with_texts
from hotshoe.runner.items import Item
from hotshoe_core.errors import ChatTemplateError, ImageError
from hotshoe_core.errors.arguments import described

if TYPE_CHECKING:
    from hotshoe.chat import ChatTemplate
    from hotshoe.runner.image_encoder import ImageEncoder
    from hotshoe.tokenizers import Tokenizer

__all__ = ["ChatPrompt", "prepare_chat", "prompt_items"]


class ChatPrompt(NamedTuple):
    """A conversation in the chat format of a model."""

    text: str
    """What the chat template wrote, with a marker for each picture."""

    items: list[Item]
    """Token ids, and an EmbeddingSpan for each picture or part of one."""

    @property
    def n_tokens(self) -> int:
        """How many tokens of the context it takes; a row of a picture takes as much as a token."""
        return sum(1 if isinstance(item, int) else len(item) for item in self.items)


class Chats(Protocol):
    """What this module needs of a TextModel."""

    tokenizer: Tokenizer
    images: ImageEncoder | None
    unused_towers: tuple[str, ...]

    @property
    def about(self) -> dict[str, str]:
        """The file, as ``model``."""

    @property
    def chat_template(self) -> ChatTemplate:
        """The chat template."""

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> str:
        """Return a conversation as a text."""


def prompt_items(model: Chats, prompt: Any, images: Sequence[Any]) -> list[Item]:
    """Return a prompt with pictures as items. Raises ImageError; otherwise as ``TextModel.generate``."""
    encoder = _encoder(model)
    if not isinstance(prompt, str):
        raise ImageError(
            f"the prompt is {described(prompt)}; with images, expected a text",
            hint="items of your own may hold spans: model.images.items(text, images, add_special=True)",
        )
    return encoder.items(prompt, images, add_special=True)


def prepare_chat(
    model: Chats, messages: Any, tools: Sequence[Mapping[str, Any]] | None, options: Mapping[str, Any]
) -> ChatPrompt:
    """Return a conversation in the model's format: see ``TextModel.prepare_chat``."""
    plain, sources = take_images(messages)
    if not sources:
        text = model.chat_prompt(messages, tools, **options)
        return ChatPrompt(text, list(model.tokenizer.encode(text, add_special=False)))
    encoder = _encoder(model)
    plain = with_texts(plain, encoder.hide_markers)
    whole = flattened(plain, encoder.tower.placeholder)
    template = model.chat_template
    for given in (plain, whole) if template.takes_parts else (whole,):
        text = model.chat_prompt(given, tools, **options)
        if encoder.count_markers(text) == len(sources):
            return ChatPrompt(text, encoder.items(text, sources, add_special=False))
    raise ChatTemplateError(
        f"{template.name} wrote {encoder.count_markers(text)} places for {len(sources)} pictures",
        hint="the template drops or repeats messages; give fewer of them",
    )


def _encoder(model: Chats) -> ImageEncoder:
    if model.images is None:
        unused = "".join(f"; {reason}" for reason in model.unused_towers[:3])
        raise ImageError(
            f"{model.about['model']} was loaded without an encoder of pictures, so it reads texts only{unused}",
            hint="if the model has one, give its file: projector='mmproj-….gguf' in Python, --mmproj in commands",
        )
    return model.images
