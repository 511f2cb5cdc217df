from tests.support.fixtures import data, minilm_folder, minilm_gguf, minilm_reference
from tests.support.text_models import device, folder, gguf

__all__ = ["data", "device", "folder", "gguf", "minilm_folder", "minilm_gguf", "minilm_reference"]
