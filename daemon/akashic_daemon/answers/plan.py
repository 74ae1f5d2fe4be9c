"""What a request's tools and schema mean for the loaded model: the grammar of its answer, and how calls are read from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache

from akashic_daemon.engine.base import Engine, SamplingParams
from akashic_daemon.engine.sampled_text import control_marks, marks_of
from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.toolcalls.form import AnswerForm, Thinking, answer_form
from akashic_daemon.toolcalls.matcher import grammar_of
from akashic_daemon.toolcalls.syntax import Syntax
from akashic_daemon.toolcalls.thought_marks import THINK, ThoughtMarks
from akashic_daemon.trajectory.prompt import PromptBuilder

_BANNED = -1e9


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How one request is sampled and read. marks: tokens that print nothing but belong to a wrapper of calls or thoughts."""

    sampling: SamplingParams
    form: AnswerForm | None = None
    marks: dict[int, bytes] = field(default_factory=dict)
    holds_grammar: bool = False
    thinking: Thinking = "none"
    thoughts: ThoughtMarks = THINK
    notes: tuple[str, ...] = ()


def plan_answer(engine: Engine, builder: PromptBuilder, request: GenerationInput) -> AnswerPlan:
    """Return how a request is answered. Raises BadRequest and, without grammars, Unsupported for what needs one."""
    sampling = request.sampling
    thinking = builder.thinking(request.think)
    unthought = ("the model's template knows no thinking",) if request.think and thinking == "none" else ()
    if request.continue_final and request.messages and request.messages[-1].content:
        thinking = "none"  # it has thought already
    thoughts = builder.thought_marks
    marks = {} if thinking == "none" else marks_of(engine, thoughts.texts)
    if not request.tools and request.json_schema is None and request.tool_choice in ("auto", "none"):
        return AnswerPlan(sampling, marks=marks, thinking=thinking, thoughts=thoughts, notes=unthought)
    form = _form(
        builder.syntax,
        json.dumps(request.tools),
        request.tool_choice,
        request.parallel_tool_calls,
        json.dumps(request.json_schema),
        request.strict_schema,
        thinking,
        thoughts,
    )
    notes = (*unthought, *form.notes)
    holds = engine.capabilities.grammar
    if form.grammar is not None and sampling.grammar is not None:
        raise BadRequest(
            "the request has a grammar of its own besides tools or a response_format",
            hint="leave one of them out, or send tool_choice none",
        )
    if form.grammar is not None and not holds:
        if not form.triggers:
            raise Unsupported(
                f"answering in a given form: the engine of {engine.model.name} can't hold answers to a grammar",
                hint="use the llama.cpp engine, or leave out response_format and send tool_choice auto",
            )
        notes = (*notes, "this engine can't hold tool arguments to their schemas; a call that is no JSON stays text")
    elif form.grammar is not None:
        sampling = replace(sampling, grammar=form.grammar, triggers=form.triggers)
    marks |= control_marks(engine, builder.syntax)
    banned = [ids[0] for mark in form.banned if len(ids := engine.tokenize(mark, special=True)) == 1]
    sampling = replace(sampling, logit_bias=(*sampling.logit_bias, *((token, _BANNED) for token in banned)))
    return AnswerPlan(sampling, form, marks, holds and form.grammar is not None, thinking, thoughts, notes)


@lru_cache(maxsize=32)
def _form(
    syntax: Syntax,
    tools: str,
    choice: str,
    parallel: bool,
    schema: str,
    strict: bool,
    thinking: Thinking,
    thoughts: ThoughtMarks,
) -> AnswerForm:
    """Return a form; an agent sends the same tools with each request, and their grammar costs more than anything else here."""
    form = answer_form(
        syntax,
        json.loads(tools),
        tool_choice=choice,
        parallel=parallel,
        json_schema=json.loads(schema),
        strict_schema=strict,
        thinking=thinking,
        thoughts=thoughts,
    )
    try:
        if form.grammar is not None:
            grammar_of(form.grammar)
    except ValueError as error:
        raise BadRequest(
            "making a grammar of the request's schemas: one of them contains itself without end",
            hint="let a $ref that leads back stand within properties or items",
        ) from error
    return form
