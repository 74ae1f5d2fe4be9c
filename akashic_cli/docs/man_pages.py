"""Man pages as roff: one for akashic, one for each of its commands, one for config.toml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from akashic_cli.docs.command_tree import arguments, groups, leaves, options, settings, summary, usage
from akashic_cli.docs.roff import entry, head, page, paragraphs, roff, see_also

EXIT_CODES = (
    (0, "Everything was done."),
    (1, "Something failed; stderr says what and what to do."),
    (2, "The command, a setting or the input can't mean anything."),
    (3, "No daemon is running and none could or should be started."),
    (4, "A daemon is there but unhealthy."),
    (130, "Interrupted."),
)
ENVIRONMENT = (
    ("AKASHIC_HOME", "Folder of settings, store, socket and logs, instead of the XDG folders."),
    ("AKASHIC_LOG_LEVEL", "How much the daemon writes into its log."),
    ("AKASHIC_SECTION_KEY", "A setting, e.g. AKASHIC_SERVE_PORT for serve.port; it wins over the file."),
    ("NO_COLOR", "Print without colour."),
)
FILES = (
    ("$XDG_CONFIG_HOME/akashic/config.toml", "The settings; `akashic config path` prints the place."),
    ("$XDG_DATA_HOME/akashic/store/", "Sessions and what was computed."),
    ("$XDG_RUNTIME_DIR/akashic/akashic.sock", "The daemon's socket."),
    ("$XDG_STATE_HOME/akashic/log/daemon.log", "The daemon's log."),
)


def man_pages() -> Mapping[Path, str]:
    """Return every generated page by its place below man/."""
    pages = {Path("man1/akashic.1"): _overview(), Path("man5/akashic-config.5"): _settings_page()}
    for name, command in groups():
        pages[Path(f"man1/akashic-{name}.1")] = _command_page(name, command)
    return pages


def _overview() -> str:
    lines = [
        *head("AKASHIC", 1, "akashic", "a local model whose KV cache agents may edit"),
        ".SH SYNOPSIS",
        ".B akashic",
        "[\\fB\\-\\-home\\fR \\fIDIR\\fR] \\fICOMMAND\\fR [\\fIARGUMENT\\fR ...]",
        ".SH DESCRIPTION",
        "akashic runs a model on this machine and keeps what it computed, so that an agent's next request computes only "
        "what is new. The daemon starts by itself on first use. Data goes to stdout, everything else to stderr.",
        ".SH COMMANDS",
    ]
    for name, command in groups():
        lines += entry(f"akashic-{name}(1)", summary(command))
    statuses = tuple((str(code), text) for code, text in EXIT_CODES)
    for title, entries in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES), ("EXIT STATUS", statuses)):
        lines.append(f".SH {title}")
        for term, text in entries:
            lines += entry(term, text)
    others = ("akashic-guide", "akashic-api", "akashic-errors", "akashic-ops", "akashic-cluster")
    return page([*lines, *see_also(("akashic-config", 5), *((name, 7) for name in others))])


def _command_page(name: str, command: Any) -> str:
    lines = head(f"AKASHIC-{name.upper()}", 1, f"akashic-{name}", summary(command))
    found = list(leaves(f"akashic {name}", command))
    lines.append(".SH SYNOPSIS")
    for number, (whole, leaf) in enumerate(found):
        lines += [*([".br"] if number else []), f".B {roff(usage(whole, leaf))}"]
    lines.append(".SH DESCRIPTION" if len(found) == 1 else ".SH COMMANDS")
    for whole, leaf in found:
        if len(found) > 1:
            lines.append(f".SS {roff(usage(whole, leaf))}")
        lines += paragraphs(leaf.help or "")
        for term, text in arguments(leaf) + options(leaf):
            lines += entry(term, text)
    more = (("akashic-ops", 7),) if name in ("ctx", "policy") else ()
    return page([*lines, *see_also(("akashic", 1), ("akashic-config", 5), *more)])


def _settings_page() -> str:
    lines = head("AKASHIC-CONFIG", 5, "akashic-config", "the settings of akashic, config.toml")
    lines += [
        ".SH DESCRIPTION",
        "Each section of the file is a table, each setting a key in it. Flag, then environment (AKASHIC_SECTION_KEY), then "
        "config.toml, then default: the first that says something counts. `akashic config show \\-\\-origin` tells which did.",
        ".SH SETTINGS",
    ]
    for name, default, text in settings():
        lines += entry(name, f"{text} Default: {default}.")
    return page([*lines, *see_also(("akashic", 1))])
