"""hotshoe: write a model once in Python, run it on whatever compute backend is pip-installed.

    import hotshoe

    hotshoe.load_all()                                    # optional: lists the backends, and why each is (not) used
    with hotshoe.load_model("all-MiniLM-L6-v2.gguf") as model:
        vectors = model.embed(["a text", "another"])      # float32 (2, 384)

Names are imported on first use, so that ``import hotshoe`` takes almost no time.
"""

import importlib

TYPE_CHECKING = False  # type checkers treat it like typing.TYPE_CHECKING; importing typing would take most of the time
if TYPE_CHECKING:
    from hotshoe.load_options import LoadOptions
    from hotshoe.loading import load_all, load_model, load_tokenizer, plan_model
    from hotshoe.quantize import quantize_model
    from hotshoe.sampling import SamplingParams
    from hotshoe.tasks import Task
    from hotshoe_core import errors
    from hotshoe_core.errors import HotshoeError

__version__ = "0.1.0"
__all__ = [
    "HotshoeError",
    "LoadOptions",
    "SamplingParams",
    "Task",
    "__version__",
    "errors",
    "load_all",
    "load_model",
    "load_tokenizer",
    "plan_model",
    "quantize_model",
]

_HOME = {
    "HotshoeError": ("hotshoe_core.errors", "HotshoeError"),
    "LoadOptions": ("hotshoe.load_options", "LoadOptions"),
    "SamplingParams": ("hotshoe.sampling", "SamplingParams"),
    "Task": ("hotshoe.tasks", "Task"),
    "errors": ("hotshoe_core.errors", None),
    "load_all": ("hotshoe_loader", "load_all"),
    "load_model": ("hotshoe.loading", "load_model"),
    "load_tokenizer": ("hotshoe.loading", "load_tokenizer"),
    "plan_model": ("hotshoe.loading", "plan_model"),
    "quantize_model": ("hotshoe.quantize", "quantize_model"),
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        module, attribute = _HOME[name]
        value = importlib.import_module(module)
        return value if attribute is None else getattr(value, attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
