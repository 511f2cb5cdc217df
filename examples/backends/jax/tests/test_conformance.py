"""hotshoe's conformance kit on JAX's best device, opened as a user opens it, and on two devices of the CPU."""

from __future__ import annotations

import jax
from hotshoe_jax import JaxProvider

from hotshoe_core import Backend, BackendParams
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance
from hotshoe_loader import load_all

jax.config.update("jax_num_cpu_devices", 2)


class TestJax(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all().open("jax", params)


class TestTwoDevices(MultiDeviceConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        provider = JaxProvider()
        return provider.open([d for d in provider.devices() if d.name.startswith("jax:cpu")], params)
