"""Chat templates: rendered as transformers renders them, in a sandbox that holds, with errors that say why."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from hotshoe.chat import NAMES, ChatTemplate, from_metadata, named
from hotshoe_core.errors import ChatTemplateError
from tests.support.vocabularies import recorded

# Short templates with what those of real models do: trimming, namespaces, slices, tests, macros, tojson, loops.
STYLES = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']}}
{%- if not loop.last or add_generation_prompt %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama3": """{{- bos_token }}
{%- if tools is not defined %}{% set tools = none %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools is not none %}
    {{- 'Environment: ipython\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- '\n\n' }}
    {%- endfor %}
{%- endif %}
{{- 'Today: ' + strftime_now('%d %b %Y')[:0] + '\n\n' + system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- elif message.role in ['tool', 'ipython'] %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}""",
    "qwen3": """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- '# Tools\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.found = true %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}{{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}{%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}""",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}""",
    "mistral": """{%- set user_messages = messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'user' %}
        {%- if tools and (message == user_messages[-1]) %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != 'return' %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ', ' }}{%- endif %}
                {%- endfor %}
                {{- '}}' }}{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' }}{%- endif %}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {{- '[TOOL_CALLS] ' + (message.tool_calls | map(attribute='function') | list | tojson) + eos_token }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}
{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}
{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}
{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% else %}{% continue %}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "macros": """{%- macro show(m, depth=0) -%}
    {%- for key, value in m.items() | sort %}{{ '  ' * depth }}{{ key }}: {{ value if value is string else '' }}
{% if value is mapping %}{{ show(value, depth + 1) }}{% endif %}{% endfor %}
{%- endmacro -%}
{%- set head %}<{{ messages | length }}>{% endset -%}
{{ head }}{% for m in messages %}{{ show(m) }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}
{%- for d in documents or [] %}[{{ d.title | upper }}]{% endfor %}
{%- filter replace('a', 'b') %}{{ messages[0].content }}{% endfilter %}""",
}
U, A, S = ({"role": r} for r in ("user", "assistant", "system"))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What the sky does in <a place> & when – später",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [U | {"content": "Hello"}],
    "unicode": [U | {"content": " 🦙 “quotes” <b>&amp;</b> {{ not a template }} \n\n"}],
    "empty": [S | {"content": ""}, U | {"content": ""}],
    "turns": [
        *(S | {"content": "Be brief. "}, U | {"content": "Hi"}, A | {"content": "<think>hm</think>\n\nHo "}),
        U | {"content": "a\nb"},
    ],
    "calls": [
        *(U | {"content": "Weather?"}, A | {"content": "", "tool_calls": [CALL]}),
        *({"role": "tool", "content": "12 °C"}, {"role": "tool", "content": '{"x": [1, 2]}'}),
    ],
}


def outcome(render: Any, *args: Any, **kwargs: Any) -> str | None:
    """The text, or None if the template raises."""
    try:
        text: str = render(*args, **kwargs)
    except Exception:
        return None
    return text


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("style", STYLES)
def test_templates_render_as_transformers_renders_them(style: str, conversation: str, prompt: bool) -> None:
    oracle = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    messages = CONVERSATIONS[conversation]
    template = ChatTemplate(STYLES[style], "<s>", "</s>")
    variants: list[dict[str, Any]] = [{}]
    if "tools" in template.variables:
        variants.append({"tools": TOOLS})
    if "documents" in template.variables:
        variants.append({"documents": [{"title": "é", "text": "x"}]})
    if "enable_thinking" in template.variables:
        variants += [{"enable_thinking": False}, {"enable_thinking": True}]
    for kwargs in variants:
        theirs = outcome(
            lambda given=kwargs: oracle(
                *([messages],),
                chat_template=STYLES[style],
                add_generation_prompt=prompt,
                bos_token="<s>",
                eos_token="</s>",
                **given,
            )[0][0]
        )
        if any("tool_calls" in m for m in messages) and "tool_calls" not in STYLES[style]:
            with pytest.raises(ChatTemplateError, match="tool_calls"):
                template.render(messages, add_generation_prompt=prompt, **kwargs)
        elif theirs is None:
            with pytest.raises(ChatTemplateError):
                template.render(messages, add_generation_prompt=prompt, **kwargs)
        else:
            assert template.render(messages, add_generation_prompt=prompt, **kwargs) == theirs


def test_parts_go_to_templates_that_know_them() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    gemma, chatml = (ChatTemplate(STYLES[s], "<s>") for s in ("gemma3", "chatml"))
    assert "onetwo<end_of_turn>" in gemma.render([U | {"content": parts}])
    assert "one\ntwo<|im_end|>" in chatml.render([U | {"content": parts}])
    assert "<start_of_image>" in gemma.render([U | {"content": [{"type": "image"}]}])
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]\['content'\] has a part of type 'image'"):
        chatml.render([U | {"content": [{"type": "image"}]}])


def test_the_clock_can_be_set() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 1, 2))
    assert template.render([U | {"content": ""}]) == "02 Jan 2026"
    zone = timezone(timedelta(hours=2, minutes=30), "HERE")
    exact = ChatTemplate("{{ strftime_now('%H:%M:%S.%f %z %Z') }}", now=lambda: datetime(2026, 1, 2, 3, 4, 5, 6, zone))
    assert exact.render([]) == "03:04:05.000006 +0230 HERE"


def test_absent_tokens_are_undefined() -> None:
    assert ChatTemplate("{{ bos_token }}|{{ eos_token is defined }}").render([]) == "|False"
    assert ChatTemplate("{{ unk_token }}", special_tokens={"unk_token": "?"}).render([]) == "?"


def test_constants_are_computed() -> None:
    source = "{{ 'a' | upper ~ 'b' * 2 }}{{ [1, 2] | join('-') }}{% set x | trim %} c {% endset %}{{ x }}"
    assert ChatTemplate(source).render([]) == "Abb1-2c"


def test_a_template_keeps_nothing_between_calls() -> None:
    template = ChatTemplate(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    )
    messages = [U | {"content": "x", "list": [1]}]
    assert [template.render(messages) for _ in range(2)] == ["1", "1"]


# --- refusals


@pytest.mark.parametrize("depth", [500, 5000])
def test_messages_that_are_nested_too_deeply(depth: int) -> None:
    content: Any = "x"
    for _ in range(depth):
        content = [content]
    with pytest.raises(ChatTemplateError, match="nested too deeply"):
        ChatTemplate("{{ messages }}").render([U | {"list": content}])
    content = []
    content.append(content)
    with pytest.raises(ChatTemplateError, match="contains itself"):
        ChatTemplate("{{ messages }}").render([U | {"list": content}])


def test_a_broken_template_is_named_with_its_line() -> None:
    with pytest.raises(ChatTemplateError, match=r"tokenizer\.x is not valid Jinja2: line 2: .*'{% endfor'"):
        ChatTemplate("{% for m in messages %}\n{% endfor", name="tokenizer.x")
    with pytest.raises(ChatTemplateError, match="unknown tag 'nope'"):
        ChatTemplate("{% nope %}")
    with pytest.raises(ChatTemplateError, match=r"has 2,000,000 characters; expected at most 1,048,576"):
        ChatTemplate("x" * 2_000_000)
    with pytest.raises(ChatTemplateError, match=r"special_tokens.*is object"):
        ChatTemplate("x", object())  # type: ignore[arg-type]
    with pytest.raises(ChatTemplateError, match="is bytes; expected str"):
        ChatTemplate(b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("Hello", "messages is str; expected a sequence of mappings"),
        ({"role": "user"}, "messages is dict"),
        (["Hello"], r"messages\[0\] is str; expected a mapping"),
        ([{"content": "x"}], r"messages\[0\]\['role'\] is None"),
        ([{"role": "asistant", "content": "x"}], "did you mean 'assistant'"),
        ([U | {"content": object()}], r"messages\[0\]\['content'\] is object; expected data that JSON can hold"),
        ([U | {"content": "x", "y": [{1.5: 2}]}], r"messages\[0\]\['y'\]\[0\] has the key 1.5"),
    ],
)
def test_messages_are_checked(messages: Any, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        ChatTemplate(STYLES["chatml"]).render(messages)


def test_roles_a_template_names_are_known() -> None:
    source = "{% for m in messages %}{{ 'C' if m.role == 'critic' else m.role }}{% endfor %}"
    assert ChatTemplate(source).render([{"role": "critic"}]) == "C"
    assert ChatTemplate(source, roles=["judge"]).render([{"role": "judge"}]) == "judge"


@pytest.mark.parametrize("given", [{"tools": TOOLS}, {"documents": [{}]}, {"enable_thinking": False}])
def test_an_argument_that_the_template_ignores(given: dict[str, Any]) -> None:
    with pytest.raises(ChatTemplateError, match=f"does not use '{next(iter(given))}'"):
        ChatTemplate(STYLES["chatml"]).render([U | {"content": "x"}], **given)
    with pytest.raises(ChatTemplateError, match="'bos_token' cannot be passed"):
        ChatTemplate(STYLES["chatml"]).render([U | {"content": "x"}], bos_token="x")


# --- files and fallbacks


class Vocabulary:
    """Some special tokens; everything else is one token a character."""

    bos: int | None = 0
    eos: int | None = 1

    def __init__(self, *marks: str) -> None:
        self._tokens = ["<s>", "</s>", *marks]

    def token(self, id: int) -> str:
        return self._tokens[id] if id < len(self._tokens) else chr(id)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [self._tokens.index(text)] if text in self._tokens else [100 + ord(c) for c in text]


TALK = [*(S | {"content": "Sys"}, U | {"content": "Hi"}, A | {"content": "Ho"}), U | {"content": "Bye"}]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "chatml",
            (
                "<|im_start|>system\nSys<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
                "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
            ),
        ),
        (
            "llama2",
            "<s>[INST] <<SYS>>\nSys\n<</SYS>>\n\nHi [/INST] Ho </s><s>[INST] Bye [/INST]",
        ),
        (
            "llama3",
            (
                "<s><|start_header_id|>system<|end_header_id|>\n\nSys<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
                "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHo<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            ),
        ),
        (
            "gemma",
            (
                "<s><start_of_turn>user\nSys\n\nHi<end_of_turn>\n<start_of_turn>model\nHo<end_of_turn>\n"
                "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
            ),
        ),
        ("mistral", "<s>[INST] Sys\n\nHi[/INST] Ho</s>[INST] Bye[/INST]"),
        ("zephyr", "<|system|>\nSys</s>\n<|user|>\nHi</s>\n<|assistant|>\nHo</s>\n<|user|>\nBye</s>\n<|assistant|>\n"),
        (
            "phi3",
            "<|system|>\nSys<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHo<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n",
        ),
    ],
)
def test_named_templates(name: str, expected: str) -> None:
    template = named(name, Vocabulary())
    assert template.render(TALK) == expected
    assert expected.startswith(template.render(TALK, add_generation_prompt=False))
    assert not template.takes_parts
    with pytest.raises(ChatTemplateError, match="'tools'"):
        template.render(TALK, TOOLS)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "chatml"])
def test_named_templates_refuse_what_they_have_no_place_for(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"refuses the conversation: expected .*found tool"):
        named(name, Vocabulary()).render([*TALK[:2], {"role": "tool", "content": "x"}])


@pytest.mark.parametrize("name", ["llama2", "gemma", "mistral"])
def test_templates_of_turns_name_the_message(name: str) -> None:
    with pytest.raises(ChatTemplateError, match="found user at message 2"):
        named(name, Vocabulary()).render([*TALK[:2], TALK[1]])


@pytest.mark.parametrize(
    ("marks", "name"),
    [
        (["<|im_start|>", "<|im_end|>"], "chatml"),
        (["<|start_header_id|>", "<|eot_id|>"], "llama3"),
        (["<start_of_turn>", "<end_of_turn>"], "gemma"),
        (["<|user|>", "<|assistant|>", "<|end|>"], "phi3"),
        (["[INST]", "[/INST]"], "mistral"),
    ],
)
def test_a_vocabulary_tells_its_template(marks: list[str], name: str) -> None:
    assert repr(name) in from_metadata({}, Vocabulary(*marks)).name
    with pytest.raises(ChatTemplateError, match="fits none of hotshoe's chat templates"):
        from_metadata({}, Vocabulary(*marks[:-1]))


@pytest.mark.parametrize(("vocabulary", "name"), [("qwen2", "chatml"), ("llama-bpe", "llama3"), ("llama-spm", None)])
def test_real_vocabularies_tell_their_templates(vocabulary: str, name: str | None) -> None:
    tokenizer = recorded(vocabulary)
    if name is None:
        with pytest.raises(ChatTemplateError, match="fits none of hotshoe's chat templates"):
            from_metadata({}, tokenizer)
        template = from_metadata({}, tokenizer, "llama2")
    else:
        template = from_metadata({}, tokenizer)
        assert repr(name) in template.name
    ids = tokenizer.encode(template.render([U | {"content": "Hi"}]), add_special=False)
    assert len(ids) < 16  # the marks are tokens, not spelled
    if name != "chatml":  # which begins with none
        assert ids[0] == tokenizer.bos
        assert tokenizer.bos not in ids[1:]


def test_the_templates_of_a_file() -> None:
    metadata = {"tokenizer.chat_template": "default {{ bos_token }}", "tokenizer.chat_template.tool_use": "{{ tools }}"}
    vocabulary = Vocabulary("<|im_start|>", "<|im_end|>")
    assert from_metadata(metadata, vocabulary).render([]) == "default <s>"
    assert from_metadata(metadata, vocabulary, "tool_use").name == "tokenizer.chat_template.tool_use"
    assert "'llama3'" in from_metadata(metadata, vocabulary, "llama3").name
    with pytest.raises(ChatTemplateError, match=r"(?s)the file has default, tool_use\n.*did you mean 'tool_use'"):
        from_metadata(metadata, vocabulary, "tool_uses")
    with pytest.raises(ChatTemplateError, match=r"(?s)expected one of chatml, .*did you mean 'llama3'"):
        named("llama33", vocabulary)


def test_without_any_template_the_names_are_listed() -> None:
    with pytest.raises(ChatTemplateError) as caught:
        from_metadata({}, Vocabulary())
    assert all(name in str(caught.value) for name in NAMES)
