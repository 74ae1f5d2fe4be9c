"""Our own look at a GGUF's header agrees with the library that writes them, and finds every cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from akashic_daemon.engine import gguf_header
from akashic_daemon.engine.gguf_header import read_header, tokenizer_digest
from akashic_daemon.errors import BadModelFile
from tiny_gguf import CHATML, SPECIAL, Shape, write_tiny_gguf


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(window=777))


def test_a_header_tells_what_the_model_is(tiny: Path) -> None:
    header = read_header(tiny)
    assert header.architecture == "llama"
    assert header.description == "llama tiny"
    assert header.trained_window_tokens == 777
    assert header.vocabulary_size == 256 + len(SPECIAL) + 1
    assert header.has_chat_template == bool(CHATML)
    assert header.size_bytes == tiny.stat().st_size
    assert header.metadata["llama.block_count"] == "2"
    assert header.parameters_count == sum(int(t.n_elements) for t in gguf.GGUFReader(tiny).tensors)


def test_block_sizes_are_those_of_the_library() -> None:
    for kind, (values, size_bytes) in gguf_header._BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)] == (values, size_bytes), kind


def test_a_file_cut_off_anywhere_is_found(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (*range(4, 400), *range(400, len(data), 997), len(data) - 1):
        cut.write_bytes(data[:size])
        with pytest.raises(BadModelFile, match="cut off") as caught:
            read_header(cut)
        assert "download it again" in str(caught.value)


def test_a_file_that_is_replaced_is_read_anew(tiny: Path) -> None:
    assert read_header(tiny).trained_window_tokens == 777
    write_tiny_gguf(tiny, shape=Shape(window=888888))
    os.utime(tiny, ns=(1, 1))
    assert read_header(tiny).trained_window_tokens == 888888


def test_a_model_in_parts_needs_every_part_whole_and_is_named_by_the_first(tiny: Path, tmp_path: Path) -> None:
    parts = [tmp_path / f"big-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for part in parts:
        part.write_bytes(tiny.read_bytes())
    header, single = read_header(parts[0]), read_header(tiny)
    assert header.size_bytes == 3 * single.size_bytes
    assert header.parameters_count == 3 * single.parameters_count
    assert header.trained_window_tokens == 777
    with pytest.raises(BadModelFile, match="part 2") as caught:
        read_header(parts[1])
    assert "first part" in str(caught.value)
    parts[2].write_bytes(tiny.read_bytes()[:-1])
    with pytest.raises(BadModelFile, match=r"big-00003-of-00003\.gguf: it is cut off"):
        read_header(parts[0])
    parts[2].unlink()
    with pytest.raises(BadModelFile, match=r"big-00003-of-00003\.gguf: there is no such file"):
        read_header(parts[0])


def _folder(path: Path) -> None:
    path.mkdir()


def _nothing(path: Path) -> None:
    del path


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _holding(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


BAD = {
    "missing": (_nothing, "no such file"),
    "folder": (_folder, "a folder"),
    "pipe": (_pipe, "no regular file"),
    "empty": (_holding(b""), "it is empty"),
    "other": (_holding(b"\x7fELF" + bytes(100)), "not a GGUF"),
    "version": (_holding(b"GGUF\x63\x00\x00\x00" + bytes(100)), "version is 99"),
    "counts": (_holding(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64), "cut off"),
    "kind": (_holding(b"GGUF\x03\0\0\0" + bytes(8) + b"\1" + bytes(15) + b"\x63\0\0\0"), "unknown type 99"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_model_is_refused_with_its_path_and_what_to_do(tmp_path: Path, case: str) -> None:
    make, said = BAD[case]
    path = tmp_path / "x.gguf"
    make(path)
    with pytest.raises(BadModelFile, match=said) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert (caught.value.http_status, caught.value.exit_code) == (400, 1)


def test_a_path_that_no_system_takes_is_refused() -> None:
    with pytest.raises(BadModelFile, match="x"):
        read_header(Path("/x\0y"))


def test_the_tokenizers_digest_changes_with_every_token_and_not_with_the_template_or_weights(
    tiny: Path, tmp_path: Path
) -> None:
    data = tiny.read_bytes()
    at = data.index(b"tokenizer.ggml.tokens")
    changes = {
        "token": (data.index(SPECIAL[-1].encode(), at), True),
        "key": (data.index(b"tokenizer.ggml.model") + len("tokenizer.ggml."), True),
        "template": (data.index(b"add_generation_prompt"), False),
        "weights": (len(data) - 3, False),
    }
    for name, (place, differs) in changes.items():
        changed = tmp_path / f"{name}.gguf"
        changed.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert (tokenizer_digest(changed) != tokenizer_digest(tiny)) == differs, name
