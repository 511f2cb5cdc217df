"""Errors with several devices: see adapters.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import NodePlacement, Placement
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.adapter import EagerBackend, EagerExecutable
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_core.testing import MultiDeviceConformance
from hotshoe_core.testing.fake import open_fake
from tests.core.mutants.adapters import Patch, backend, executable, of_patches
from tests.core.mutants.lives import traced_again
from tests.core.mutants.mutant import Mutant

__all__ = ["mutants"]


def layers_forgotten(self: EagerBackend, shape: Any, dtype: DType, name: str, layer: int = -1) -> Tensor:
    return EagerBackend.state(self, shape, dtype, name)


def all_on_the_first(self: EagerBackend, weights: Any, placement: Any = None, progress: Any = None) -> Any:
    asked = self.require_placement(placement)
    loaded = EagerBackend.load(self, weights, Placement(self.devices[0].name), progress)
    self._placement = asked
    return loaded


def dry_on_the_first(self: EagerBackend, weights: Any, placement: Any = None, progress: Any = None) -> Any:
    load = EagerBackend.load if self.params.allocate else all_on_the_first
    return load(self, weights, placement, progress)


def any_name_will_do(self: EagerBackend, placement: Placement | None) -> Placement:
    known = [d.name for d in self.devices]
    if placement is not None and all(name in known for name in placement.devices):
        return placement
    return self.placement


def first_is_blamed(self: EagerBackend, device: str, what: Any, size: int, layer: int = -1) -> Any:
    return EagerBackend.guard(self, self.devices[0].name, what, size, layer)


def on_the_other(self: EagerExecutable) -> list[NodePlacement]:
    names = [d.name for d in self._backend.devices]
    return [p._replace(device=names[names.index(p.device) - 1]) for p in EagerExecutable.placements(self)]


def released_on_the_first(self: EagerBackend, tensors: Sequence[Tensor]) -> None:
    EagerBackend.release(
        self, [t for t in tensors if t in self._allocations and self.device_of_tensor(t) == self.devices[0].name]
    )


def received(change: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Patch:
    """A wrong copy between devices."""

    def patch(right: EagerBackend) -> None:
        right._libraries = tuple(replace(each, receive=change(each.receive)) for each in right._libraries)

    return patch


def once(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    came: dict[Any, Any] = {}
    return lambda x: came.setdefault(x.array.shape, receive(x))


def shifted(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        y = receive(x)
        y.array = np.roll(y.array, 1)
        return y

    return call


def all_arrays_on_the_first(right: EagerBackend) -> None:
    first = right._libraries[0]
    right._libraries = tuple(replace(first, receive=lambda x: x) for _ in right._libraries)


def over_fakes(params: BackendParams) -> EagerBackend:
    return open_fake(2, params, capacity=1 << 30)


DEVICES: Mapping[str, tuple[str, Patch]] = {
    "devices: what crosses is what crossed first": ("test_every_placement_computes_the_same", received(once)),
    "devices: what crosses is shifted": ("test_every_placement_computes_the_same", received(shifted)),
    "devices: what crosses stays where it was": (
        "test_every_placement_computes_the_same",
        received(lambda receive: lambda x: x),
    ),
    "devices: traced at each call": ("test_computing_again_builds_nothing", executable(run=traced_again)),
    "devices: states lose their layer": (
        "test_memory_is_reported_by_device_and_layer",
        backend(state=layers_forgotten),
    ),
    "devices: all weights on the first": (
        "test_memory_is_reported_by_device_and_layer",
        backend(load=all_on_the_first),
    ),
    "devices: only the first gives back": (
        "test_memory_is_reported_by_device_and_layer",
        backend(release=released_on_the_first),
    ),
    "devices: nodes are said to run on the other": (
        "test_nodes_run_on_the_device_of_their_layer",
        executable(placements=on_the_other),
    ),
    "devices: one that is not opened is replaced": (
        "test_a_device_that_is_not_opened_is_refused",
        backend(require_placement=any_name_will_do),
    ),
    "devices: the first is blamed": ("test_a_failure_names_device_and_layer", backend(guard=first_is_blamed)),
    "devices: a plan has all on the first": ("test_a_dry_run_plans_each_device", backend(load=dry_on_the_first)),
    "devices: all arrays on the first": (
        "test_arrays_are_on_the_devices_that_hold_them",
        all_arrays_on_the_first,
    ),
    "devices: 7 bytes are free on each": (
        "test_free_memory_is_that_of_each_device",
        backend(memory_free=lambda self: {d.name: 7 for d in self.devices}),
    ),
}


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return of_patches(DEVICES, over_fakes, MultiDeviceConformance)
