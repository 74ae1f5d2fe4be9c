"""Between what marks a model thinks, told from the text of its chat template. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """How thoughts are written.

    opening, closing: marks around them. resume: what stands between the closing and what is said next; said: the mark
    before that. has_channels: each part of an answer names its channel, and there may be several.
    """

    opening: str
    closing: str
    resume: str = ""
    said: str = ""
    has_channels: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that a vocabulary may have as control tokens, which print nothing."""
        if not self.has_channels:
            return (self.opening, self.closing)
        return (START, CHANNEL, MESSAGE, CONSTRAIN, *PART_ENDS)


START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
PART_ENDS = ("<|end|>", "<|call|>", "<|return|>")

THINK = ThoughtMarks("<think>", "</think>")
"""Of Qwen, DeepSeek and most others."""
BRACKETS = ThoughtMarks("[THINK]", "[/THINK]")
"""Of Mistral."""
CHANNELS = ThoughtMarks(
    f"{CHANNEL}analysis{MESSAGE}", "<|end|>", f"{START}assistant", f"{CHANNEL}final{MESSAGE}", has_channels=True
)
"""Of gpt-oss, in OpenAI's harmony format."""


def thought_marks_of(template: str) -> ThoughtMarks | None:
    """Return what marks a chat template speaks of; None for a model that doesn't think."""
    if CHANNEL in template and MESSAGE in template and "analysis" in template:
        return CHANNELS
    return next((marks for marks in (THINK, BRACKETS) if marks.opening in template or marks.closing in template), None)
