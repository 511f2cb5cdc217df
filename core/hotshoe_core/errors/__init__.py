"""Every error hotshoe raises on purpose, in one tree.

    HotshoeError
    ├── ShapeError              (ValueError)   shapes that do not fit an op
    ├── DTypeError              (TypeError)    element types that do not fit an op
    ├── GraphError                             a graph that cannot be built, compiled or fed as asked
    ├── CacheFullError                         no room for more tokens in the key/value cache
    ├── ClosedError                            a context, model or backend used after close()
    │   └── ForkedProcessError                 a backend used in a process that was forked after it was opened
    ├── InsufficientMemoryError (MemoryError)  an allocation failed; carries the memory breakdown
    ├── BackendError                           a backend could not do what was asked
    │   ├── UnsupportedOpError                 no lowering and no decomposition for an op
    │   ├── NativeError                        a native library reported a failure
    │   └── DeviceLostError                    a device went away: a driver's reset, a server that ended
    ├── PluginError                            a plugin breaks the contract
    ├── DeviceNotFoundError                    no device of that name; carries the verdicts
    ├── OptionError             (ValueError)   an option of load_all or of a command is not what it should be
    ├── PlacementError          (ValueError)   layers cannot lie where an option says, or an op would leave its device
    ├── ModelError                             a model could not be loaded
    │   ├── ModelFileError                     a file or folder is not what it should be; names field and byte
    │   ├── UnknownArchitectureError           no model implementation for the file's architecture
    │   ├── WeightsError                       tensors missing, left over, or of the wrong shape
    │   └── ModelDefinitionError (TypeError)   a model's class is not written as one must be
    ├── TokenizerError                         a vocabulary that cannot be turned into a tokenizer
    ├── InputTypeError          (TypeError)    what is no text, no list of texts, no token id or no flag
    ├── InputTooLongError       (ValueError)   more tokens than the context holds
    ├── SamplingError           (ValueError)   sampling parameters or logits that no token can be chosen with
    │   └── GrammarError                       a grammar that cannot be used, or a token it does not allow
    ├── ChatTemplateError       (ValueError)   a chat template that is missing, broken, or refuses a conversation
    ├── TraceError              (ValueError)   a trace that cannot be written, read or compared
    ├── MissingPackageError     (ImportError)  an optional package is not installed
    └── ConversionError                        a checkpoint or file that cannot be converted or quantized

A message says what was asked, what was found, what was expected; ``hint`` is the next step and is
printed on a line of its own. Both are printable, whatever the names in them hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hotshoe_core.errors.text import legible

if TYPE_CHECKING:
    from hotshoe_core.contract.memory import BackendMemory

__all__ = [
    "BackendError",
    "CacheFullError",
    "ChatTemplateError",
    "ClosedError",
    "ConversionError",
    "DTypeError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "ForkedProcessError",
    "GrammarError",
    "GraphError",
    "HotshoeError",
    "InputTooLongError",
    "InputTypeError",
    "InsufficientMemoryError",
    "MissingPackageError",
    "ModelDefinitionError",
    "ModelError",
    "ModelFileError",
    "NativeError",
    "OptionError",
    "PlacementError",
    "PluginError",
    "SamplingError",
    "ShapeError",
    "TokenizerError",
    "TraceError",
    "UnknownArchitectureError",
    "UnsupportedOpError",
    "WeightsError",
    "did_you_mean",
]


class HotshoeError(Exception):
    """Base of all errors raised on purpose; ``hint`` names the next step, if there is one.

    Whatever names a message holds, of files, tensors or devices: no control character of theirs is in it.
    operands: of an op that was refused, its tensors; an error that was pickled has none.
    """

    operands: tuple[Any, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = legible(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else legible(hint)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # from another process, and copied: without __init__ of its class, which may want other arguments
        state = {name: value for name, value in self.__dict__.items() if name != "operands"}
        return _restored, (type(self), self.message, state)


class ShapeError(HotshoeError, ValueError):
    """Shapes that do not fit an op. Raised where the op is written, not when it runs."""


class DTypeError(HotshoeError, TypeError):
    """Element types that do not fit an op."""


class GraphError(HotshoeError):
    """A graph that cannot be built, compiled or fed as asked."""


class CacheFullError(HotshoeError):
    """No room for more tokens in the key/value cache."""


class ClosedError(HotshoeError):
    """A context, model or backend was used after ``close()``."""


class ForkedProcessError(ClosedError):
    """A backend, or a context of it, was used in a process that was forked after the backend had been opened.

    Its threads and its connection to a GPU's driver stayed in the parent: using it would hang or crash.
    """


class InsufficientMemoryError(HotshoeError, MemoryError):
    """An allocation failed. ``memory`` is the breakdown, the failed amount marked as such."""

    def __init__(self, message: str, *, memory: BackendMemory, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.memory = memory

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.memory}"


class BackendError(HotshoeError):
    """A backend could not do what was asked."""


class UnsupportedOpError(BackendError):
    """The backend has no lowering for an op, and the op has no decomposition it could run."""


class NativeError(BackendError):
    """A native library reported a failure."""


class DeviceLostError(BackendError):
    """A device went away: its driver was reset, it was pulled out, or the server that lends it ended."""


class PluginError(HotshoeError):
    """A plugin breaks the contract."""


class DeviceNotFoundError(HotshoeError):
    """No such device. ``verdicts`` says what became of each candidate."""

    def __init__(self, message: str, *, verdicts: Iterable[Any] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.verdicts = tuple(verdicts)


class OptionError(HotshoeError, ValueError):
    """An option of ``load_all``, or the variable that does the same, or one of a command, is not what it should be."""


class PlacementError(HotshoeError, ValueError):
    """Layers cannot lie where an option says; or, where that was forbidden, an op would leave its layer's device.

    op, layer, device: of such an op, its name, its layer (-1: before the first) and the device it would run on.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        layer: int | None = None,
        device: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.op = op
        self.layer = layer
        self.device = device


class ModelError(HotshoeError):
    """A model could not be loaded."""


class ModelFileError(ModelError):
    """A file or folder is not what it should be. ``path``, ``field`` and ``offset`` (bytes) say where."""

    def __init__(
        self,
        message: str,
        *,
        path: object = None,
        field: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        where = [] if path is None else [str(path)]
        if field is not None:
            where.append(field)
        if offset is not None:
            where.append(f"byte {offset}")
        super().__init__(f"{', '.join(where)}: {message}" if where else message, hint=hint)
        self.path = path
        self.field = field
        self.offset = offset


class UnknownArchitectureError(ModelError):
    """No model implementation is registered for the file's architecture."""


class WeightsError(ModelError):
    """Tensors missing, left over, or of the wrong shape."""


class ModelDefinitionError(ModelError, TypeError):
    """A model's class is not written as one must be: its author's mistake, not that of a file or a user."""


class TokenizerError(HotshoeError):
    """A vocabulary that cannot be turned into a tokenizer."""


class InputTypeError(HotshoeError, TypeError):
    """What is no text, no list of texts, no token id or no flag, where one is expected."""


class InputTooLongError(HotshoeError, ValueError):
    """More tokens than the context holds."""


class SamplingError(HotshoeError, ValueError):
    """Sampling parameters that make no sense, or logits that no token can be chosen from."""


class GrammarError(SamplingError):
    """A grammar that cannot be used, or a token that it does not allow."""


class ChatTemplateError(HotshoeError, ValueError):
    """A chat template is missing or broken, or it refuses a conversation."""


class TraceError(HotshoeError, ValueError):
    """A trace cannot be written, read or compared."""


class MissingPackageError(HotshoeError, ImportError):
    """An optional package is not installed; the hint is the command that installs it."""


class ConversionError(HotshoeError):
    """A checkpoint or file that cannot be converted or quantized as asked, or not be written."""


def _restored(cls: type[HotshoeError], message: str, state: dict[str, Any]) -> HotshoeError:
    error: HotshoeError = Exception.__new__(cls, message)  # cls.__new__ is MemoryError's, which CPython then refuses
    HotshoeError.__init__(error, message)
    error.__dict__.update(state)
    return error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name as ``"did you mean 'x'?"``, else the list of known names (for a hint)."""
    import difflib  # 2 ms, which only a mistake has to pay

    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none is known"
