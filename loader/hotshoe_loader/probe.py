"""Stage 3, probe: test each plugin in a child process, or use the report that an earlier start kept."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hotshoe_loader.activate import prints_to_log
from hotshoe_loader.cache import Cache
from hotshoe_loader.manifest import find_manifest
from hotshoe_loader.options import Limits, Options
from hotshoe_loader.report import Job, JobKey, Report
from hotshoe_loader.verdict import Rejected

__all__ = ["Probed", "kept_reports", "probe_all"]

logger = logging.getLogger("hotshoe.loader")


class Probed(NamedTuple):
    """A job, and the report on it."""

    job: Job
    report: Report


def kept_reports(
    jobs: Sequence[Job], store: Cache, refresh: bool, known: Mapping[JobKey, Report]
) -> dict[JobKey, Report]:
    """The reports on ``jobs`` that are in ``known``, or that are valid in ``store``. refresh: do not use ``store``.

    A report of a test that was ended after a shorter time than a job allows is not used.
    """
    reports = {job.key: known[job.key] for job in jobs if job.key in known}
    for job in () if refresh else jobs:
        if job.key not in reports and (report := store.get(job)) is not None:
            reports[job.key] = report
    for job in jobs:
        if job.patient and job.key in reports and reports[job.key].timed_out:
            del reports[job.key]
    return reports


def probe_all(
    jobs: Sequence[Job], options: Options, store: Cache, refresh: bool, known: Mapping[JobKey, Report]
) -> list[Probed]:
    """Probe each job that has no report in ``known`` and no valid one in ``store``, and keep the new reports there.

    options: they limit the seconds for each job. refresh: ignore the kept reports. Returns one report for each job, in
    order.
    """
    reports = kept_reports(jobs, store, refresh, known)
    fresh = [job for job in jobs if job.key not in reports]
    for job, report in zip(fresh, _probe_now(fresh, options) if fresh else ()):
        reports[job.key] = report
        if report.tested:
            store.put(job, report)
    return [Probed(job, reports[job.key]) for job in jobs]


def _limits(job: Job, options: Options) -> Limits:
    """The limits for a job. The plugin's manifest may ask for more, unless the user gave them."""
    limits = options.limits(job.patient)
    if limits.given:
        return limits
    with contextlib.suppress(Rejected):  # an invalid manifest is the job's to report
        manifest = find_manifest(job.plugin)
        seconds = manifest.probe_seconds if manifest is not None else 0.0
        return Limits(max(limits.plugin, seconds), max(limits.device, seconds), given=False)
    return limits


def _probe_now(jobs: Sequence[Job], options: Options) -> list[Report]:
    from hotshoe_loader import child_process  # not needed if every report is in the cache

    limits = [_limits(job, options) for job in jobs]
    logger.info("testing %d plugins or libraries, each for at most %g s", len(jobs), limits[0].plugin)
    if child_process.can_start_child():
        try:
            return child_process.run(jobs, limits)
        except OSError as error:
            logger.warning("cannot start a child process (%s); plugins are tested in this process instead", error)
    from hotshoe_loader.child_steps import probe_plugin

    with prints_to_log():
        return [probe_plugin(job) for job in jobs]
