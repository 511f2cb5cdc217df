"""Models of this machine by name: those that were pulled or created, and those of other programs, read in place.

    find("ORG/REPO:Q4_K_M")     a model of Hugging Face's cache, which `hotshoe pull` fills
    find("ollama:llama3.2:3b")  a model of Ollama's store
    find("lmstudio:ORG/REPO")   a model of LM Studio's folder
    find("mine")                a model that a client of the server created

Nothing here makes a network request, except ``download.pull``.
"""

from hotshoe.store.files import StoredModel
from hotshoe.store.names import all_models, find, located
from hotshoe.store.verify import verified

__all__ = ["StoredModel", "all_models", "find", "located", "verified"]
