"""Admission: which jobs take part in a step, as the cache has room for all of them together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hotshoe.kvcache.checkpoints import on_grid
from hotshoe_core.errors import CacheFullError

if TYPE_CHECKING:
    from hotshoe.kvcache import Allocation
    from hotshoe.runner.cached_sequence import CachedSequence
    from hotshoe.runner.jobs import Job
    from hotshoe.runner.slots import Slots

__all__ = ["attach_jobs_that_fit"]

_MOST_OVERTAKING = 16  # jobs that came later and may begin before one that does not fit into the cache


def attach_jobs_that_fit(
    jobs: Iterable[Job[Any]], slots: Slots, n_ctx: int, urgent: Job[Any] | None = None
) -> list[Job[Any]]:
    """Give slots to active jobs while they fit into the cache together; return these jobs. Under the engine's lock.

    ``urgent`` comes first, then jobs in order of arrival. The first job is always among them, if need be instead of
    other sequences. A few jobs may overtake one that does not fit. Those whose rows come back are left out. n_ctx: the
    most rows of a text, guessed ones included.
    """
    fitting, attached = list["Job[Any]"](), list["CachedSequence"]()
    allocations, overtaken = list["Allocation"](), list["Job[Any]"]()
    for job in sorted((j for j in jobs if j.active), key=lambda j: (j is not urgent, j.arrival)):
        try:
            slots.attach(job.sequence, job.n_reusable, keep=attached)
        except CacheFullError:
            if attached:
                break
            raise
        new = slots.allocation(job.sequence, job.n_pending)
        min_free = job.min_free_rows if job.n_pending > 1 and not new.passing else 0
        if attached and not slots.fits([*allocations, new], min_free):
            if job.n_overtaken >= _MOST_OVERTAKING:
                break
            overtaken.append(job)
            continue
        allocations.append(new)
        attached.append(job.sequence)
        if not slots.restore_some(job.sequence):
            fitting.append(job)
        if job.served < 0:
            for other in overtaken:
                other.n_overtaken += 1
    for job in fitting:
        if job.n_draft:
            _fit_draft(job, slots, n_ctx, allocations)
    return fitting


def _fit_draft(job: Job[Any], slots: Slots, n_ctx: int, allocations: list[Allocation]) -> None:
    """Leave out guessed tokens that the context or the cache has no room for. allocations: of all jobs of the step."""
    draft = job.sequence.draft
    del draft[max(0, n_ctx - len(job.sequence)) :]
    if slots.cache.uniform:  # a graph leaves a state at its end only, and one on the grid is to stay
        first = job.n_computed + job.n_pending
        del draft[next((i for i in range(len(draft)) if on_grid(first + i)), len(draft)) :]
    longer = slots.allocation(job.sequence, job.n_pending + len(draft))
    with_draft = [longer if a.slot == longer.slot else a for a in allocations]
    if slots.has_room(with_draft):
        allocations[:] = with_draft
    else:
        draft.clear()
