"""Which files a loaded model stands for: any that changed, came or was replaced makes it another one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from akashic_daemon.engine.model_files import files_now, have_changed

ALWAYS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
PERHAPS = ("chat_template.jinja", "generation_config.json", "model.safetensors.index.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ALWAYS:
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", ALWAYS)
def test_a_file_of_a_folder_that_is_written_anew_is_seen(folder: Path, name: str) -> None:
    files = files_now(folder)
    assert not have_changed(files)
    (folder / name).write_text('{"a": 1}')
    assert have_changed(files)


@pytest.mark.parametrize("name", PERHAPS)
def test_a_file_that_comes_to_a_folder_is_seen(folder: Path, name: str) -> None:
    files = files_now(folder)
    (folder / name).write_text("{}")
    assert have_changed(files)


def test_a_file_of_the_same_size_and_time_in_anothers_place_is_seen(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    before, files = file.stat(), files_now(folder)
    other = folder / "other"
    other.write_text("[]")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    assert have_changed(files)


def test_a_file_that_is_gone_changes_nothing(folder: Path) -> None:
    """What was loaded of it is there still."""
    files = files_now(folder)
    (folder / "tokenizer.json").unlink()
    assert not have_changed(files)


def test_a_folder_whose_weights_lack_has_no_files(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert files_now(folder) == ()


def test_a_gguf_stands_for_itself_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    files = files_now(file)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert not have_changed(files)
    file.write_bytes(b"GGUF2")
    assert have_changed(files)
