"""Messages between the front process and the process of a model: MessagePack, each after its length in four bytes."""

from __future__ import annotations

from typing import Any, Union

import msgspec

__all__ = [
    "CallMade",
    "Cancel",
    "CountJob",
    "Counted",
    "DetokenizeJob",
    "Detokenized",
    "Difference",
    "EmbedJob",
    "Event",
    "Failed",
    "Finished",
    "Job",
    "Load",
    "Order",
    "Piece",
    "Planned",
    "Proceed",
    "RankJob",
    "Ready",
    "Scores",
    "Started",
    "TextJob",
    "TokenLogprob",
    "TokenizeJob",
    "Tokens",
    "Vectors",
    "decode_event",
    "decode_order",
    "encode",
    "length_of",
]

_HEADER = 4
MAX_BYTES = 1 << 30


class Load(msgspec.Struct, tag=True):
    """The first message to a model's process."""

    path: str
    device: str | None
    n_ctx: int | None
    options: dict[str, Any]
    """Keyword arguments of ``hotshoe.load_model``."""
    held: dict[str, int] = {}
    """Bytes by device that loaded models keep."""
    extra: dict[str, int] = {}
    """Bytes by device that loaded models would give back."""
    limit: int | None = None
    """The most bytes of the computer's memory for all models together."""
    reserve: int = 0
    """Bytes that a context whose size nobody gave leaves free, for other models."""
    describe: bool = False
    """Whether the plan is all that is asked."""


class Proceed(msgspec.Struct, tag=True):
    """Load the model as it was planned: there is room for it now."""


class TextJob(msgspec.Struct, tag=True):
    """Write a text. Exactly one of ``prompt`` and ``messages`` is given."""

    id: int
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    params: dict[str, Any] = {}
    """Fields of ``SamplingParams``."""
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    tools: list[dict[str, Any]] | None = None
    template_options: dict[str, Any] = {}
    """More variables for the chat template."""
    must_call: list[str] | None = None
    """The tools of which one is to be called; None: the model decides."""
    several_calls: bool = True
    """Whether several calls are allowed, if one must be made."""
    reasoning_budget: int | None = None
    """The most tokens of reasoning."""
    suffix: str | None = None
    """The text after a gap, which is to be filled after ``prompt``; None: there is no gap."""
    files: list[tuple[str, str]] = []
    """Names and contents of other files, for a gap."""
    prediction: str | None = None
    """A text that the answer may repeat, at least in parts."""


class TokenizeJob(msgspec.Struct, tag=True):
    """Turn a text into tokens."""

    id: int
    text: str
    add_special: bool
    parse_special: bool


class DetokenizeJob(msgspec.Struct, tag=True):
    """Turn tokens into a text."""

    id: int
    ids: list[int]


class EmbedJob(msgspec.Struct, tag=True):
    """Turn texts into vectors."""

    id: int
    texts: list[str]
    truncate: bool = False


class RankJob(msgspec.Struct, tag=True):
    """Score documents by how well they answer a query."""

    id: int
    query: str
    documents: list[str]
    truncate: bool = False


class CountJob(msgspec.Struct, tag=True):
    """Count the tokens of a conversation."""

    id: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    template_options: dict[str, Any] = {}


class Cancel(msgspec.Struct, tag=True):
    """End a job: its client has left."""

    id: int


class Ready(msgspec.Struct, tag=True):
    """The model is loaded."""

    task: str
    """"text", "embedding" or "rerank"."""
    architecture: str
    name: str
    n_ctx: int
    nbytes: int
    device: str
    why: str
    chats: bool
    """Whether the model has a chat format."""
    sees: bool = False
    """Whether the model reads pictures."""
    hears: bool = False
    """Whether the model reads sounds."""
    chat_template: str = ""
    calls: bool = False
    """Whether the chat format has tools, and their calls can be read."""
    thinks: bool = False
    """Whether the chat format has reasoning that can be read."""
    warning: str = ""
    """What is wrong with the file, although it is served; empty if nothing is."""
    dim: int = 0
    """Elements of a hidden state, and of the vector of an embedding model."""
    memory: dict[str, Any] = {}
    """``model.memory().to_json()``: bytes by device and layer."""


class Planned(msgspec.Struct, tag=True):
    """How the model would be loaded. ``Proceed`` loads it."""

    needs: dict[str, int]
    """Bytes by device."""
    free: dict[str, int]
    """Bytes by device that are free now, where that is known."""
    total: dict[str, int]
    """Bytes by device for all models together, where that is known."""
    n_ctx: int
    """The context. It is fixed by the plan for a text model."""
    fits: bool
    """Whether it fits if all models are unloaded that can be."""
    about: Ready | None = None
    """What the model would say of itself, if that was asked."""


class Started(msgspec.Struct, tag=True):
    """The prompt was read: the first token comes next."""

    id: int
    n_prompt: int
    n_cached: int
    """Tokens of the prompt that the cache had already."""


class Difference(msgspec.Struct):
    """Where a prompt and the nearest text in the cache part."""

    position: int
    """The number of the first token that differs."""
    before: str
    """The end of what both have in common."""
    prompt: str
    """What the prompt goes on with."""
    cached: str
    """What the cached text has there."""


class Counted(msgspec.Struct, tag=True):
    """The tokens of a CountJob."""

    id: int
    n_tokens: int


class Tokens(msgspec.Struct, tag=True):
    """The tokens of a TokenizeJob, and the bytes of each."""

    id: int
    ids: list[int]
    pieces: list[bytes]


class Detokenized(msgspec.Struct, tag=True):
    """The text of a DetokenizeJob."""

    id: int
    text: str


class TokenLogprob(msgspec.Struct):
    """A token with its log-probability, and the best other tokens."""

    token: bytes
    logprob: float
    top: list[tuple[bytes, float]]


class Piece(msgspec.Struct, tag=True):
    """Some of a text: complete characters, which may come from several tokens."""

    id: int
    text: str
    logprobs: list[TokenLogprob] = []
    kind: str = "content"
    """"content" or "reasoning"."""


class CallMade(msgspec.Struct, tag=True):
    """The model calls a tool."""

    id: int
    name: str
    arguments: str
    """A JSON object."""


class Finished(msgspec.Struct, tag=True):
    """The end of a text, with its numbers."""

    id: int
    reason: str
    """"stop", "length", "context" or "cancelled"."""
    n_prompt: int
    n_cached: int
    n_tokens: int
    queued_seconds: float
    prompt_seconds: float
    decode_seconds: float
    seed: int
    stop_text: str | None
    """The stop text that ended it; None if something else did."""
    difference: Difference | None = None
    """Why no more of the prompt was cached; None if no cached text begins like it, or the whole of one was used."""
    n_drafted: int = 0
    """Guessed tokens that were computed."""
    n_accepted: int = 0
    """Those of them that the model chose."""


class Vectors(msgspec.Struct, tag=True):
    """The vectors of an EmbedJob: float32, little-endian."""

    id: int
    vectors: list[bytes]
    n_tokens: int


class Scores(msgspec.Struct, tag=True):
    """The scores of a RankJob, in the order of its documents."""

    id: int
    scores: list[float]
    n_tokens: int


class Failed(msgspec.Struct, tag=True):
    """A job, or loading if ``id`` is None, ended with an error."""

    id: int | None
    kind: str
    """The class of the error, such as "SamplingError"."""
    message: str
    hint: str | None = None


Job = Union[TextJob, EmbedJob, RankJob, CountJob, TokenizeJob, DetokenizeJob]  # noqa: UP007 | msgspec reads it when the program runs
Order = Union[Load, Proceed, TextJob, EmbedJob, RankJob, CountJob, TokenizeJob, DetokenizeJob, Cancel]  # noqa: UP007
Event = Union[Ready, Planned, Started, Piece, CallMade, Finished, Vectors, Scores, Counted, Tokens, Detokenized, Failed]  # noqa: UP007

_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Order | Event) -> bytes:
    """A message with its length in front. Raises ValueError for one that is too long."""
    body = _encoder.encode(message)
    _check(len(body))
    return len(body).to_bytes(_HEADER, "little") + body


def length_of(header: bytes) -> int:
    """The length of the message after this header. Raises ValueError if it is not one of ours."""
    length = int.from_bytes(header, "little")
    _check(length)
    return length


def _check(length: int) -> None:
    if length > MAX_BYTES:
        raise ValueError(f"a message of {length} bytes; expected at most {MAX_BYTES}")


def decode_order(body: bytes) -> Order:
    """A message to a model's process."""
    return _orders.decode(body)


def decode_event(body: bytes) -> Event:
    """A message from a model's process."""
    return _events.decode(body)
