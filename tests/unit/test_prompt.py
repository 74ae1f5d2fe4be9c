"""Prompts: tokens with owners, sampled ids kept, and what leaves when the window is too small."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.trajectory.message import Message, Role, ToolCall, chain_all
from akashic_daemon.trajectory.prompt import Prompt, PromptBuilder
from akashic_daemon.trajectory.template import ChatTemplate
from akashic_daemon.types import ChainDigest

ENGINE = FakeEngine()
SYSTEM = Message(Role.SYSTEM, "be brief")


def tokenize(text: str) -> list[int]:
    return ENGINE.tokenize(text, special=True)


def spell(tokens: Sequence[int]) -> bytes | None:
    return b"".join(map(ENGINE.token_bytes, tokens)) if max(tokens) < 1000 else None


def builder(bos: Sequence[int] = ()) -> PromptBuilder:
    source = ENGINE.model.chat_template
    assert source is not None
    return PromptBuilder(ChatTemplate(source, bos="", eos=""), tokenize, bos=bos, spell=spell)


def history(turns: int, size: int = 40) -> list[Message]:
    out = [SYSTEM]
    for turn in range(turns):
        out.append(Message(Role.USER, f"q{turn:03}".ljust(size, ".")))
        out.append(Message(Role.ASSISTANT, f"a{turn:03}".ljust(size, ".")))
    return [*out, Message(Role.USER, "newest")]


def text_of(prompt: Prompt) -> str:
    return b"".join(ENGINE.token_bytes(t) for t in prompt.tokens).decode()


def test_every_token_has_the_message_that_owns_it() -> None:
    messages = history(2)
    prompt = builder().build(messages)
    assert len(prompt.message_at) == len(prompt.tokens)
    for index, message in enumerate(messages):
        owned = [t for t, o in zip(prompt.tokens, prompt.message_at, strict=True) if o == index]
        assert message.content.encode() in b"".join(map(ENGINE.token_bytes, owned))
    assert prompt.message_at[-1] == len(messages)


def test_a_longer_history_begins_with_the_tokens_of_the_shorter_one() -> None:
    messages = history(3)
    made = builder()
    shorter = made.build(messages[:4], add_generation_prompt=False)
    assert made.build(messages).tokens[: len(shorter.tokens)] == shorter.tokens


def test_bos_stands_first_and_once() -> None:
    made = builder(bos=[255])
    assert list(made.build([SYSTEM]).tokens).count(255) == 1
    assert made.build([SYSTEM]).tokens[0] == 255
    again = builder(bos=[257]).build([SYSTEM]).tokens
    assert list(again[:2]) != [257, 257]


def test_a_history_that_fits_is_left_whole() -> None:
    messages = history(3)
    prompt = builder().fit(messages, limit_tokens=2000, first_message=0)
    assert prompt.tokens == builder().build(messages).tokens
    assert (prompt.left_out_messages, prompt.left_out_tokens) == (0, 0)


def test_a_small_window_keeps_the_system_message_and_the_newest() -> None:
    messages = history(30)
    prompt = builder().fit(messages, limit_tokens=600, first_message=0)
    text = text_of(prompt)
    assert len(prompt.tokens) <= 600
    assert "be brief" in text
    assert "newest" in text
    assert "q000" not in text
    assert "a029" in text
    assert prompt.left_out_messages == prompt.first_message - 1
    assert prompt.left_out_tokens > 0


def test_owners_count_in_the_whole_history_after_a_cut() -> None:
    messages = history(30)
    prompt = builder().fit(messages, limit_tokens=600, first_message=0)
    owners = sorted(set(prompt.message_at))
    assert owners == [0, *range(prompt.first_message, len(messages) + 1)]


def test_the_window_moves_far_enough_that_the_next_turns_keep_their_prefix() -> None:
    messages = history(30)
    made = builder()
    first = made.fit(messages, limit_tokens=800, first_message=0)
    longer = [*messages, Message(Role.ASSISTANT, "ok"), Message(Role.USER, "go on")]
    second = made.fit(longer, limit_tokens=800, first_message=first.first_message)
    assert second.first_message == first.first_message
    shared = len(first.tokens) - len(tokenize("<|im_start|>assistant\n"))
    assert second.tokens[:shared] == first.tokens[:shared]


def test_the_window_never_begins_with_a_tool_result_without_its_call() -> None:
    messages = [SYSTEM]
    for turn in range(20):
        messages += [
            Message(Role.USER, f"q{turn}" + "." * 30),
            Message(Role.ASSISTANT, "call" + "." * 30),
            Message(Role.TOOL, "result" + "." * 60, tool_call_id="c"),
        ]
    messages.append(Message(Role.USER, "newest"))
    for limit in range(300, 900, 37):
        prompt = builder().fit(messages, limit_tokens=limit, first_message=0)
        assert messages[prompt.first_message].role is not Role.TOOL


def test_the_newest_question_stays_even_when_it_alone_is_too_long() -> None:
    messages = [*history(3), Message(Role.USER, "x" * 500)]
    prompt = builder().fit(messages, limit_tokens=100, first_message=0)
    assert "x" * 500 in text_of(prompt)


@pytest.mark.parametrize("known", [True, False])
def test_an_answer_sampled_here_keeps_the_very_tokens_it_was_sampled_as(known: bool) -> None:
    messages = [SYSTEM, Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello"), Message(Role.USER, "more")]
    chains = chain_all(messages)
    sampled = [*b"he", 300, *b"llo"]

    def recall(parent: ChainDigest | None, text: str) -> Sequence[int] | None:
        return sampled if known and parent == chains[1] and text == "hello" else None

    prompt = builder().build(messages, recall=recall)
    owned = [t for t, o in zip(prompt.tokens, prompt.message_at, strict=True) if o == 2]
    inside = sampled if known else tokenize("hello")
    assert owned == [*tokenize("<|im_start|>assistant\n"), *inside, *tokenize("<|im_end|>\n")]


@pytest.mark.parametrize("wrong", [[*b"jello"], [*b"hell"], [1000, *b"hello"]])
def test_ids_that_do_not_spell_the_answer_with_this_model_are_not_believed(wrong: list[int]) -> None:
    messages = [Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello"), Message(Role.USER, "go on")]
    made = builder()
    right = [*b"he", 300, *b"llo"]
    plain = made.build(messages).tokens
    assert made.build(messages, recall=lambda _parent, _text: right).tokens != plain
    assert made.build(messages, recall=lambda _parent, _text: wrong).tokens == plain


def test_a_history_far_over_the_window_is_known_by_its_length_alone() -> None:
    counted = builder().far_over(history(200), limit_tokens=1000)
    assert counted is not None
    assert 1000 < counted <= len(builder().build(history(200)).tokens)


@pytest.mark.parametrize("turns", [1, 10, 40])
def test_a_history_that_may_fit_is_not_refused_by_its_length(turns: int) -> None:
    whole = len(builder().build(history(turns)).tokens)
    assert builder().far_over(history(turns), limit_tokens=whole) is None


def test_tools_and_calls_far_over_the_window_are_known_by_their_length_too() -> None:
    cut: list[int] = []

    def counting(text: str) -> list[int]:
        cut.append(len(text))
        return list(text.encode())

    source = ENGINE.model.chat_template
    assert source is not None
    made = PromptBuilder(ChatTemplate(source, bos="", eos=""), counting, bos=(), spell=spell)
    tools = [{"type": "function", "function": {"name": f"f{n}", "description": "d" * 1000}} for n in range(1000)]
    calls = (ToolCall("c", "f", json.dumps({"a": "x" * 1_000_000})),)
    called = [*history(1), Message(Role.ASSISTANT, "", tool_calls=calls)]
    for messages, shown in ((history(1), tools), (called, [])):
        assert (made.far_over(messages, limit_tokens=1000, tools=shown) or 0) > 1000
        assert sum(cut) < 200_000, "it was cut to its end"
        cut.clear()


def test_ten_thousand_empty_messages_are_far_over_a_small_window() -> None:
    assert builder().far_over([Message(Role.USER, "")] * 10_000, limit_tokens=1000) is not None
