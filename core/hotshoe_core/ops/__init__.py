"""The op table: every op that a model may use, as functions over Tensors.

Most names in this package are Ops, rows of the table; calling one records a node. A recurrence is a function around its
row, because it returns two tensors (a Recurrence). ``arange``, ``full``, ``zeros`` and ``ones`` make constants.
``TABLE`` is the table itself, every Op by name.

The package exports what its op modules define without a leading underscore, so an op is named in one place only.
"""

import importlib
from typing import TYPE_CHECKING

from hotshoe_core.tensors.tensor import TABLE as TABLE

if TYPE_CHECKING:
    from hotshoe_core.ops.arrange import *
    from hotshoe_core.ops.attention import *
    from hotshoe_core.ops.convolution import *
    from hotshoe_core.ops.elementwise import *
    from hotshoe_core.ops.matrix import *
    from hotshoe_core.ops.movement import *
    from hotshoe_core.ops.recurrent import *
    from hotshoe_core.ops.reduce import *
    from hotshoe_core.ops.resampling import *
else:
    _OP_MODULES = (
        "arrange", "attention", "convolution", "elementwise", "matrix", "movement", "recurrent", "reduce", "resampling",
    )  # fmt: skip
    _exported = {}
    for _name in _OP_MODULES:
        _module = importlib.import_module(f"{__name__}.{_name}")
        # a star import at run time would also export what the module imports
        _exported |= {
            name: value
            for name, value in vars(_module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == _module.__name__
        }
    globals().update(_exported)
    __all__ = ["TABLE", *sorted(_exported)]
