"""The man pages of the HTTP routes and of the errors, made of the daemon's routes, wire models and error tree.

Only the generator of documentation imports this: it needs the daemon's web framework, which no command may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from starlette.routing import Route

from akashic_cli.docs.roff import entry, head, page, roff, see_also
from akashic_cli.render.explanation import CAUSES
from akashic_daemon.api.app import all_routes
from akashic_daemon.api.openapi_table import OPERATIONS, Operation
from akashic_daemon.errors import AkashicError, error_kinds

GROUPS: Mapping[str, tuple[str, str]] = {
    "/v1/messages": ("ANTHROPIC'S ROUTES", "With ANTHROPIC_BASE_URL, Anthropic's clients use them."),
    "/v1/": ("OPENAI'S ROUTES", "With OPENAI_BASE_URL ending in /v1, OpenAI's clients use them."),
    "/akashic/": ("AKASHIC'S ROUTES", "What the command line uses. Streams are NDJSON, an object a line."),
    "/": ("MONITORING", "Health, figures and the description of all routes."),
}
REQUEST_FIELDS: Mapping[str, str] = {
    "session": "The session that the request goes on with; without it the daemon finds the one whose history it extends.",
    "policy": "Cache policy, e.g. tool-rolling-drop:keep=4; see akashic-ops(7).",
    "cache_ops": "Cache operations to do before the answer; see akashic-ops(7).",
    "edit_reuse": "What an edited history becomes: exact computes from the first difference on, drop keeps what was computed.",
    "hint": "{expect_s}: when the session's next request is expected, so that its KV is in the engine by then.",
    "priority": "interactive, normal or background: who waits for whom.",
    "memory": "true, false, or {namespaces, budget_tokens}: whether something is recalled before the question.",
}
ANSWER_FIELDS: Mapping[str, str] = {
    "session": "The session that the answer is part of.",
    "plan": "How it was computed: plain text, with its program of operations, or as an edit of what was known.",
    "reused_tokens": "Tokens of the prompt that were not computed again.",
    "reused_by_tier": "Where those were: in the engine, in RAM, on SSD, or on a remote server.",
    "computed_tokens": "Tokens of the prompt that were computed.",
    "dropped_tokens": "Tokens of the history that the answer didn't see.",
    "reposed_tokens": "Tokens whose position was moved.",
    "drop_skipped_tokens": "Tokens to drop that weren't there any more.",
    "policy": "The cache policy that was applied.",
    "left_out_messages": "Messages at the start that the window had no room for (turns of stored sessions only).",
    "left_out_tokens": "Their tokens.",
    "miss": "Where the prompt left what was known, and why: cause, at_token, at_message, expected, got, could_reuse, detail.",
    "memory": "What was recalled before the question, and from where.",
    "notes": "What was done that you might not expect, in words.",
}
HEADERS: Mapping[str, str] = {
    "x-request-id": "The request's name, as the log and the streams have it; Anthropic's routes have request-id too.",
    "x-akashic-ignored": "Request fields that mean nothing here and were passed over.",
    "retry-after": "With 429, 503 and 529: seconds to wait.",
}


def api_pages() -> Mapping[Path, str]:
    """Return the generated pages by their place below man/."""
    return {Path("man7/akashic-api.7"): _routes_page(), Path("man7/akashic-errors.7"): _errors_page()}


def _routes_page() -> str:
    lines = [
        *head("AKASHIC-API", 7, "akashic-api", "the HTTP routes of the akashic daemon"),
        ".SH DESCRIPTION",
        roff(
            "The daemon serves its Unix socket always and a loopback TCP port when serve.port is set or POST /akashic/v1/listen asks for one. On TCP each request but "
            "GET /healthz carries the token of the store's file `token`, as `Authorization: Bearer TOKEN` or `x-api-key: TOKEN`; "
            "Host and Origin must be loopback. Bodies are JSON. What each route takes and gives in full is in GET "
            "/openapi.json. Errors have the shape of the API that was asked; their codes are in akashic-errors(7)."
        ),
    ]
    found: dict[str, list[Route]] = {start: [] for start in GROUPS}
    for route in all_routes():
        found[next(start for start in GROUPS if route.path.startswith(start))].append(route)
    for start, (title, about) in GROUPS.items():
        lines += [f".SH {roff(title)}", roff(about)]
        for route in found[start]:
            lines += _route(route)
    for title, about, entries in (
        ("THE FIELD akashic OF REQUESTS", "All routes that generate text take it; every field may be left out.", REQUEST_FIELDS),
        ("THE FIELD akashic OF ANSWERS", "Answers and last chunks of streams have it.", ANSWER_FIELDS),
        ("CAUSES OF A MISS", "The field miss.cause is one of these.", CAUSES),
        ("HEADERS OF ANSWERS", "Beside those of HTTP.", HEADERS),
    ):  # fmt: skip
        lines += [f".SH {roff(title)}", roff(about)]
        for term, text in entries.items():
            lines += entry(term, _sentence(text))
    return page([*lines, *see_also(("akashic-errors", 7), ("akashic-ops", 7), ("akashic-config", 5))])


def _route(route: Route) -> Iterator[str]:
    """Give the entry of each method of a route."""
    path = re.sub(r":\w+\}", "}", route.path)
    about = (route.endpoint.__doc__ or "").strip().partition("\n\n")[0]
    for method in sorted((route.methods or set()) - {"HEAD"}):
        told = OPERATIONS[method, route.path]
        yield from entry(f"{method} {path}", " ".join([" ".join(about.split()), *_taken(told)]))


def _taken(told: Operation) -> Iterator[str]:
    if told.query:
        yield f"Query: {', '.join(told.query)}."
    if told.upload:
        yield "Body: the file's bytes."
    elif told.body is not None:
        yield f"Body: {_fields(told.body)}."
    if told.streams:
        yield "Streams." if told.answer is None else "Streams with stream: true."


def _fields(model: Any) -> str:
    return ", ".join(
        name if not field.is_required() else f"{name} (required)" for name, field in model.model_fields.items()
    )


def _errors_page() -> str:
    lines = [
        *head("AKASHIC-ERRORS", 7, "akashic-errors", "the error codes of akashic"),
        ".SH DESCRIPTION",
        roff(
            "Each error has a code that stays the same, a message that says what was being done and to what, and often a hint. "
            "The command line prints message and hint on stderr and ends with the exit code; the daemon answers with the HTTP "
            "status. Below /v1 an overloaded Anthropic route answers 529 instead of 503."
        ),
        ".SH ERRORS",
    ]
    for kind in error_kinds():
        about = (
            (kind.__doc__ or "").strip()
            if kind is not AkashicError
            else "Something that should not happen; see the log."
        )
        lines += entry(kind.code, f"{about} HTTP {kind.http_status}, exit code {kind.exit_code}.")
    return page([*lines, *see_also(("akashic", 1), ("akashic-api", 7))])


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text[:1].upper()}{text[1:]}."
