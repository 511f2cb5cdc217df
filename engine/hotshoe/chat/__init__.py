"""Turn conversations into prompts, with the chat template of the model's file, or with a named one.

    template = from_metadata(file.metadata, tokenizer)
    prompt = template.render([{"role": "user", "content": "Hello"}])
    ids = tokenizer.encode(prompt, add_special=False)      # the template writes the special tokens itself

A template is untrusted code. It runs in Jinja2's sandbox, on plain data, in a child process with limits of time and
memory.
"""

from hotshoe.chat._template import ChatTemplate
from hotshoe.chat.fallback import NAMES, from_metadata, from_source, named

__all__ = ["NAMES", "ChatTemplate", "from_metadata", "from_source", "named"]
