"""Read GGUF files: mapped and checked; token arrays are decoded only when they are used.

    with GGUFFile("model.gguf") as file:
        file.metadata.arch.require("block_count", int)
        file.metadata["tokenizer.ggml.tokens"][:3]
        file.tensors["token_embd.weight"].shape
        file.data("token_embd.weight")

An invalid file raises ModelFileError, which names the file, the field and the byte.
Writing, quantizing and the tables of tensor names are in the ``gguf`` package.
"""

from hotshoe_core.gguf._array import GGUFArray
from hotshoe_core.gguf._cursor import decode_strings
from hotshoe_core.gguf._file import GGUFFile
from hotshoe_core.gguf._format import ValueType
from hotshoe_core.gguf._metadata import Metadata, MetadataKeyError
from hotshoe_core.gguf._shard import TensorInfo

__all__ = ["GGUFArray", "GGUFFile", "Metadata", "MetadataKeyError", "TensorInfo", "ValueType", "decode_strings"]
