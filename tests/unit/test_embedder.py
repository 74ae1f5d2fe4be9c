"""Texts as vectors: pooling against a plain loop, and the wheel's files read as wordllama reads them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers

from akashic_daemon.errors import ModelError
from akashic_daemon.memory.embedder import pooled, shortened
from akashic_daemon.memory.static_vectors import StaticVectors, folder, load
from akashic_daemon.memory.word_tokens import WordTokens, are_words_apart

TABLE = np.random.default_rng(7).standard_normal((50, 8)).astype(np.float16)
IDS = st.lists(st.lists(st.integers(0, 49), max_size=12).map(lambda ids: np.array(ids, np.int32)), max_size=6)
TEXTS = ["hello world", "the cat sat on the mat", "", "é 漢字 \U0001f600", "x" * 5000, "\n\t "]


@pytest.fixture(scope="module")
def vectors() -> StaticVectors:
    if folder() is None:
        pytest.skip("the package wordllama is not installed")
    return load()


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    package = folder()
    if package is None:
        pytest.skip("the package wordllama is not installed")
    return Tokenizer.from_file(str(package / "tokenizers" / "l2_supercat_tokenizer_config.json"))


@given(IDS, st.booleans())
def test_pooling_is_the_weighted_mean_at_length_one(ids: list[np.ndarray], weighted: bool) -> None:
    weights = np.linspace(0.5, 2, 50, dtype=np.float32) if weighted else None
    found = pooled(TABLE, ids, weights)
    for text, vector in zip(ids, found, strict=True):
        total = np.zeros(8)
        for token in text:
            total += TABLE[token].astype(np.float64) * (1 if weights is None else weights[token])
        length = np.linalg.norm(total)
        assert np.abs(vector - (total / length if length > 0 else 0)).max() < 1e-5


@given(IDS)
def test_a_texts_vector_does_not_depend_on_its_neighbours(ids: list[np.ndarray]) -> None:
    together = pooled(TABLE, ids)
    for text, vector in zip(ids, together, strict=True):
        assert (pooled(TABLE, [text])[0] == vector).all()


def test_fewer_dimensions_are_the_first_ones_at_length_one() -> None:
    whole = pooled(TABLE, [np.array([1, 2, 3], np.int32), np.array([], np.int32)])
    short = shortened(whole, 3)
    assert np.allclose(short[0], whole[0, :3] / np.linalg.norm(whole[0, :3]))
    assert (short[1] == 0).all()


def test_the_files_give_the_same_vectors_as_the_package_itself(vectors: StaticVectors) -> None:
    code = (
        "import json, sys; from wordllama import WordLlama\n"
        "model = WordLlama.load(cache_dir=sys.argv[1], disable_download=True)\n"
        "print(json.dumps(model.embed(json.loads(sys.argv[2]), norm=True).tolist()))"
    )
    texts = [text for text in TEXTS if text]
    said = subprocess.run(
        [sys.executable, "-c", code, str(folder()), json.dumps(texts)], capture_output=True, text=True, check=True
    )
    theirs = np.array(json.loads(said.stdout.splitlines()[-1]), np.float32)
    ours = vectors.pool(vectors.token_ids(texts))
    assert np.abs(ours - theirs).max() < 1e-6


def test_similar_texts_are_nearer_than_others(vectors: StaticVectors) -> None:
    texts = ["the cat sat on the mat", "a kitten is sitting on a rug", "quarterly tax return forms"]
    cat, kitten, tax = vectors.pool(vectors.token_ids(texts))
    assert cat @ kitten > cat @ tax + 0.1


def test_each_text_has_its_own_ids_and_an_empty_one_none(vectors: StaticVectors) -> None:
    ids = vectors.token_ids(TEXTS)
    assert [len(i) == 0 for i in ids] == [text == "" for text in TEXTS]
    assert all((i >= 0).all() and (i < vectors.vocabulary_size).all() for i in ids)
    assert all((vectors.token_ids([text])[0] == i).all() for text, i in zip(TEXTS, ids, strict=True))
    assert vectors.pool(ids).shape == (len(TEXTS), vectors.dimensions)


SPACED = st.lists(
    st.sampled_from(
        ["a", "the", " ", "  ", "\n", "\t", "\u2581", "<s>", "</s>", "<", "é", "漢字", "\U0001f600", "can't", "x1_y"]
    )
    | st.text(max_size=3),
    max_size=12,
).map("".join)


@given(st.lists(SPACED, max_size=4))
@example(["", " ", "a ", " a", "a  b   c"])
def test_words_that_are_looked_up_have_the_tokens_that_whole_texts_have(
    vectors: StaticVectors, plain: Tokenizer, texts: list[str]
) -> None:
    theirs = [encoded.ids for encoded in plain.encode_batch_fast(texts, add_special_tokens=False)]
    assert [ids.tolist() for ids in vectors.token_ids(texts)] == theirs


def test_the_packages_tokenizer_cuts_no_token_over_words(plain: Tokenizer) -> None:
    assert are_words_apart(plain)


def test_a_tokenizer_whose_tokens_reach_over_words_is_asked_for_whole_texts() -> None:
    model = models.BPE(
        {"\u2581": 0, "a": 1, "a\u2581": 2, "\u2581a\u2581": 3}, [("a", "\u2581"), ("\u2581", "a\u2581")]
    )
    reaching = Tokenizer(model)
    reaching.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    assert not are_words_apart(reaching)
    assert [ids.tolist() for ids in WordTokens(reaching).ids(["a a", ""])] == [[3, 1], []]


def test_words_are_forgotten_when_they_take_too_much(
    vectors: StaticVectors, plain: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = WordTokens(plain)
    monkeypatch.setattr("akashic_daemon.memory.word_tokens._MOST_BYTES", 1000)
    texts = [f"word{number} again" for number in range(50)]
    assert [words.ids([text])[0].tolist() for text in texts] == [ids.tolist() for ids in vectors.token_ids(texts)]
    assert len(words._known) < 20


@pytest.mark.parametrize("break_it", ["weights", "tokenizers", "cut", "header", "shape"])
def test_files_that_are_missing_or_broken_are_named(tmp_path: Path, break_it: str) -> None:
    package = folder()
    if package is None:
        pytest.skip("the package wordllama is not installed")
    for name in ("weights", "tokenizers"):
        if name != break_it:
            shutil.copytree(package / name, tmp_path / name)
    weights = tmp_path / "weights" / "l2_supercat_256.safetensors"
    if break_it == "cut":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif break_it == "header":
        weights.write_bytes(b"\xff" * 8 + b"{}")
    elif break_it == "shape":
        weights.write_bytes(weights.read_bytes().replace(b"[32000,256]", b"[32000,257]", 1))
    with pytest.raises(ModelError, match="loading the embedder wordllama"):
        load(tmp_path)
