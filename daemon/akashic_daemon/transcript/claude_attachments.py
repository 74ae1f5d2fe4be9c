"""Attachments in Claude Code logs: what was put before the model beside the user's words.

Files, selections, queued prompts and the like are text that the model read. The other kinds are the program's own
book-keeping; they are named here so that a new kind is noticed.
"""

from __future__ import annotations

from typing import Any

from akashic_daemon.transcript.content import as_dict, as_list, as_text, content_text

QUIET = frozenset(
    {
        "agent_listing_delta",
        "agent_mention",
        "already_read_file",
        "async_hook_response",
        "budget_usd",
        "command_permissions",
        "compact_file_reference",
        "compaction_reminder",
        "date_change",
        "deferred_tools_delta",
        "dynamic_skill",
        "edited_image_file",
        "hook_cancelled",
        "hook_error_during_execution",
        "hook_non_blocking_error",
        "hook_permission_decision",
        "hook_success",
        "image",
        "invoked_skills",
        "max_turns_reached",
        "mcp_instructions_delta",
        "opened_file_in_ide",
        "output_style",
        "output_token_usage",
        "plan_mode",
        "plan_mode_exit",
        "plan_mode_reentry",
        "skill_listing",
        "structured_output",
        "task_reminder",
        "task_status",
        "todo",
        "todo_reminder",
        "token_usage",
        "ultrathink_effort",
        "verify_plan_reminder",
    }
)
"""Kinds that say nothing of the conversation, whatever they hold."""

_TEXTS = ("content", "snippet", "prompt", "text")
_NAMES = ("filename", "path", "uri")


def attachment_text(attachment: dict[str, Any]) -> str | None:
    """Return what the model read, under the file's name; None when that is nothing."""
    if attachment.get("type") in QUIET:
        return None
    text = next((found for key in _TEXTS if (found := _text(attachment.get(key)))), None)
    name = next((found for key in _NAMES if (found := as_text(attachment.get(key)))), None)
    return f"{name}:\n{text}" if text and name else text


def is_known(attachment: dict[str, Any]) -> bool:
    """Tell a kind that may be passed over in silence."""
    return attachment.get("type") in QUIET


def _text(value: Any) -> str:
    """Return the text of an attachment's content, which may be wrapped in the file that it is of."""
    wrapped = as_dict(value)
    if "file" in wrapped:
        return _text(wrapped["file"])
    if isinstance(wrapped.get("content"), str):
        return as_text(wrapped["content"])
    if isinstance(value, dict):
        return as_text(wrapped.get("text"))
    parts = [part for part in as_list(value) if isinstance(part, str) or isinstance(as_dict(part).get("text"), str)]
    return content_text(parts) if isinstance(value, list) else as_text(value)
