"""Every error hotshoe raises on purpose, in one tree.

    HotshoeError
    ├── ShapeError              (ValueError)   shapes do not fit an op
    ├── DTypeError              (TypeError)    element types do not fit an op
    ├── GraphError                             a graph cannot be built, compiled or fed
    ├── CacheFullError                         the key/value cache has no space for more tokens
    ├── ClosedError                            a context, model or backend was used after close()
    │   └── ForkedProcessError                 a backend was used in a process forked after it was opened
    ├── InsufficientMemoryError (MemoryError)  an allocation failed; carries the memory report
    ├── BackendError                           a backend could not do what was asked
    │   ├── UnsupportedOpError                 an op has neither a lowering nor a decomposition
    │   ├── NativeError                        a native library reported a failure
    │   └── DeviceLostError                    a device went away: its driver was reset, or its server ended
    ├── PluginError                            a plugin breaks the contract
    ├── DeviceNotFoundError                    there is no device of that name; carries the verdicts
    ├── OptionError             (ValueError)   an option of load_all or of a command is invalid
    ├── PlacementError          (ValueError)   layers do not fit on the given devices, or an op would leave its device
    ├── ModelError                             a model could not be loaded
    │   ├── ModelFileError                     a file or folder is invalid; names the field and the byte
    │   ├── ModelNotFoundError                 neither a file nor a model of this machine has that name
    │   ├── UnknownArchitectureError           no model implementation for the file's architecture
    │   ├── WeightsError                       tensors are missing, unexpected, or of the wrong shape
    │   └── ModelDefinitionError (TypeError)   the class of a model is not written correctly
    ├── TokenizerError                         a vocabulary cannot be turned into a tokenizer
    ├── InputTypeError          (TypeError)    an argument is not a text, a list of texts, token ids or a bool
    ├── InputEmptyError         (ValueError)   a text or sequence has no tokens
    ├── InputTooLongError       (ValueError)   more tokens than the context can hold
    ├── SamplingError           (ValueError)   invalid sampling parameters, or logits that no token can be chosen from
    │   └── GrammarError                       an invalid grammar, or a token that it does not allow
    ├── ImageError              (ValueError)   a picture cannot be read, or the model cannot use it
    ├── AudioError              (ValueError)   a sound cannot be read, or the model cannot use it
    ├── ChatTemplateError       (ValueError)   a chat template is missing or invalid, or it rejects a conversation
    ├── TraceError              (ValueError)   a trace cannot be written, read or compared
    ├── MissingPackageError     (ImportError)  an optional package is not installed
    ├── DownloadError                          a model could not be downloaded; what was there is unchanged
    └── ConversionError                        a checkpoint or file cannot be converted or quantized

A message says what was asked, what was found and what was expected. ``hint`` is the next step; it is printed on a line
of its own. Both contain printable characters only, even if a name in them does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hotshoe_core.errors.text import legible

if TYPE_CHECKING:
    from hotshoe_core.contract.memory import BackendMemory

__all__ = [
    "AudioError",
    "BackendError",
    "CacheFullError",
    "ChatTemplateError",
    "ClosedError",
    "ConversionError",
    "DTypeError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "DownloadError",
    "ForkedProcessError",
    "GrammarError",
    "GraphError",
    "HotshoeError",
    "ImageError",
    "InputEmptyError",
    "InputTooLongError",
    "InputTypeError",
    "InsufficientMemoryError",
    "MissingPackageError",
    "ModelDefinitionError",
    "ModelError",
    "ModelFileError",
    "ModelNotFoundError",
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
    "similar",
]


class HotshoeError(Exception):
    """Base of all errors that hotshoe raises on purpose.

    Control characters in the names of files, tensors or devices are escaped in ``message`` and ``hint``.
    """

    operands: tuple[Any, ...] = ()
    """The tensors of an op that was refused. They are lost when the error is pickled."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = legible(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else legible(hint)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # for copies and other processes: without the class's __init__, which may have other arguments
        state = {name: value for name, value in self.__dict__.items() if name != "operands"}
        return _restored, (type(self), self.message, state)


class ShapeError(HotshoeError, ValueError):
    """Shapes do not fit an op. Raised where the op is written, not when it runs."""


class DTypeError(HotshoeError, TypeError):
    """Element types do not fit an op."""


class GraphError(HotshoeError):
    """A graph cannot be built, compiled or fed."""


class CacheFullError(HotshoeError):
    """The key/value cache has no space for more tokens."""


class ClosedError(HotshoeError):
    """A context, model or backend was used after ``close()``."""


class ForkedProcessError(ClosedError):
    """A backend, or a context of it, was used in a process that was forked after the backend was opened.

    Its threads and its connection to a GPU's driver exist only in the parent: using it would hang or crash.
    """


class InsufficientMemoryError(HotshoeError, MemoryError):
    """An allocation failed. ``memory`` is the memory report, in which the failed amount is marked."""

    def __init__(self, message: str, *, memory: BackendMemory, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.memory = memory

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.memory}"


class BackendError(HotshoeError):
    """A backend could not do what was asked."""


class UnsupportedOpError(BackendError):
    """The backend has no lowering for an op, and the op has no decomposition."""


class NativeError(BackendError):
    """A native library reported a failure."""


class DeviceLostError(BackendError):
    """A device went away: its driver was reset, it was unplugged, or the server that provides it ended."""


class PluginError(HotshoeError):
    """A plugin breaks the contract."""


class DeviceNotFoundError(HotshoeError):
    """There is no such device. ``verdicts`` gives the result for each candidate."""

    def __init__(self, message: str, *, verdicts: Iterable[Any] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.verdicts = tuple(verdicts)


class OptionError(HotshoeError, ValueError):
    """An option of ``load_all`` or ``load_model``, an environment variable, or a command's option is invalid."""


class PlacementError(HotshoeError, ValueError):
    """Layers do not fit on the devices that an option gives, or an op would leave its layer's device and must not.

    ``op``, ``layer`` and ``device`` describe such an op: its name, its layer (-1: before the first one) and the device
    that it would run on.
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
    """A file or folder is invalid. ``path``, ``field`` and ``offset`` (bytes) say where."""

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


class ModelNotFoundError(ModelError):
    """Neither a file nor a model of this machine has that name."""


class UnknownArchitectureError(ModelError):
    """No model implementation is registered for the file's architecture."""


class WeightsError(ModelError):
    """Tensors are missing, unexpected, or of the wrong shape."""


class ModelDefinitionError(ModelError, TypeError):
    """The class of a model is not written correctly: a mistake of its author, not of a file or a user."""


class TokenizerError(HotshoeError):
    """A vocabulary cannot be turned into a tokenizer."""


class InputTypeError(HotshoeError, TypeError):
    """An argument has the wrong type: expected a text, a list of texts, token ids or a bool."""


class InputEmptyError(HotshoeError, ValueError):
    """A text or sequence has no tokens, so there is nothing to compute."""


class InputTooLongError(HotshoeError, ValueError):
    """There are more tokens than the context can hold."""


class SamplingError(HotshoeError, ValueError):
    """Sampling parameters are invalid, or no token can be chosen from the logits."""


class GrammarError(SamplingError):
    """A grammar is invalid, or it does not allow a token."""


class ImageError(HotshoeError, ValueError):
    """A picture cannot be read, or the model cannot use it."""


class AudioError(HotshoeError, ValueError):
    """A sound cannot be read, or the model cannot use it."""


class ChatTemplateError(HotshoeError, ValueError):
    """A chat template is missing or invalid, or it rejects a conversation."""


class TraceError(HotshoeError, ValueError):
    """A trace cannot be written, read or compared."""


class MissingPackageError(HotshoeError, ImportError):
    """An optional package is not installed; the hint is the command that installs it."""


class DownloadError(HotshoeError):
    """A model could not be downloaded. Models that were there are unchanged."""


class ConversionError(HotshoeError):
    """A checkpoint or file cannot be converted, quantized or written."""


def _restored(cls: type[HotshoeError], message: str, state: dict[str, Any]) -> HotshoeError:
    error: HotshoeError = Exception.__new__(cls, message)  # CPython refuses cls.__new__ if it is MemoryError's
    HotshoeError.__init__(error, message)
    error.__dict__.update(state)
    return error


def similar(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to an unknown one, or None."""
    import difflib  # takes 2 ms, so only after a mistake

    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: ``"did you mean 'x'?"``, or the known names if none is similar."""
    names = sorted(known)
    near = similar(name, names)
    if near:
        return f"did you mean {near!r}?"
    return f"use one of: {', '.join(names)}" if names else "none is known"
