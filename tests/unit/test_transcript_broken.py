"""Damaged, odd and large input: every loss is reported, nothing but a file without a message is fatal."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.errors import TranscriptError
from akashic_daemon.transcript import FORMATS, Imported, Problem, detect_format, read_transcript, source
from akashic_daemon.transcript.item import Record

USER = {"type": "user", "uuid": "u", "sessionId": "s", "message": {"role": "user", "content": "hi"}}
LINE = json.dumps(USER).encode()


def saved(tmp_path: Path, raw: bytes, name: str = "t") -> Path:
    path = tmp_path / name
    path.write_bytes(raw)
    return path


def split(path: Path, **options: Any) -> tuple[list[str], list[tuple[int | None, str]]]:
    items = list(read_transcript(path, **options))
    texts = [item.message.content for item in items if isinstance(item, Imported)]
    return texts, [(item.line, item.reason) for item in items if isinstance(item, Problem)]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "white space"),
        (b" \n\r\n", "white space"),
        (b"\x1f\x8b\x08\x00abc", "gzip"),
        (b"GGUF\x03\x00", "GGUF"),
        (b"\xff\xfeh\x00i\x00", "UTF-16"),
        (b"hello\x00world", "68 65 6c 6c 6f"),
        (bytes(range(128, 256)) * 4, "80 81"),
    ],
)
def test_binary_or_empty_input_is_refused_saying_what_was_seen(tmp_path: Path, raw: bytes, said: str) -> None:
    path = saved(tmp_path, raw)
    with pytest.raises(TranscriptError) as caught:
        detect_format(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message
    with pytest.raises(TranscriptError):
        list(read_transcript(path))


def test_a_missing_file_a_folder_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(TranscriptError, match="reading transcript"):
            detect_format(path)
    with pytest.raises(TranscriptError, match="unknown format 'word'"):
        read_transcript(saved(tmp_path, LINE), format="word")


def test_byte_order_mark_crlf_and_empty_lines_mean_nothing_and_lines_are_still_counted(tmp_path: Path) -> None:
    path = saved(tmp_path, b"\xef\xbb\xbf" + LINE + b"\r\n\r\n" + LINE + b"\r\n{broken\r\n" + LINE)
    items = list(read_transcript(path))
    assert [item.line for item in items] == [1, 3, 4, 5]
    assert isinstance(items[2], Problem)


@pytest.mark.parametrize("broken", [b"{", b"not json", b"[" * 100_000, b"9" * 5000, b'"bare"', b"null", b"17"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_line_is_a_problem_wherever_it_stands(tmp_path: Path, broken: bytes, place: int) -> None:
    lines = [LINE, LINE]
    lines.insert(place, broken)
    texts, problems = split(saved(tmp_path, b"\n".join(lines)))
    assert texts == ["hi", "hi"]
    assert [line for line, _ in problems] == [place + 1]


def test_more_broken_lines_than_whole_ones_are_still_problems(tmp_path: Path) -> None:
    texts, problems = split(saved(tmp_path, LINE + b"\n{x\n{y\n{z\n"))
    assert texts == ["hi"]
    assert [line for line, _ in problems] == [2, 3, 4]


def test_bytes_that_are_not_utf8_are_replaced_and_reported(tmp_path: Path) -> None:
    texts, problems = split(saved(tmp_path, LINE.replace(b"hi", b"h\xe9") + b"\n" + LINE))
    assert texts == ["h\ufffd", "hi"]
    assert problems[0][0] == 1
    assert "UTF-8" in problems[0][1]


def test_lone_surrogates_are_replaced_everywhere_in_a_message(tmp_path: Path) -> None:
    raw = {
        **USER,
        "type": "assistant",
        "agentId": "\udc00",
        "message": {
            "content": [
                {"type": "text", "text": "\ud83d\ude00 \ud83d"},
                {"type": "thinking", "thinking": "\udfff"},
                {"type": "tool_use", "id": "\ud800", "name": "\ud800", "input": {"\ud800": 1}},
            ]
        },
    }
    (item,) = list(read_transcript(saved(tmp_path, json.dumps(raw).encode() + b"\n" + b"\n")))
    assert isinstance(item, Imported)
    assert item.message.content == "\U0001f600 \ufffd"
    json.dumps([item.message.to_json(), item.conversation], ensure_ascii=False).encode("utf-8")


def test_a_file_without_one_message_fails_after_its_problems(tmp_path: Path) -> None:
    items = read_transcript(saved(tmp_path, b'{"a": 1}\n{"b": 2}\n'), format="claude-code")
    seen: list[Any] = []
    with pytest.raises(TranscriptError, match="line 1: unknown line type None"):
        seen.extend(items)
    assert [item.line for item in seen if isinstance(item, Problem)] == [1, 2]


def test_noise_alone_is_a_file_without_a_message(tmp_path: Path) -> None:
    path = saved(tmp_path, b'{"type":"progress","uuid":"p"}\n{"type":"progress","uuid":"q"}\n')
    with pytest.raises(TranscriptError, match="holds no message"):
        list(read_transcript(path))


def test_a_document_that_breaks_off_gives_its_whole_messages_and_a_problem(tmp_path: Path) -> None:
    text = json.dumps({"messages": [{"role": "user", "content": f"m{i}"} for i in range(4)]}, indent=1)
    path = saved(tmp_path, text[: text.index("m3")].encode())
    assert detect_format(path) == "openai"
    texts, problems = split(path)
    assert texts == ["m0", "m1", "m2"]
    assert len(problems) == 1
    assert "broken JSON" in problems[0][1]


def test_a_document_of_which_nothing_is_whole_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, b'{\n "messages": [\n  {"role": "user",\n "content": "cut o')
    with pytest.raises(TranscriptError, match="nothing before that is whole"):
        list(read_transcript(path, format="openai"))


def test_a_bad_message_in_a_document_is_named_by_its_place(tmp_path: Path) -> None:
    raw = json.dumps([{"role": "user", "content": "a"}, {"role": "robot"}, 5, {"role": "user", "content": "b"}])
    texts, problems = split(saved(tmp_path, raw.encode()))
    assert texts == ["a", "b"]
    assert [reason.partition(":")[0] for _, reason in problems] == ["element 1", "element 2"]


def test_json_that_is_no_transcript_is_text(tmp_path: Path) -> None:
    for raw in (b'{"name": "package", "version": 1}', b"[1, 2]", b"[\n 1\n]", b"{ not json", b'"x"'):
        assert detect_format(saved(tmp_path, raw)) == "text"


def test_what_only_begins_like_json_is_read_as_text_and_said_so(tmp_path: Path) -> None:
    texts, problems = split(saved(tmp_path, b'{"role": "us'))
    assert texts == ['{"role": "us']
    assert "plain text" in problems[0][1]
    for asked, raw in (("text", b'{"role": "us'), (None, b"[INFO] a log")):
        assert not [i for i in read_transcript(saved(tmp_path, raw), format=asked) if isinstance(i, Problem)]


def test_documents_over_the_limit_are_refused_and_lines_over_it_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 4000)
    long = json.dumps({**USER, "pad": "x" * 3000}).encode()
    texts, problems = split(saved(tmp_path, b"\n".join([LINE, long, LINE, long])))
    assert texts == ["hi", "hi"]
    assert [line for line, _ in problems] == [2, 4]
    with pytest.raises(TranscriptError, match="as one document"):
        list(read_transcript(saved(tmp_path, b"text " * 1000)))


def test_a_first_line_longer_than_the_head_is_recognised(tmp_path: Path) -> None:
    long = json.dumps({**USER, "message": {"role": "user", "content": "y" * (2 << 20)}}).encode()
    path = saved(tmp_path, long + b"\n" + LINE + b"\n")
    assert detect_format(path) == "claude-code"
    assert [(i.line, len(i.message.content)) for i in read_transcript(path) if isinstance(i, Imported)] == [
        (1, 2 << 20),
        (2, 2),
    ]
    document = json.dumps({"messages": [{"role": "user", "content": "y" * (2 << 20)}]}).encode()
    path = saved(tmp_path, document)
    assert detect_format(path) == "openai"
    assert [i.conversation for i in read_transcript(path) if isinstance(i, Imported)] == ["main"]


def test_large_jsonl_streams_in_bounded_memory_with_progress(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    progress_line = json.dumps({"type": "progress", "uuid": "p", "data": "z" * 5000}) + "\n"
    with path.open("w") as file:
        for index in range(4000):
            body = {"role": "user", "content": f"{index} " + "w" * 2000}
            file.write(json.dumps({**USER, "uuid": str(index), "message": body}) + "\n" + progress_line)
    size_bytes = path.stat().st_size
    reports: list[int] = []
    tracemalloc.start()
    try:
        count = sum(isinstance(item, Imported) for item in read_transcript(path, on_progress=reports.append))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 4000
    assert size_bytes > 28_000_000
    assert peak_bytes < 12_000_000
    steps = [later - earlier for earlier, later in zip([0, *reports], reports, strict=False)]
    assert min(steps) >= 256 << 10
    assert size_bytes - (256 << 10) < reports[-1] <= size_bytes


def test_progress_is_reported_for_documents_too(tmp_path: Path) -> None:
    path = saved(tmp_path, json.dumps([{"role": "user", "content": "x" * 1_000_000}]).encode())
    reports: list[int] = []
    list(read_transcript(path, on_progress=reports.append))
    assert len(reports) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "role", "content", "message", "payload", "text", "id", "uuid", "timestamp", "tool_calls"),
                    *("function", "arguments", "steps", "source", "kind", "action", "observation", "args", "messages"),
                    *("history", "trajectory", "results", "llm_message", "tool_call", "traj", "agentId", "summary"),
                    *("event_time_s", "output", "response", "choices", "name", "call_id", "tool_call_metadata"),
                ]
            ),
            inner
            | st.sampled_from(
                [
                    *("user", "assistant", "tool", "agent", "response_item", "message", "function_call", "tool_use"),
                    *("function_call_output", "ActionEvent", "ObservationEvent", "MessageEvent", "run", "reasoning"),
                ]
            ),
            max_size=6,
        )
    ),
    max_leaves=25,
)


@given(value=JSON, alone=st.booleans())
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "text"])
def test_any_json_value_is_read_or_refused_as_a_record(name: str, value: Any, alone: bool) -> None:
    from akashic_daemon.transcript.readers import READERS

    reader = READERS[name]()
    items: list[Any] = []
    with contextlib.suppress(TranscriptError):
        items.extend(reader.feed(Record(0, None, value, alone=alone)))
    items.extend(reader.finish())
    for item in items:
        if isinstance(item, Imported):
            assert type(item.message).from_json(item.message.to_json()) == item.message
            assert isinstance(item.message.content, str)
