"""Conversations to prompts: the model's own chat template, or a named one where its file has none.

    template = from_metadata(file.metadata, tokenizer)
    prompt = template.render([{"role": "user", "content": "Hello"}])
    ids = tokenizer.encode(prompt, add_special=False)      # the template writes the special tokens itself

A template is somebody else's code: it runs in Jinja2's sandbox, on plain data, in a process of its own that is ended
when it takes too long or too much memory.
"""

from hotshoe.chat._template import ChatTemplate
from hotshoe.chat.fallback import NAMES, from_metadata, from_source, named

__all__ = ["NAMES", "ChatTemplate", "from_metadata", "from_source", "named"]
