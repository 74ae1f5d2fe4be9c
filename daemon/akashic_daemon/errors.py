"""The one error tree.

    AkashicError                       code                 exit  http
    |- UsageError                      usage                   2   400
    |  |- BadRequest                   bad_request             2   400
    |  |  |- BodyTooLarge              body_too_large          2   413
    |  |  `- ScriptError               script                  2   400
    |  |- WrongMethod                  wrong_method            2   405
    |  |- PromptTooLong                prompt_too_long         2   400
    |  |- ConfigError                  config                  2   400
    |  |- TranscriptError              transcript              2   400
    |  `- Unsupported                  unsupported             2   400
    |- NotFound                        not_found               1   404
    |- Conflict                        conflict                1   409
    |- AssertionFailed                assertion_failed        1   409
    |- Unauthorized                    unauthorized            1   401
    |- Forbidden                       forbidden               1   403
    |- Overloaded                      overloaded              1   503
    |- Cancelled                       cancelled             130   499
    |- DaemonNotRunning                daemon_not_running      3   503
    |- DaemonUnhealthy                 daemon_unhealthy        4   503
    |- DaemonRunning                   daemon_running          1   409
    |- ModelError                      model                   1   500
    |  `- BadModelFile                 model_file              1   400
    |- EngineError                     engine                  1   500
    |- UpstreamError                   upstream                1   502
    |  `- UpstreamTimeout              upstream_timeout        1   504
    |- TemplateError                   template                1   400
    `- StoreError                      store                   1   500
       |- StoreTooNew                  store_too_new           1   500
       `- StoreUnwritable              store_unwritable        1   507

Every message says what was being done, to what, and what to do about it; `hint` holds the last part.
Foreign exceptions are turned into one of these where they arise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "AkashicError",
    "AssertionFailed",
    "BadModelFile",
    "BadRequest",
    "BodyTooLarge",
    "Cancelled",
    "ConfigError",
    "Conflict",
    "DaemonNotRunning",
    "DaemonRunning",
    "DaemonUnhealthy",
    "EngineError",
    "Forbidden",
    "ModelError",
    "NotFound",
    "Overloaded",
    "PromptTooLong",
    "ScriptError",
    "StoreError",
    "StoreTooNew",
    "StoreUnwritable",
    "TemplateError",
    "TranscriptError",
    "Unauthorized",
    "Unsupported",
    "UpstreamError",
    "UpstreamTimeout",
    "UsageError",
    "WrongMethod",
    "error_kinds",
    "from_wire",
]


class AkashicError(Exception):
    """Base of every error a user may see."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def to_wire(self) -> dict[str, Any]:
        """Return the error as it travels between daemon and CLI."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details}


class UsageError(AkashicError):
    """The command or request can't mean anything."""

    code = "usage"
    exit_code = 2
    http_status = 400


class BadRequest(UsageError):
    """A field of a request is missing, unknown or out of range."""

    code = "bad_request"


class BodyTooLarge(BadRequest):
    """The body of a request is over the limit."""

    code = "body_too_large"
    http_status = 413


class ScriptError(BadRequest):
    """An op script, a policy or a selector can't be read; details hold line and column."""

    code = "script"


class WrongMethod(UsageError):
    """The route exists, but not for this HTTP method."""

    code = "wrong_method"
    http_status = 405


class PromptTooLong(UsageError):
    """The prompt doesn't fit the window; details hold n_prompt_tokens and n_ctx."""

    code = "prompt_too_long"


class ConfigError(UsageError):
    """A setting is unknown or has an impossible value."""

    code = "config"


class TranscriptError(UsageError):
    """Nothing of a transcript could be read."""

    code = "transcript"


class Unsupported(UsageError):
    """The model or engine can't do what is asked; the message names the reason."""

    code = "unsupported"


class NotFound(AkashicError):
    """A named thing doesn't exist."""

    code = "not_found"
    http_status = 404


class Conflict(AkashicError):
    """Two users of one thing get in each other's way."""

    code = "conflict"
    http_status = 409


class AssertionFailed(AkashicError):
    """A script asserts what isn't so; the message has both values."""

    code = "assertion_failed"
    http_status = 409


class Unauthorized(AkashicError):
    """The bearer token is missing or wrong."""

    code = "unauthorized"
    http_status = 401


class Forbidden(AkashicError):
    """Host or Origin isn't one that this daemon serves."""

    code = "forbidden"
    http_status = 403


class Overloaded(AkashicError):
    """The queue is full, or the KV cache can't hold the request now."""

    code = "overloaded"
    http_status = 503


class Cancelled(AkashicError):
    """The client went away or asked to stop."""

    code = "cancelled"
    exit_code = 130
    http_status = 499


class DaemonNotRunning(AkashicError):
    """No daemon answers on the socket."""

    code = "daemon_not_running"
    exit_code = 3
    http_status = 503


class DaemonUnhealthy(AkashicError):
    """A daemon is there but its step loop doesn't turn."""

    code = "daemon_unhealthy"
    exit_code = 4
    http_status = 503


class DaemonRunning(AkashicError):
    """A second daemon was started on one home."""

    code = "daemon_running"
    http_status = 409


class ModelError(AkashicError):
    """A model file is missing, broken or of an unknown kind."""

    code = "model"


class BadModelFile(ModelError):
    """The file that a request names is missing, no GGUF, or cut off."""

    code = "model_file"
    http_status = 400


class EngineError(AkashicError):
    """The engine failed; the last good state stands."""

    code = "engine"


class UpstreamError(AkashicError):
    """The server behind a remote model can't be reached, refuses, or breaks off; the session stands as it was."""

    code = "upstream"
    http_status = 502


class UpstreamTimeout(UpstreamError):
    """A remote server took longer than a setting allows, which the message names."""

    code = "upstream_timeout"
    http_status = 504


class TemplateError(AkashicError):
    """The model's chat template can't render these messages."""

    code = "template"
    http_status = 400


class StoreError(AkashicError):
    """The database can't be read."""

    code = "store"


class StoreTooNew(StoreError):
    """The database was written by a newer version."""

    code = "store_too_new"


class StoreUnwritable(StoreError):
    """The disk is full or read-only."""

    code = "store_unwritable"
    http_status = 507


def error_kinds() -> list[type[AkashicError]]:
    """Return the kind of error of each code, the base first; where kinds share a code, the one that the others are kinds of."""
    return list(_tree(AkashicError).values())


def _tree(root: type[AkashicError]) -> dict[str, type[AkashicError]]:
    found = {root.code: root}
    for sub in root.__subclasses__():
        found |= {code: kind for code, kind in _tree(sub).items() if code not in found}
    return found


def from_wire(body: Mapping[str, Any]) -> AkashicError:
    """Rebuild the error that `to_wire` described; an unknown code becomes the base class."""
    kind = _tree(AkashicError).get(str(body.get("code")), AkashicError)
    details = body.get("details") or {}
    hint = body.get("hint")
    return kind(str(body.get("message", "unknown error")), hint=hint, **{str(k): v for k, v in details.items()})
