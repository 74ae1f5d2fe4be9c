"""A fingerprint changes with every byte of the weights and with each setting that changes KV; files are read once."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from akashic_daemon.engine.fingerprint import fingerprint, weights_digest
from akashic_daemon.errors import BadModelFile


def test_the_same_bytes_are_the_same_weights_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"weights" * 1000)
    assert weights_digest(tmp_path / "a.gguf", None) == weights_digest(tmp_path / "b.gguf", None)


def test_one_changed_byte_is_another_model_although_size_and_time_stay(tmp_path: Path) -> None:
    file, memory = tmp_path / "a.gguf", tmp_path / "cache" / "weights.json"
    file.write_bytes(b"weights" * 1000)
    before = weights_digest(file, memory)
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_bytes(b"weights" * 999 + b"weighty")
    os.utime(file, ns=times)
    assert weights_digest(file, memory) != before, "its change time tells"


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    file, memory = tmp_path / "a.gguf", tmp_path / "cache" / "weights.json"
    file.write_bytes(b"weights")
    weights_digest(file, memory)
    known = json.loads(memory.read_text())
    memory.write_text(json.dumps(dict.fromkeys(known, "0123")))
    expected = "weights1:" + hashlib.blake2b(b"0123", digest_size=16).hexdigest()
    assert weights_digest(file, memory) == expected, "the file was read, not the memory"


@pytest.mark.parametrize("content", ["", "no json", "[1]"])
def test_a_broken_memory_only_costs_another_reading(tmp_path: Path, content: str) -> None:
    file, memory = tmp_path / "a.gguf", tmp_path / "weights.json"
    file.write_bytes(b"weights")
    memory.write_text(content)
    assert weights_digest(file, memory) == weights_digest(file, None)


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-{n:05}-of-00002.gguf" for n in (1, 2))
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    before = weights_digest(first, None)
    second.write_bytes(b"2wo")
    assert weights_digest(first, None) != before


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="gone"):
        weights_digest(tmp_path / "gone.gguf", None)


@pytest.mark.parametrize("change", [{"kv_type": "f32"}, {"build": "2"}, {"flash_attention": True}])
def test_each_setting_takes_part(change: dict[str, str | bool]) -> None:
    settings: dict[str, str | bool] = {"kv_type": "f16", "build": "1", "flash_attention": False}
    assert fingerprint("weights1:0", settings) != fingerprint("weights1:0", {**settings, **change})
    assert fingerprint("weights1:0", settings) != fingerprint("weights1:1", settings)
