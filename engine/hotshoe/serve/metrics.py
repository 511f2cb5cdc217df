"""Metrics: what the server did, as Prometheus reads it. The package prometheus-client is in ``hotshoe[serve]``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hotshoe.serve import wire

if TYPE_CHECKING:
    from hotshoe.serve.processes import ModelProcess

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters and histograms of one server, each with the model's name as a label."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests that ended, by result", "result")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts")
        self._cached = self._counter("cached_tokens", "Tokens of prompts that the cache had already")
        self._generated = self._counter("generated_tokens", "Tokens that were written")
        self._drafted = self._counter("drafted_tokens", "Tokens that were guessed and computed")
        self._accepted = self._counter("accepted_tokens", "Guessed tokens that were right")
        self._first = self._histogram("first_token_seconds", "Seconds from a request to its first token")
        self._token = self._histogram("token_seconds", "Mean seconds for a token after the first, by request")
        self._whole = self._histogram("request_seconds", "Seconds from a request to its end")
        self._active = Gauge(
            "hotshoe_requests_active", "Requests that wait or are computed", ["model"], registry=self._registry
        )
        self._loaded = Gauge("hotshoe_model_loaded", "1 if the model is in memory", ["model"], registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hotshoe_{name}", text, ["model", *labels], registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"hotshoe_{name}", text, ["model"], registry=self._registry, buckets=_SECONDS)

    def observe(self, model: str, event: wire.Event, seconds: float) -> None:
        """Count an event of a job, ``seconds`` after the job was sent."""
        if isinstance(event, wire.Started):
            self._first.labels(model).observe(seconds)
        elif isinstance(event, wire.Failed):
            self._requests.labels(model, event.kind).inc()
        elif isinstance(event, wire.Finished):
            self._requests.labels(model, event.reason).inc()
            self._prompt.labels(model).inc(event.n_prompt)
            self._cached.labels(model).inc(event.n_cached)
            self._generated.labels(model).inc(event.n_tokens)
            self._drafted.labels(model).inc(event.n_drafted)
            self._accepted.labels(model).inc(event.n_accepted)
            self._whole.labels(model).observe(seconds)
            if event.n_tokens > 1:
                self._token.labels(model).observe(event.decode_seconds / (event.n_tokens - 1))
        elif isinstance(event, (wire.Vectors, wire.Scores)):
            self._requests.labels(model, "done").inc()
            self._prompt.labels(model).inc(event.n_tokens)
            self._whole.labels(model).observe(seconds)

    def text(self, processes: Iterable[ModelProcess]) -> bytes:
        """Return all of it in Prometheus' text format."""
        self._active.clear()  # of models that are gone
        self._loaded.clear()
        for process in processes:
            self._active.labels(process.spec.name).set(process.n_jobs)
            self._loaded.labels(process.spec.name).set(process.ready is not None)
        return generate_latest(self._registry)
