"""What a model makes of chunks of real conversations: answers accepted and rejected, tokens, and what is found of the rest.

    PYTHONPATH=tests python tests/bench/memory_compactor.py FILE [--conversations 1] [--chunks N] [--url URL --model NAME]

FILE has LoCoMo's shape. Without --url the model is the loaded one, as with memory.compactor=model: SmolLM2 where its
package is installed, in a home of its own. Each chunk is reconciled as in a daemon: facts are asked for first, then lines.
Evidence is held to what the same room keeps without a model. Counts are final on any machine; seconds are not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from akashic_daemon.config import load
from akashic_daemon.memory import chunks, ingest, lines, reconcile, static_vectors
from akashic_daemon.memory.asking import RemoteModel
from akashic_daemon.memory.compactors import Asked, ModelCompactor, Reply
from akashic_daemon.memory.evaluation import after_compaction, corpus
from akashic_daemon.memory.evaluation.compaction import KEPT_SHARE, answer_words, idf_of, shares_of
from akashic_daemon.memory.extract import Spoken
from akashic_daemon.memory.memory import Memory
from akashic_daemon.memory.reconcile import Outcome, Task
from akashic_daemon.paths import find_paths
from akashic_daemon.service import Service
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock

RAW, WORTH, MODEL = "raw", "without a model", "with the model"
PATIENCE_S = 3600.0
"""No answer is given up on here: how fast this machine is right now isn't measured."""


@dataclass(slots=True)
class Recorded:
    """A model whose answers are kept."""

    model: Asked
    replies: list[tuple[str, Reply]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name."""
        return self.model.name

    async def ask(self, system: str, question: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
        """Ask it."""
        reply = await self.model.ask(system, question, schema, max_tokens)
        self.replies.append(("facts" if "facts" in schema["properties"] else "lines", reply))
        return reply


@dataclass(slots=True)
class Counts:
    """What became of the chunks."""

    accepted: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    overlap: list[float] = field(default_factory=list)


async def compacted(compactor: ModelCompactor, model: Recorded, task: Task, counts: Counts) -> dict[int, str]:
    """Let the compactor do a chunk; return what is left of its turns."""
    model.replies.clear()
    started_s = time.monotonic()
    outcome = await compactor.compact(task)
    counts.seconds += time.monotonic() - started_s
    counts.asked.update(kind for kind, _ in model.replies)
    counts.tokens += outcome.tokens
    without = lines.left(task, [])
    if not isinstance(outcome, Outcome):
        for reason in outcome.reason.split("; "):
            counts.reasons[reason] += 1
        print(f"c{task.chunk.id}: rejected: {outcome.reason}", flush=True)
        return without
    kind = model.replies[-1][0] if model.replies else "no model: dense text"
    counts.accepted[kind] += 1
    print(f"c{task.chunk.id}: {kind}, {outcome.tokens} tokens, rho {outcome.rho:.2f}", flush=True)
    if kind != "lines":
        return _of_facts(outcome, task)
    numbers = sorted(set(json.loads(model.replies[-1][1].text)["keep"]) & set(range(1, len(lines.free(task)) + 1)))
    best = {c.text for c in sorted(lines.free(task), key=lambda c: -c.worth)[: len(numbers)]}
    counts.overlap.append(statistics.fmean(lines.free(task)[number - 1].text in best for number in numbers))
    print(f"    {len(numbers)} of {len(lines.free(task))} lines: {numbers}", flush=True)
    return lines.left(task, numbers)


def _of_facts(outcome: Outcome, task: Task) -> dict[int, str]:
    """Return the facts that cite each turn."""
    numbers = {turn.id: number for number, turn in enumerate(task.turns)}
    found: dict[int, list[str]] = {}
    for record in outcome.records:
        for turn_id in record.turn_ids:
            found.setdefault(numbers[turn_id], []).append(record.text)
    for turn_id, text in task.pinned:
        found.setdefault(numbers[turn_id], []).append(text)
    return {number: " ".join(texts) for number, texts in found.items()}


async def measure(
    model: Recorded,
    conversations: Sequence[corpus.Conversation],
    memory: Memory,
    *,
    most: int | None,
    limit_s: float,
) -> dict[str, Any]:
    """Compact the conversations' chunks until the time is over, and ask the questions about those that were."""
    until_s = time.monotonic() + limit_s
    compactor, counts = ModelCompactor(model, limit_s=PATIENCE_S), Counts()
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in (RAW, WORTH, MODEL)}
    found = {name: after_compaction.Found() for name in figures}
    for conversation in conversations:
        for source, said in conversation.sessions:
            ingest.remember(memory, conversation.name, source, said)
        chunks.seal(memory, conversation.name)
        left: dict[str, dict[str, str]] = {name: {} for name in figures}
        for chunk in memory.store.waiting_chunks(limit=100_000)[:most]:
            if time.monotonic() > until_s:
                break
            task = reconcile.prepare(memory, chunk.id)
            texts = {WORTH: lines.left(task, []), MODEL: await compacted(compactor, model, task, counts)}
            reconcile.store(memory, task, task.extractive)
            for number, turn in enumerate(task.turns):
                for origin in memory.store.sources_of(turn.id):
                    left[RAW][origin.reference] = turn.text
                    for name, of_chunk in texts.items():
                        left[name][origin.reference] = of_chunk.get(number, "")
        if left[RAW]:
            _add(conversation, left, figures, found, memory)
    rows = {
        name: {**{key: round(statistics.fmean(values), 4) for key, values in own.items()}, **found[name].row()}
        for name, own in figures.items()
    }
    return {
        "model": model.name,
        "asked": dict(counts.asked),
        "accepted": dict(counts.accepted),
        "rejected": dict(counts.reasons),
        "tokens": counts.tokens,
        "seconds": round(counts.seconds, 1),
        "named_lines_among_the_best": round(statistics.fmean(counts.overlap), 4) if counts.overlap else None,
        "rows": rows,
    }


def _add(
    conversation: corpus.Conversation,
    left: dict[str, dict[str, str]],
    figures: dict[str, dict[str, list[float]]],
    found: dict[str, after_compaction.Found],
    memory: Memory,
) -> None:
    """Add a conversation's figures, of the questions whose evidence was compacted."""
    said = {turn.reference: turn for _, turns in conversation.sessions for turn in turns}
    asked = tuple(q for q in conversation.questions if q.evidence <= left[RAW].keys())
    there = [reference for reference in said if reference in left[RAW]]
    spoken = [Spoken(said[reference].speaker, said[reference].text) for reference in there]
    idf = idf_of(spoken)
    raw_chars = sum(turn.length_chars for turn in spoken)
    part = corpus.Conversation(
        conversation.name,
        tuple((source, tuple(t for t in turns if t.reference in left[RAW])) for source, turns in conversation.sessions),
        asked,
    )
    for name, of_method in left.items():
        texts = [of_method[reference] for reference in there]
        shares = dict(zip(there, shares_of(spoken, texts, idf), strict=True))
        own = figures[name]
        own.setdefault("rho", []).append(sum(len(text) + 3 for text in texts if text) / raw_chars)
        for question in asked:
            kept = statistics.fmean(shares[reference] >= KEPT_SHARE for reference in question.evidence)
            own.setdefault("evidence_kept", []).append(kept)
            whole = {reference: said[reference].text for reference in there}
            own.setdefault("answer_words", []).extend(answer_words(question, whole, of_method))
        whole_turns = frozenset(reference for reference, share in shares.items() if share >= KEPT_SHARE)
        after_compaction.add(found[name], memory, part, name, of_method, whole_turns)


async def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure with the model that was asked for."""
    conversations = corpus.read([options.file])[options.skip : options.skip + options.conversations]
    store = open_memory_store(folder / "measured.sqlite", SystemClock())
    memory = Memory(store, static_vectors.load())
    try:
        if options.url is not None:
            model = Recorded(RemoteModel(options.url, options.model))
            return await measure(model, conversations, memory, most=options.chunks, limit_s=options.seconds)
        settings = load(
            folder / "config.toml", env={}, flags={"memory.compactor": "model", **_threads(options.threads)}
        )
        service = Service(settings, find_paths({"AKASHIC_HOME": str(folder)}))
        await service.start()
        try:
            while (engine := (await service.status()).engine).state != "ready":
                if engine.state == "failed":
                    raise SystemExit(f"the model can't be loaded: {engine.detail}")
                await asyncio.sleep(0.1)
            assert service.memory._model is not None
            model = Recorded(service.memory._model)
            return await measure(model, conversations, memory, most=options.chunks, limit_s=options.seconds)
        finally:
            await service.stop()
    finally:
        store.close()


def _threads(count: int | None) -> dict[str, Any]:
    return {} if count is None else {"schedule.threads": count}


def main() -> None:
    """Print the figures as JSON, after a line for each chunk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--conversations", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--chunks", type=int, help="only so many of each conversation")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further chunk after so long")
    parser.add_argument("--threads", type=int, help="of the loaded model; 1 on a machine that is busy")
    parser.add_argument("--url")
    parser.add_argument("--model", default="")
    with tempfile.TemporaryDirectory(prefix="ak-") as folder:
        print(json.dumps(asyncio.run(run(parser.parse_args(), Path(folder))), indent=2))


if __name__ == "__main__":
    main()
