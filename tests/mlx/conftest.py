from tests.support.fixtures import data, minilm_folder, minilm_gguf, minilm_reference

__all__ = ["data", "minilm_folder", "minilm_gguf", "minilm_reference"]
