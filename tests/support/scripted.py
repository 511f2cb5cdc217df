"""A model that writes what it is told, so that a server is tested with calls of tools that a large model would make.

It is a Llama file. The embedding of each token is a unit vector, the blocks add nothing, and the output matrix says
which token follows which: the last token of the prompt decides what is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from hotshoe.tokenizers._decoding import byte_letters

__all__ = ["CHAT_TEMPLATE", "make_scripted"]

END = "<|im_end|>"
FIRST, AFTER_TOOL = "<|assistant|>", "<|Bot|>"
"""What the prompt ends with: the second if a tool has answered. Response templates know both."""
CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}"
    "{{ '<|Bot|>' if loop.index0 and messages[loop.index0 - 1].role == 'tool' else '<|assistant|>' }}"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif -%}"
    "{{ m.content }}"
    "{%- for call in m.tool_calls or [] -%}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{%- endfor -%}<|im_end|>\n"
    "{%- else -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|Bot|>' if messages[-1].role == 'tool' else '<|assistant|>' }}{%- endif -%}"
)


def make_scripted(path: Path, first: Sequence[str], after_tool: Sequence[str], n_ctx: int = 8192) -> Path:
    """Write the file. first, after_tool: the pieces of both answers.

    Each piece is a token of two characters or more, and occurs once.
    """
    pieces = [*first, *after_tool]
    assert len(set(pieces)) == len(pieces)
    assert min(map(len, pieces)) > 1
    special = ["<|im_start|>", END, FIRST, AFTER_TOOL]
    encoded = byte_letters()
    tokens = [*encoded, encoded[0] + encoded[1], *special, *pieces]
    types = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * len(special)
    types += [gguf.TokenType.USER_DEFINED] * len(pieces)
    n, number = len(tokens), {token: i for i, token in enumerate(tokens)}
    follows = np.zeros((n, n), np.float32)
    for start, answer in ((FIRST, first), (AFTER_TOOL, after_tool)):
        chain = [start, *answer, END]
        for a, b in itertools.pairwise(chain):
            follows[number[b], number[a]] = 4.0  # so likely that sampling finds nothing else
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_rope_dimension_count(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{encoded[0]} {encoded[1]}"])
    writer.add_eos_token_id(number[END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    zeros = {"attn_q": (32, n), "attn_k": (32, n), "attn_v": (32, n), "attn_output": (n, 32)}
    zeros |= {"ffn_gate": (32, n), "ffn_up": (32, n), "ffn_down": (n, 32)}
    writer.add_tensor("token_embd.weight", np.eye(n, dtype=np.float32))
    writer.add_tensor("output.weight", follows)
    writer.add_tensor("output_norm.weight", np.ones(n, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(n, np.float32))
    for name, shape in zeros.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
