from tests.support.fixtures import minilm_folder, minilm_gguf
from tests.zoo.conftest import new_environment

__all__ = ["minilm_folder", "minilm_gguf", "new_environment"]
