"""The process of one model. It reads orders from stdin and writes events to stdout.

Each text has a thread; the engine computes all texts that wait in one batch.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import hotshoe
from hotshoe.chat import from_metadata
from hotshoe.chat.call_grammar import call_grammar, reasoning_marks
from hotshoe.chat.parts import Call, Parts, Text
from hotshoe.chat.reasoning import ReasoningBudget
from hotshoe.chat.response import ResponseReader, ResponseTemplate
from hotshoe.chat.responses import response_template
from hotshoe.load_options import group_options
from hotshoe.load_request import LoadRequest
from hotshoe.media import AUDIO, IMAGE
from hotshoe.runner.infill import infill_prompt
from hotshoe.sampling import Grammar
from hotshoe.serve import wire
from hotshoe.serve.marks import without_marks
from hotshoe.serve.planning import choose
from hotshoe.store.names import named
from hotshoe.tasks import Task
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import ChatTemplateError, GrammarError, HotshoeError, TokenizerError

if TYPE_CHECKING:
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.reranker import RerankModel
    from hotshoe.runner.stream import Stream
    from hotshoe.runner.text import TextModel

__all__ = ["main"]

_YOUNG, _FULL_COLLECTION = 2000, 1000
"""For ``gc.set_threshold``: new objects before the youngest are collected; collections of the second generation
before a full one."""
_SHOWN = 8
"""Tokens before the first one that differs, which are shown to tell where it is."""


class Worker:
    """Answers the orders of the front process."""

    def __init__(self, orders: BinaryIO, events: BinaryIO) -> None:
        self._orders = orders
        self._events = events
        self._writing = threading.Lock()
        self._streams: dict[int, Stream | None] = {}
        """The texts that are being written; None until the prompt is read."""
        self._cancelled: set[int] = set()
        """Those of them that are to end."""
        self._response: ResponseTemplate | None = None

    def run(self) -> int:
        """Load the model, then work until the front process closes stdin."""
        load = self._read()
        if not isinstance(load, wire.Load):
            return 0
        try:
            choice = choose(load)
            if load.describe:
                choice.planned.about = self._described(load, choice.planned)
            self._send(choice.planned)
            if not isinstance(self._read(), wire.Proceed):
                return 0
            model = hotshoe.load_model(load.path, load.device, n_ctx=choice.n_ctx, **choice.options)
        except Exception as error:
            self._fail(None, error)
            return 1
        self._send(self._ready(model))
        _calm_garbage_collection()
        while (order := self._read()) is not None:
            if isinstance(order, wire.Cancel):
                self._cancel(order.id)
            elif not isinstance(order, wire.Load):
                if isinstance(order, wire.TextJob):
                    self._streams[order.id] = None
                threading.Thread(target=self._answer, args=(model, order), daemon=True).start()
        for id in list(self._streams):
            self._cancel(id)
        model.close()  # keeps the beginnings of texts for the next time
        return 0

    def _ready(self, model: Any) -> wire.Ready:
        """What a loaded model says of itself. Sets the response template."""
        about = self._about(model.metadata, _task(model), lambda: model.chat_template.source)
        about.n_ctx, about.nbytes, about.device, about.why = model.n_ctx, model.nbytes, model.device.name, model.why
        if about.task == Task.TEXT.value:
            about.sees, about.hears = model.sees, model.hears
        about.memory = model.memory().to_json()
        return about

    def _described(self, load: wire.Load, planned: wire.Planned) -> wire.Ready:
        """What a model would say of itself."""
        stored = named(load.path)
        where, projector = (load.path, None) if stored is None else (stored.path, stored.projector)
        with LoadRequest.read(where, None, None, group_options({}, ()), None, None, projector) as request:
            metadata = request.file.metadata
            task = request.model_class.task
            about = self._about(metadata, task, lambda: from_metadata(metadata, load_tokenizer(metadata)).source)
            about.sees, about.hears = (
                any(found.tower.medium is medium for found in request.found_towers) for medium in (IMAGE, AUDIO)
            )
        about.n_ctx, about.nbytes = planned.n_ctx, sum(planned.needs.values())
        return about

    def _about(self, metadata: Any, task: Task, chat_template: Callable[[], str]) -> wire.Ready:
        """What the metadata say of a model. Sets the response template."""
        source = warning = ""
        if task is Task.TEXT:
            try:
                source = chat_template()
                self._response = response_template(metadata, source)
            except ChatTemplateError as error:
                if source:
                    self._response = response_template({}, source)
                    warning = f"{error.message}; answers are read by the format of the chat template"
        fields = self._response.fields if self._response is not None else {}
        return wire.Ready(
            task=task.value,
            architecture=metadata.architecture,
            name=str(metadata.get("general.name", "")),
            n_ctx=0,
            nbytes=0,
            device="",
            why="",
            chats=bool(source),
            chat_template=source,
            calls="tool_calls" in fields and "tools" in source,
            thinks="reasoning_content" in fields,
            warning=warning,
            dim=metadata.arch.get("embedding_length", 0),
        )

    def _read(self) -> wire.Order | None:
        header = self._orders.read(4)
        if len(header) < 4:
            return None
        return wire.decode_order(self._orders.read(wire.length_of(header)))

    def _send(self, event: wire.Event) -> None:
        with self._writing:
            self._events.write(wire.encode(event))
            self._events.flush()

    def _fail(self, id: int | None, error: BaseException) -> None:
        if not isinstance(error, HotshoeError):
            import traceback

            traceback.print_exc()  # stderr is the server's log
        message = error.message if isinstance(error, HotshoeError) else f"{type(error).__name__}: {error}"
        self._send(wire.Failed(id, type(error).__name__, message, getattr(error, "hint", None)))

    def _answer(self, model: Any, job: wire.Job) -> None:
        try:
            _METHODS[type(job)](self, model, job)
        except BrokenPipeError:  # the front process is gone, and this one is about to end
            pass
        except BaseException as error:
            self._fail(job.id, error)
        finally:
            self._streams.pop(job.id, None)
            self._cancelled.discard(job.id)

    def _cancel(self, id: int) -> None:
        if id not in self._streams:  # it has ended
            return
        self._cancelled.add(id)
        if (stream := self._streams.get(id)) is not None:
            stream.cancel()

    def write_text(self, model: TextModel, job: wire.TextJob) -> None:
        """Send the pieces of a text as they come, then its end."""
        _require(model, Task.TEXT)
        start = time.perf_counter()
        given: dict[str, Any] = {"json_schema": job.json_schema, "grammar": job.grammar, **job.params}
        given["prediction"] = job.prediction
        parts = None
        if job.messages is not None:
            chat = model.prepare_chat(without_marks(job.messages), job.tools, **job.template_options)
            if self._response is not None:
                reader = ResponseReader(self._response, chat.text, job.tools or ())
                given |= self._bound(model, job, begun=reader.is_reasoning)
                parts = Parts(reader)
            stream = model.stream(chat.items, skip_special=parts is None, **given)
        else:
            prompt = job.prompt or ""
            if job.suffix is not None and isinstance(prompt, str):
                prompt = infill_prompt(model.tokenizer, prompt, job.suffix, job.files)
            stream = model.stream(prompt, **given)
        with stream:
            self._streams[job.id] = stream
            self._send_pieces(model, stream, job, start, parts)

    def _bound(self, model: TextModel, job: wire.TextJob, *, begun: bool) -> dict[str, Any]:
        """The grammar of a text that must call a tool, and the limit of its reasoning. begun: the prompt began it."""
        template = self._response
        assert template is not None
        constraint: Any = None
        if job.must_call is not None:
            tools = [tool for tool in job.tools or () if tool["function"]["name"] in job.must_call]
            lark = call_grammar(template, tools, model.tokenizer, thinking=begun, several=job.several_calls)
            constraint = Grammar.from_lark(lark)
        if job.reasoning_budget is not None and (marks := reasoning_marks(template)) is not None:
            if job.grammar is not None or job.json_schema is not None:
                raise GrammarError(
                    "a limit of the reasoning and a grammar or schema are given; expected one of them",
                    hint="leave the limit out: the grammar leaves no room for reasoning",
                )
            inner = None if constraint is None else constraint.start(model.grammar_vocabulary)
            constraint = ReasoningBudget(job.reasoning_budget, marks, model.tokenizer, begun=begun, inner=inner)
        return {} if constraint is None else {"grammar": constraint}

    def _send_pieces(
        self, model: TextModel, stream: Stream, job: wire.TextJob, start: float, parts: Parts | None
    ) -> None:
        if job.id in self._cancelled:
            stream.cancel()
        done, n_sent, queued = stream.completion, 0, None
        while done.finish_reason is None:
            piece = stream.advance()
            if queued is None:
                self._send(wire.Started(job.id, done.n_prompt, done.n_cached))
                queued = max(0.0, time.perf_counter() - start - done.prompt_seconds)
            found: list[Text | Call] = [Text("content", piece)] if piece else []
            if parts is not None:
                found = parts.feed(piece) + (parts.finish() if done.finish_reason is not None else [])
            for part in found:
                if isinstance(part, Call):
                    self._send(wire.CallMade(job.id, part.name, part.arguments))
                    continue
                logprobs = [_logprob(model, sampled) for sampled in done.logprobs[n_sent:]]
                n_sent = len(done.logprobs)
                self._send(wire.Piece(job.id, part.text, logprobs, part.kind))
        seconds = queued or 0.0, done.prompt_seconds, done.decode_seconds
        counts = done.n_prompt, done.n_cached, len(done.tokens)
        ending = done.seed, done.stop_text, _difference(model, stream)
        guesses = done.n_drafted, done.n_accepted
        self._send(wire.Finished(job.id, done.finish_reason, *counts, *seconds, *ending, *guesses))

    def tokenize(self, model: Any, job: wire.TokenizeJob) -> None:
        """Send the tokens of a text."""
        ids = model.tokenizer.encode(job.text, add_special=job.add_special, parse_special=job.parse_special)
        self._send(wire.Tokens(job.id, ids, [model.tokenizer.piece(id) for id in ids]))

    def detokenize(self, model: Any, job: wire.DetokenizeJob) -> None:
        """Send the text of tokens. Raises TokenizerError for an id outside the vocabulary."""
        size = model.tokenizer.vocab_size
        if (wrong := next((id for id in job.ids if not 0 <= id < size), None)) is not None:
            raise TokenizerError(f"token id {wrong} is outside the vocabulary of {size} tokens")
        self._send(wire.Detokenized(job.id, model.tokenizer.decode(job.ids, skip_special=False)))

    def count(self, model: TextModel, job: wire.CountJob) -> None:
        """Send the number of tokens of a conversation."""
        _require(model, Task.TEXT)
        chat = model.prepare_chat(without_marks(job.messages), job.tools, **job.template_options)
        self._send(wire.Counted(job.id, chat.n_tokens))

    def embed(self, model: EmbeddingModel, job: wire.EmbedJob) -> None:
        """Send the vectors of texts."""
        _require(model, Task.EMBEDDING)
        vectors = model.embed(job.texts, truncate=job.truncate)
        n = sum(min(len(model.tokenizer.encode(text)), model.n_ctx) for text in job.texts)
        self._send(wire.Vectors(job.id, [v.astype("<f4").tobytes() for v in vectors], n))

    def rank(self, model: RerankModel, job: wire.RankJob) -> None:
        """Send the scores of documents."""
        _require(model, Task.RERANK)
        scores = model.scores([(job.query, document) for document in job.documents], truncate=job.truncate)
        texts = [job.query] * len(job.documents) + job.documents
        n = sum(len(model.tokenizer.encode(text)) for text in texts)
        self._send(wire.Scores(job.id, [float(score) for score in scores], n))


def _calm_garbage_collection() -> None:
    """Let a full collection be rare: it stops all texts meanwhile, and graphs are many objects.

    Closed graphs and finished texts do not refer to themselves, so they are freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, _FULL_COLLECTION)


_METHODS: dict[type, Callable[[Worker, Any, Any], None]] = {
    wire.TextJob: Worker.write_text,
    wire.EmbedJob: Worker.embed,
    wire.RankJob: Worker.rank,
    wire.CountJob: Worker.count,
    wire.TokenizeJob: Worker.tokenize,
    wire.DetokenizeJob: Worker.detokenize,
}


def _task(model: Any) -> Task:
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.reranker import RerankModel

    return (
        Task.EMBEDDING
        if isinstance(model, EmbeddingModel)
        else Task.RERANK
        if isinstance(model, RerankModel)
        else Task.TEXT
    )


def _require(model: Any, task: Task) -> None:
    """Raise ModelError unless the model is for this task."""
    from hotshoe_core.errors import ModelError

    if (found := _task(model)) is not task:
        raise ModelError(f"the request needs {task.description}; this one is {found.description}")


def _difference(model: TextModel, stream: Stream) -> wire.Difference | None:
    """Where the prompt and the nearest cached text parted."""
    (n, other), rows = stream.completion.nearest, stream.prompt
    if not isinstance(other, int) or n >= len(rows):
        return None

    def text(*rows: Any) -> str:
        return b"".join(model.tokenizer.piece(row) for row in rows if isinstance(row, int)).decode(errors="replace")

    return wire.Difference(n, text(*rows[max(0, n - _SHOWN) : n]), text(rows[n]), text(other))


def _logprob(model: TextModel, sampled: Any) -> wire.TokenLogprob:
    piece = model.tokenizer.piece
    return wire.TokenLogprob(piece(sampled.id), sampled.logprob, [(piece(id), value) for id, value in sampled.top])


def main() -> int:
    """Work for the front process, whose pipes are stdin and stdout. What else is printed goes to stderr."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach all processes; the front process ends this one
        signal.signal(number, signal.SIG_IGN)
    orders, events = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    code = Worker(orders, events).run()
    sys.stderr.flush()
    os._exit(code)  # texts that are being written have no reader any more
