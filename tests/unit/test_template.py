"""Chat templates: what they render, who owns which text, and what they may not do."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from akashic_daemon.errors import TemplateError
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.trajectory.template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = "{% if messages[0]['role'] != 'system' %}<s>be kind</s>{% endif %}" + CHATML
LATE_THINK = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TRIMMED_END = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last %};{% endif %}{% endfor %}"
TEMPLATES = {"chatml": CHATML, "default_system": DEFAULT_SYSTEM, "late_think": LATE_THINK, "trimmed_end": TRIMMED_END}

messages_strategy = st.lists(
    st.builds(Message, st.sampled_from([Role.USER, Role.ASSISTANT]), st.text("ab \n</think>", max_size=12)),
    min_size=1,
    max_size=6,
)


def chat(*texts: str) -> list[Message]:
    return [Message(Role.USER if i % 2 == 0 else Role.ASSISTANT, t) for i, t in enumerate(texts)]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
@given(messages=messages_strategy, generation=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_segments_put_together_are_the_plain_render(source: str, messages: list[Message], generation: bool) -> None:
    made = template(source)
    rendered = made.segments(messages, add_generation_prompt=generation)
    assert rendered.text == template(source).render(messages, add_generation_prompt=generation)
    owned = [i for s in rendered.segments for i in s.messages]
    assert owned == list(range(len(messages)))


def test_each_message_of_chatml_owns_exactly_its_own_text() -> None:
    rendered = template(CHATML).segments(chat("one", "two"))
    assert [s.text for s in rendered.segments] == [
        "<|im_start|>user\none<|im_end|>\n",
        "<|im_start|>assistant\ntwo<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]
    assert [list(s.messages) for s in rendered.segments] == [[0], [1], []]


def test_segments_of_a_shorter_history_begin_those_of_a_longer_one() -> None:
    made, messages = template(DEFAULT_SYSTEM), chat("a", "b", "c", "d", "e")
    longest = made.segments(messages, add_generation_prompt=False).segments
    for count in range(1, len(messages)):
        shorter = made.segments(messages[:count], add_generation_prompt=False).segments
        assert shorter == longest[:count]


def test_a_template_that_strips_older_think_blocks_keeps_message_borders() -> None:
    messages = chat("hi", "<think>hm</think>yes", "and now?")
    rendered = template(LATE_THINK).segments(messages)
    assert [s.text for s in rendered.segments] == ["[user]hi\n", "[assistant]yes\n", "[user]and now?\n", "[assistant]"]


def test_a_cached_segment_is_not_used_where_the_text_became_another() -> None:
    made = template(LATE_THINK)
    messages = chat("hi", "<think>hm</think>yes", "and now?")
    assert (
        made.segments(messages[:2], add_generation_prompt=False).text == "[user]hi\n[assistant]<think>hm</think>yes\n"
    )
    assert made.segments(messages, add_generation_prompt=False).text == "[user]hi\n[assistant]yes\n[user]and now?\n"


def test_a_template_that_refuses_a_role_is_an_error_with_its_own_words() -> None:
    made = template("{% if messages[0]['role'] == 'assistant' %}{{ raise_exception('the user begins') }}{% endif %}")
    with pytest.raises(TemplateError, match="the user begins"):
        made.render([Message(Role.ASSISTANT, "x")])


ALTERNATES = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""As Gemma 2's."""
SILENT = "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endif %}{% endfor %}"


@pytest.mark.parametrize("source", [ALTERNATES, SILENT])
def test_system_messages_stand_in_the_users_first_one_where_a_template_has_no_place_for_them(source: str) -> None:
    made = template(source)
    system = [Message(Role.SYSTEM, "Be brief."), Message(Role.SYSTEM, "Be kind.")]
    rendered = made.segments([*system, *chat("hi", "yes", "so?")])
    assert rendered.text.startswith("<user>Be brief.\n\nBe kind.\n\nhi</><assistant>yes</><user>so?</>")
    assert [(s.first_message, s.end_message) for s in rendered.segments][:2] == [(0, 3), (3, 4)]
    assert any("no system role" in note for note in rendered.notes)
    assert made.segments(chat("hi")).notes == ()
    longer = made.segments([*system, *chat("hi", "yes", "so?", "yes", "and?")])
    assert longer.text.startswith(rendered.text.removesuffix("<assistant>"))


def test_a_later_system_message_stays_where_it_is_as_the_users() -> None:
    said = [*chat("hi", "yes"), Message(Role.SYSTEM, "Hurry."), *chat("so?")]
    rendered = template(SILENT).segments(said)
    assert rendered.text.startswith("<user>hi</><assistant>yes</><user>Hurry.</><user>so?</>")
    assert [s.first_message for s in rendered.segments] == [0, 1, 2, 3]
    with pytest.raises(TemplateError, match="alternate"):
        template(ALTERNATES).segments(said)


@pytest.mark.parametrize("source", ["{{ messages[0].content + 1 }}", "{{ messages[99]['role']['x'] }}", "{{ 1 // 0 }}"])
def test_a_template_that_fails_raises_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render(chat("x"))


def test_a_template_that_does_not_compile_is_refused_when_the_model_loads() -> None:
    with pytest.raises(TemplateError, match="doesn't compile"):
        template("{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_the_sandbox_refuses_escapes(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render(chat("x"))


def test_tool_calls_stand_as_text_with_a_note_when_the_template_has_none() -> None:
    call = ToolCall("c1", "ls", '{"path": "/"}')
    messages = [Message(Role.USER, "go"), Message(Role.ASSISTANT, "", tool_calls=(call,))]
    rendered = template(CHATML).segments(messages)
    assert '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>' in rendered.text
    assert any("tool" in note for note in rendered.notes)


def test_tools_without_a_place_in_the_template_stand_in_the_system_message_and_are_noted() -> None:
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
    rendered = template(CHATML).segments(chat("x"), tools=[tool])
    assert any("system message" in note for note in rendered.notes)
    assert rendered.text.startswith("<|im_start|>system\n# Tools\n")
    assert '{"name": "ls", "parameters": {"type": "object"}}' in rendered.text
    assert [list(s.messages) for s in rendered.segments] == [[0], []]
    own = template(CHATML).segments([Message(Role.SYSTEM, "Be kind."), *chat("x")], tools=[tool])
    assert own.text.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n")
