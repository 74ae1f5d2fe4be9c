"""What a report says to somebody who has never seen this program: what it is, how to read a suite, what the words mean."""

from __future__ import annotations

INTRODUCTION = (
    "akashic is a server for language models on one's own machine. Agents send it the same growing history again and again; it "
    "keeps what was computed of it (the KV cache), so that an answer begins soon. This page is one measurement of that: a "
    "section for each suite, everything played one after another on the machine below. Other servers that got the same "
    "requests stand beside it."
)
HOW_TO_READ = {
    "decode": "How fast the engine writes and reads by itself, after contexts of several lengths, without a server around it. "
    "The planner's error is how far `akashic bench plan` is off where it wasn't fitted.",
    "kernels": "Parts of the torch engine, each beside the fastest thing of its kind on the same machine in the same run: 1 is as "
    "fast, 0.5 takes twice as long. Without a GPU the references for CPUs are timed, which says nothing of a GPU.",
    "torch-decode": "How fast the torch engine writes with the model, as a share of what memory's speed allows.",
    "replay": "Recorded or made-up agents, one after another. The fewer tokens are computed, the sooner an answer begins.",
    "serve": "The same kind of agents, all at once: they compete for the machine.",
    "agents": "Ways to keep histories short, under load. none: never; drop: old tool results leave the cache; prune: the agent "
    "empties them in its text; summarise: a model writes a summary and the history goes on from there; rewrite: a memory that "
    "a model writes anew. What summaries cost is charged. Cost: computed tokens, plus 0.1 for each cached one, 5 for each "
    "written one.",
    "fidelity": "Whether answers get worse when old tool results are dropped: how unlikely the recorded answers are (NLL, less "
    "is better). full: the whole history; drop: what akashic does; exact and truncate: a shortened text computed anew.",
    "tiers": "How soon a session's next answer begins when its KV is nowhere (cold), in memory (ram), still in the engine "
    "(resident), on disk (ssd), or on disk after a restart (restart).",
    "memory": "Long-term memory: of the sentences that hold a question's answer, how many are among the first 5, 10 or 20 found. "
    "bm25 and embedding are the usual ways by themselves.",
}
GLOSSARY = (
    ("token", "a piece of a word, the unit that models read and write"),
    ("first token", "from sending a request to the first piece of its answer: what a person waits"),
    ("p50, p95", "half of the requests, 95 of 100 were at least that fast; the median is p50"),
    ("tokens computed", "of prompts: read anew by the model, which takes the time"),
    ("tokens cached", "of prompts: known from before, so that nothing had to be computed"),
    ("output", "tokens written a second, all agents together"),
    ("latency", "from when an agent wanted an answer to its last token"),
    ("x", "so many times; of two figures of this run, as the name says"),
    ("goal", "what akashic's makers want the figure to be; those for agents are meant for recorded runs"),
    ("nats a token", "how surprised the model is by the recorded answer; 0.01 is little, 0.1 is much"),
    ("from - to (samples)", "the smallest and largest of the single measurements, and how many there were"),
)
