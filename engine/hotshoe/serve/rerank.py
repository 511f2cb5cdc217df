"""Reranking, in the dialect of Jina and Cohere."""

from __future__ import annotations

from typing import Any

import msgspec

from hotshoe.serve import wire
from hotshoe.serve.front import Front
from hotshoe.serve.requests import RequestError, parse

__all__ = ["rerank"]


class RerankRequest(msgspec.Struct, kw_only=True):
    """The body of ``/v1/rerank``."""

    query: str
    documents: list[Any]
    model: str = ""
    top_n: int | None = None
    return_documents: bool = False


async def rerank(front: Front, body: bytes) -> Any:
    """Order documents by how well they answer the query, the best first."""
    request, unknown = parse(body, RerankRequest)
    process = front.process(request.model)
    ignored = front.ignored(unknown, ())
    if not request.documents:
        raise RequestError(400, "documents is empty; expected one or more", param="documents")
    if request.top_n is not None and request.top_n < 1:
        raise RequestError(400, f"top_n is {request.top_n}; expected 1 or more", param="top_n")
    texts = [_text(i, document) for i, document in enumerate(request.documents)]
    event = await front.result(process, lambda number: wire.RankJob(number, request.query, texts))
    order = sorted(range(len(texts)), key=lambda i: -event.scores[i])[: request.top_n]
    results = [
        {"index": i, "relevance_score": event.scores[i]}
        | ({"document": {"text": texts[i]}} if request.return_documents else {})
        for i in order
    ]
    usage = {"prompt_tokens": event.n_tokens, "total_tokens": event.n_tokens}
    return front.json({"model": process.spec.name, "results": results, "usage": usage}, ignored)


def _text(i: int, document: Any) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise RequestError(400, f"documents[{i}] is not a text", param=f"documents[{i}]")
    return text
