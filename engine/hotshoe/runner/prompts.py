"""Prompts with pictures and sounds: a text or a conversation, and the items that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hotshoe.media import IMAGE, Medium, flattened, take_media, with_texts
from hotshoe.runner.items import Item
from hotshoe_core.errors import ChatTemplateError
from hotshoe_core.errors.arguments import described

if TYPE_CHECKING:
    from hotshoe.chat import ChatTemplate
    from hotshoe.runner.media_encoder import MediaEncoder
    from hotshoe.tokenizers import Tokenizer

__all__ = ["ChatPrompt", "prepare_chat", "prompt_items"]


class ChatPrompt(NamedTuple):
    """A conversation in the chat format of a model."""

    text: str
    """What the chat template wrote, with a marker for each picture and sound."""

    items: list[Item]
    """Token ids, and an EmbeddingSpan for each picture, sound or part of one."""

    @property
    def n_tokens(self) -> int:
        """How many tokens of the context it takes; a row of a picture or sound takes as much as a token."""
        return sum(1 if isinstance(item, int) else len(item) for item in self.items)


class Chats(Protocol):
    """What this module needs of a TextModel."""

    tokenizer: Tokenizer
    images: MediaEncoder | None
    audio: MediaEncoder | None
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


def prompt_items(model: Chats, prompt: Any, sources: Mapping[Medium, Iterable[Any] | None]) -> list[Item]:
    """Return a prompt with pictures and sounds as items. Raises ImageError or AudioError; otherwise as ``generate``.

    sources: what was given of each medium; None for nothing.
    """
    given = {_encoder(model, medium): some for medium, some in sources.items() if some is not None}
    if not isinstance(prompt, str):
        medium = next(iter(given)).medium
        raise medium.error(
            f"the prompt is {described(prompt)}; with {medium.option}, expected a text",
            hint=f"your own items may hold spans: model.{medium.option}.items(text, {medium.many}, add_special=True)",
        )
    from hotshoe.runner.media_encoder import encode_prompt  # few models have one

    return encode_prompt(model.tokenizer, prompt, given, add_special=True)


def prepare_chat(
    model: Chats, messages: Any, tools: Sequence[Mapping[str, Any]] | None, options: Mapping[str, Any]
) -> ChatPrompt:
    """Return a conversation in the model's format: see ``TextModel.prepare_chat``."""
    plain, sources = take_media(messages)
    if not sources:
        text = model.chat_prompt(messages, tools, **options)
        return ChatPrompt(text, list(model.tokenizer.encode(text, add_special=False)))
    from hotshoe.runner.media_encoder import encode_prompt  # few models have one

    given = {_encoder(model, medium): some for medium, some in sources.items()}
    for encoder in given:
        plain = with_texts(plain, encoder.hide_markers)
    whole = flattened(plain, {encoder.medium: encoder.tower.placeholder for encoder in given})
    template = model.chat_template
    for form in (plain, whole) if template.takes_parts else (whole,):
        text = model.chat_prompt(form, tools, **options)
        if all(encoder.count_markers(text) == len(some) for encoder, some in given.items()):
            return ChatPrompt(text, encode_prompt(model.tokenizer, text, given, add_special=False))
    wrong = next(encoder for encoder, some in given.items() if encoder.count_markers(text) != len(some))
    raise ChatTemplateError(
        f"{template.name} wrote {wrong.count_markers(text)} places for {len(given[wrong])} {wrong.medium.many}",
        hint="the template drops or repeats messages; give fewer of them",
    )


def _encoder(model: Chats, medium: Medium) -> MediaEncoder:
    encoder = model.images if medium is IMAGE else model.audio
    if encoder is None:
        unused = "".join(f"; {reason}" for reason in model.unused_towers[:3])
        other = model.audio if medium is IMAGE else model.images
        what = "texts only" if other is None else f"texts and {other.medium.many} only"
        raise medium.error(
            f"{model.about['model']} was loaded without an encoder of {medium.many}, so it reads {what}{unused}",
            hint="if the model has one, give its file: projector='mmproj-….gguf' in Python, --mmproj in commands",
        )
    return encoder
