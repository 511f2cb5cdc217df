"""Response templates of the formats in which models write reasoning and calls, chosen by the model's chat template.

A file may carry a template of its own: ``tokenizer.response_template``. The formats are those that published chat
templates write for earlier answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from hotshoe.chat.response import ResponseTemplate
from hotshoe_core.errors import ChatTemplateError

__all__ = ["FORMATS", "Format", "response_template"]

_KEY = "tokenizer.response_template"
_ANCHORS = (
    *("<|im_start|>assistant\n", "<|assistant|>", "<|start_of_role|>assistant<|end_of_role|>", "<|CHATBOT_TOKEN|>"),
    *("[/INST]", "[/TOOL_RESULTS]", "<｜Assistant｜>", "<|turn>model\n", "<tool_response|>", "<start_of_turn>model\n"),
    *("]~b]ai\n", "<assistant>", "assistant<|im_middle|>", "<|start|>assistant", "<|begin|>assistant", "<|Bot|>"),
    *("<|start_header_id|>assistant<|end_header_id|>\n\n", "<seed:bos>assistant\n", "<role>ASSISTANT</role>"),
    *('<|open|>message role="assistant"<|sep|>', "<|begin_assistant|>", "<SPECIAL_11>Assistant\n", "assistant:"),
    *("<|hy_Assistant|>", "<｜hy_Assistant｜>", "<｜hy_Assistant:opensource｜>"),
)
"""What published chat templates write before an answer."""
_ENDS = (
    r"<\|im_end\|>|<\|endoftext\|>|<\|end_of_text\|>|<\|eot_id\|>|<\|eom_id\|>|</s>|<\|end\|>|\[e~\[|<seed:eos>"
    r"|<｜end▁of▁sentence｜>|<｜hy_eos(?::\w+)?｜>|<\|END_OF_TURN_TOKEN\|>|<SPECIAL_12>|<\|role_end\|>|</assistant>"
)
"""What ends an answer. A server stops before it; a text that was written elsewhere may have it."""
_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_LISTED = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}


_GAP = r"(?:(?<!\s)\s+)?"
"""White space before a mark. A search that begins with ``\\s*`` takes quadratic time in white space; this is linear."""


class Format(NamedTuple):
    """A format, and the texts by which a chat template that writes it is known: all of them are in it."""

    name: str
    marks: tuple[str, ...]
    calls: dict[str, Any] | None
    """The field of calls; None if the format has none."""
    think: tuple[str, str] = (r"<think>", r"</think>")
    """The patterns around the reasoning, without white space."""
    marks_between: str = r"\A\s*</think>"
    """A pattern of what is left out of the content: marks of the format that have no other meaning."""

    def template(self) -> dict[str, Any]:
        """The response template."""
        opening, closing = (rf"{_GAP}(?:{pattern})\s*" for pattern in self.think)
        fields: dict[str, Any] = {
            "reasoning_content": {"open_pattern": opening, "close_pattern": closing, "repeats": True, "join": "\n"}
        }
        if self.calls is not None:
            patterns = {name: self.calls[name] for name in ("open_pattern", "close_pattern")}
            gaps = {n: _GAP + p.removeprefix(r"\s*") for n, p in patterns.items() if p.startswith(r"\s*")}
            fields["tool_calls"] = self.calls | gaps
        ends = rf"{_GAP}(?:{self.marks_between}|{_ENDS})\s*"
        fields["content"] = {"close_pattern": ends, "repeats": True, "join": "\n"}
        return {"defaults": {"role": "assistant"}, "start_anchor": list(_ANCHORS), "fields": fields}


def _tags(opening: str, closing: str, tag: str) -> dict[str, Any]:
    """Calls whose arguments are tags."""
    return {
        "open_pattern": opening, "close_pattern": closing, "repeats": True, "content": "xml-inline",
        "content_args": {"tag_pattern": tag}, "transform": _CALL,
    }  # fmt: skip


def _json(opening: str, closing: str, transform: Any = _CALL, **args: Any) -> dict[str, Any]:
    """Calls whose arguments are JSON."""
    return {
        "open_pattern": opening, "close_pattern": closing, "repeats": True, "content": "json",
        "content_args": args, "transform": transform,
    }  # fmt: skip


def _list(opening: str, closing: str, content: str = "json", transform: Any = _LISTED) -> dict[str, Any]:
    """A list of calls."""
    return {
        "open_pattern": opening, "close_pattern": closing, "repeats": True, "content": content,
        "transform": transform, "transform_each": True,
    }  # fmt: skip


_INVOKED = r'<parameter name="(?P<key>[^"]+)"[^>]*>(?P<value>.*?)</parameter>'
_HERMES = {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.arguments}"}}
_LLAMA = {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.parameters}"}}

FORMATS = (
    Format(
        "harmony",
        ("<|channel|>", "<|message|>"),
        _json(
            rf"(?:<\|start\|>assistant\s*|{_GAP})(?:<\|channel\|>\w+\s*)?to=functions\.(?P<name>[\w.-]+)"
            r"\s*(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?\s*\w*\s*<\|message\|>",
            r"<\|call\|>|<\|end\|>",
        ),
        (r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>", r"<\|end\|>"),
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)\s*(?:<\|constrain\|>\w+)?<\|message\|>"
        r"|<\|return\|>",
    ),
    Format(
        "gemma4",
        ("<|tool_call>call:",),
        _json(
            r"<\|tool_call>call:(?P<name>[\w.-]+)",
            r"<tool_call\|>",
            unquoted_keys=True,
            string_delims=[['<|"|>', '<|"|>']],
        ),
        (r"<\|channel>thought\n?", r"<channel\|>"),
        r"<turn\|>|<\|tool_response>",
    ),
    Format(
        "kimi_k3",
        ("<|open|>", "<|sep|>"),
        _tags(
            r'(?:<\|open\|>tools<\|sep\|>)?<\|open\|>call tool="(?P<name>[^"]+)"[^<]*<\|sep\|>',
            r"<\|close\|>call<\|sep\|>",
            r'<\|open\|>argument key="(?P<key>[^"]+)"[^<]*<\|sep\|>(?P<value>.*?)<\|close\|>argument<\|sep\|>',
        ),
        (r"<\|open\|>think<\|sep\|>", r"<\|close\|>think<\|sep\|>"),
        r"<\|(?:open|close)\|>response<\|sep\|>|<\|close\|>(?:tools|message)<\|sep\|>|<\|end_of_msg\|>",
    ),
    Format(
        "kimi_k2",
        ("<|tool_call_argument_begin|>",),
        _json(
            rf"(?:<\|tool_calls_section_begin\|>\s*|{_GAP})<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+?)(?::\d+)?"
            r"\s*<\|tool_call_argument_begin\|>",
            r"<\|tool_call_end\|>",
        ),
        marks_between=r"\A\s*</think>|<\|tool_calls_section_end\|>",
    ),
    Format(
        "solar",
        ("<|tool_call:begin|>",),
        _json(
            r"(?:<\|tool_calls\|>)?<\|tool_call:begin\|>[^<]*<\|tool_call:name\|>(?P<name>[^<]+)<\|tool_call:args\|>",
            r"<\|tool_call:end\|>",
        ),
        (r"<\|think\|>", r"<\|end\|>"),
        r"<\|content\|>|<\|calls\|>|<\|begin\|>assistant",
    ),
    Format(
        "dsml",
        ("｜DSML｜",),
        _tags(
            r'\s*(?:<｜DSML｜(?:function|tool)_calls>\s*)?<｜DSML｜invoke name="(?P<name>[^"]+)">',
            r"</｜DSML｜invoke>",
            r'<｜DSML｜parameter name="(?P<key>[^"]+)"[^>]*>(?P<value>.*?)</｜DSML｜parameter>',
        ),
        marks_between=r"\A\s*</think>|</｜DSML｜(?:function|tool)_calls>",
    ),
    Format(
        "deepseek",
        ("<｜tool▁call▁begin｜>",),
        _json(
            rf"(?:<｜tool▁calls▁begin｜>\s*|{_GAP})<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[^\n<]+)"
            r"(?:<｜tool▁sep｜>|\n```json\n)",
            r"(?:\n```)?<｜tool▁call▁end｜>",
        ),
        marks_between=r"\A\s*</think>|<｜tool▁calls▁end｜>",
    ),
    Format(
        "minimax",
        ("<minimax:tool_call>",),
        _tags(
            r'\s*(?:<minimax:tool_call>\s*)?<invoke name="(?P<name>[^"]+)">',
            r"</invoke>",
            _INVOKED,
        ),
        marks_between=r"\A\s*</think>|</minimax:tool_call>",
    ),
    Format(
        "muse",
        ("<atem:function_calls>",),
        _tags(
            rf"(?:<\|start\|>assistant(?: to=[^<]+<\|message\|>)?\s*| to=[^<]+<\|message\|>\s*|{_GAP})"
            r"(?:<atem:function_calls>\s*)?"
            r'<atem:invoke name="(?P<name>[^"]+)">',
            r"</atem:invoke>",
            r'<atem:parameter name="(?P<key>[^"]+)"[^>]*>(?P<value>.*?)</atem:parameter>',
        ),
        (r"(?:<\|start\|>assistant)? to=self<\|message\|>", r"<\|eom\|>"),
        r"(?:<\|start\|>assistant)?(?: to=user)?<\|message\|>|</atem:function_calls>|<\|eom\|>|<\|eot\|>",
    ),
    Format(
        "minicpm5",
        ("<param name=",),
        _tags(
            r'\s*<function name="(?P<name>[^"]+)">',
            r"</function>",
            r'<param name="(?P<key>[^"]+)">(?P<value>.*?)</param>',
        ),
    ),
    Format("minimax_m3", ("]<]minimax[>[",), None, (r"<mm:think>", r"</mm:think>"), r"\A\s*</mm:think>"),
    Format(
        "hy3",
        ("<tool_sep",),
        _tags(
            r"\s*(?:<tool_calls(?::\w+)?>\s*)?<tool_call(?::\w+)?>(?P<name>[^<]+)<tool_sep(?::\w+)?>",
            r"</tool_call(?::\w+)?>",
            r"<arg_key(?::\w+)?>(?P<key>.*?)</arg_key(?::\w+)?>\s*"
            r"<arg_value(?::\w+)?>(?P<value>.*?)</arg_value(?::\w+)?>",
        ),
        (r"<think(?::\w+)?>", r"</think(?::\w+)?>"),
        r"\A\s*</think(?::\w+)?>|</tool_calls(?::\w+)?>",
    ),
    Format(
        "glm",
        ("<arg_key>",),
        _tags(
            r"\s*<tool_call>(?P<name>[^\s<]+)\s*",
            r"</tool_call>",
            r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
        ),
    ),
    Format(
        "xml",
        ("<function=", "<parameter="),
        _tags(
            r"\s*(?:<(?:seed:)?tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
            r"</function>",
            r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
        ),
        (r"<(?:seed:)?think>", r"</(?:seed:)?think>"),
        r"\A\s*</(?:seed:)?think>|</(?:seed:)?tool_call>",
    ),
    Format("functionary", ("<function=", "</function>"), _json(r"\s*<function=(?P<name>[^>\n]+)>", r"</function>")),
    Format(
        "mistral_args",
        ("[TOOL_CALLS]", "[ARGS]"),
        _json(r"\[TOOL_CALLS\](?P<name>[^\[{]+)(?:\[CALL_ID\]\w+)?\[ARGS\]", r"(?=\[TOOL_CALLS\])|</s>"),
        (r"\[THINK\]", r"\[/THINK\]"),
    ),
    Format(
        "mistral_list",
        ("[TOOL_CALLS]",),
        _list(r"\[TOOL_CALLS\]\s*(?=\[)", r"</s>"),
        (r"\[THINK\]", r"\[/THINK\]"),
    ),
    Format(
        "cohere",
        ("<|START_ACTION|>",),
        _list(
            r"<\|START_ACTION\|>",
            r"<\|END_ACTION\|>",
            transform={"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        ),
        (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
        r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>",
    ),
    Format(
        "pythonic",
        ("<|tool_call_start|>",),
        _list(r"\s*<\|tool_call_start\|>", r"<\|tool_call_end\|>", "python-call-list"),
    ),
    Format(
        "olmo3",
        ("<function_calls>",),
        _list(r"\s*<function_calls>", r"</function_calls>", "python-call-list"),
    ),
    Format("nemotron_v2", ("<TOOLCALL>",), _list(r"\s*<TOOLCALL>", r"</TOOLCALL>")),
    Format(
        "listed",
        ("<tool_calls>[",),
        _list(r"\s*<tool_calls>(?=\[)", r"</tool_calls>"),
        (r"<think>|\AHere are my reasoning steps:", r"</think>|\[BEGIN FINAL RESPONSE\]"),
    ),
    Format(
        "hermes",
        ("<tool_call>",),
        _json(r"\s*<tool_call>", r"</tool_call>", _HERMES),
    ),
    Format(
        "llama3",
        ('"parameters"', "<|eot_id|>"),
        _json(r"\A\s*(?:<\|python_tag\|>)?\s*(?=\{\s*\"(?:type|name)\")", r"<\|e(?:om|ot)_id\|>", _LLAMA),
    ),
    Format("thinking", ("<think>",), None),
)
"""In the order in which they are tried: more special ones first."""


def response_template(metadata: Mapping[str, Any], chat_template: str) -> ResponseTemplate | None:
    """The response template of a file, or that of the format that its chat template writes; None if it is unknown.

    Raises ChatTemplateError if the file's own is not valid.
    """
    stated = metadata.get(_KEY)
    if isinstance(stated, str):
        try:
            spec = json.loads(stated)
        except ValueError as error:
            raise ChatTemplateError(f"{_KEY} is not JSON: {error}") from None
        return ResponseTemplate.from_json(spec)
    for known in FORMATS:
        if all(mark in chat_template for mark in known.marks):
            return ResponseTemplate.from_json(known.template())
    return None
