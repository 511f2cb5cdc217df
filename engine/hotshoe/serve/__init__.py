"""A server for the models of this machine, in the dialects of OpenAI, Anthropic, Ollama and Jina: `hotshoe serve`.

A front process speaks HTTP. Each model is computed in a process of its own: if a native library ends that process, only
the requests to that model fail, and the next one loads it again. Needs the extra ``hotshoe[serve]``.
"""
