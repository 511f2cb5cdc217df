"""Runs the stages over every candidate and joins what they return: usable providers, and a verdict for each candidate.

Each stage returns what passed and the verdicts on the rest: find → vet → probe → admit, then the same for libraries
without a plugin. Ranking and opening follow in the registry.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hotshoe_core.contract.device import Device
from hotshoe_core.eager.reference import reference_device
from hotshoe_loader import cache
from hotshoe_loader.activate import UsableProvider
from hotshoe_loader.admit import admit_libraries, admit_plugins
from hotshoe_loader.builtin import not_installed, reference
from hotshoe_loader.catalog import by_distribution, known
from hotshoe_loader.explain import warning
from hotshoe_loader.find import find_plugins
from hotshoe_loader.ggml.verdicts import folder_verdicts
from hotshoe_loader.ggml.without_plugin import find_without_plugin, jobs_without_plugin, vet_without_plugin
from hotshoe_loader.names import Names
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.probe import Probed, probe_all
from hotshoe_loader.report import Job
from hotshoe_loader.verdict import Verdict
from hotshoe_loader.vet import Policy, vet_plugins

__all__ = ["Survey", "take_survey"]

logger = logging.getLogger("hotshoe.loader")


@dataclass(frozen=True, slots=True)
class Survey:
    """The usable providers at one moment, and the verdict on every candidate."""

    providers: Mapping[str, UsableProvider]
    """The usable providers, by name."""
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    """Remarks about the options, such as a blocked name that matched nothing."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all usable providers, not ranked."""
        return tuple(device for provider in self.providers.values() for device in provider.devices)


def take_survey(options: Options, refresh: bool = False) -> Survey:
    """Find, vet, probe and admit every candidate. ``refresh``: ignore the reports of earlier starts."""
    folders = _library_folders(options)
    policy, names = Policy(options.block, options.allow), Names()

    # 1. Plugins.
    found = find_plugins()
    allowed, refused = vet_plugins(found.plugins, policy)
    paths = tuple(map(str, folders))
    jobs = [Job(plugin, options.block, options.allow, paths, options.ggml) for plugin in allowed]
    state = {**cache.state(found.installed), "timeout": options.timeout} if jobs else None
    store = cache.Cache(cache.folder(), state)
    probed = probe_all(jobs, options.timeout, store, refresh)
    usable, admitted = admit_plugins(probed, names, policy, store)
    verdicts = [
        verdict
        for plugin in dict.fromkeys(found.plugins)
        for verdict in (*refused.get(plugin, ()), *admitted.get(plugin, ()))
    ]

    # 2. Libraries without a plugin.
    reports = [result.report for result in probed]
    natives = [provider.native for report in reports for provider in report.providers]
    backends = {native for native in natives if native is not None}
    searched = list(dict.fromkeys([*folders, *(Path(folder) for report in reports for folder in report.folders)]))
    driver = _driver(probed)
    libraries, rejected = vet_without_plugin(find_without_plugin(searched, backends), policy, driver is not None)
    verdicts += rejected
    if driver is not None and libraries:
        library_jobs = jobs_without_plugin(driver, libraries, searched)
        probed_libraries = probe_all(library_jobs, options.timeout, store, refresh)
        more, tested = admit_libraries(probed_libraries, libraries, names, policy, store)
        usable += more
        verdicts += tested

    # 3. Folders, plugins that are not installed, and the reference backend.
    verdicts += folder_verdicts(folders, options.relative)
    distributions = {normalise(plugin.distribution) for plugin in found.plugins if plugin.shadowed_by is None}
    backends |= {device.name.partition(":")[0] for provider in usable for device in provider.devices}
    verdicts += not_installed(distributions, backends, found.installed)
    built_in = reference(policy)
    verdicts.append(built_in)
    if built_in.outcome.usable:
        usable.append(UsableProvider(built_in.candidate, (reference_device(),)))

    # A plugin of this project may be blocked before it is installed. Another name that matches nothing may be a typo.
    notes = [f"{option}={name!r} matched nothing" for option, name in policy.unmatched if known(name) is None]
    providers = {provider.name: provider for provider in usable}
    _log(verdicts, providers)
    return Survey(MappingProxyType(providers), tuple(verdicts), tuple(notes))


def _library_folders(options: Options) -> dict[Path, str]:
    """The user's folders of libraries, each with the option or software that named it."""
    folders = dict.fromkeys(options.paths, "paths= or HOTSHOE_PATH")
    if options.system:
        from hotshoe_loader.ggml.known_folders import known_folders

        for folder, origin in known_folders():
            folders.setdefault(folder, origin)
    return folders


def _driver(probed: Sequence[Probed]) -> Job | None:
    """The job of the plugin that drives libraries without a plugin: the last of this project's, else the first."""
    able = [result.job for result in probed if result.report.can_drive]
    ours = [job for job in able if by_distribution(normalise(job.plugin.distribution)) is not None]
    return next(iter([*reversed(ours), *able]), None)


def _log(verdicts: Sequence[Verdict], providers: Mapping[str, UsableProvider]) -> None:
    for verdict in verdicts:
        trace = "".join(f"\n  {line}" for line in verdict.details.get("traceback", ()))
        logger.debug("%s%s%s", verdict, f" ({verdict.hint})" if verdict.hint else "", trace)
    if message := warning(verdicts, providers):
        logger.warning("%s", message)
