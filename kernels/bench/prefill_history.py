"""Histories to prefill, as segments over pages: plain ones, chunks, and such as agents leave behind them by dropping."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

PAGE = 128


@dataclass
class Segment:
    """Views (page, offset, length, base) whose last `count` tokens are the segment's own, from `position` on."""

    views: list[tuple[int, int, int, int]]
    count: int
    position: int

    def cells(self, device: str) -> tuple[Tensor, Tensor]:
        """Give each visible token's page * PAGE + slot, and its view's base."""
        page, offset, length, base = torch.tensor(self.views, dtype=torch.int64).unbind(1)
        view = torch.repeat_interleave(length)
        within = torch.arange(len(view)) - (torch.cumsum(length, 0) - length)[view]
        return ((page * PAGE + offset)[view] + within).to(device), base[view].to(device)


@dataclass
class Case:
    """Segments that follow each other in one batch of queries."""

    segments: list[Segment]

    @property
    def query_count(self) -> int:
        """Queries of all segments."""
        return sum(segment.count for segment in self.segments)

    @property
    def page_count(self) -> int:
        """Pages that the views reach into."""
        return 1 + max(view[0] for segment in self.segments for view in segment.views)

    def starts(self) -> Iterator[tuple[int, Segment]]:
        """Give each segment with its first query."""
        start = 0
        for segment in self.segments:
            yield start, segment
            start += segment.count

    def tables(self) -> tuple[Tensor, Tensor]:
        """Give `segments` and `views` as the kernel takes them."""
        rows: list[list[int]] = []
        views: list[tuple[int, int, int, int]] = []
        for start, segment in self.starts():
            rows.append([start, segment.count, len(views), len(segment.views), segment.position])
            views += segment.views
        return torch.tensor(rows, dtype=torch.int32), torch.tensor(views, dtype=torch.int32)

    def visible_pairs(self) -> int:
        """Count (query, key) pairs: what attention has to compute."""
        pairs = 0
        for segment in self.segments:
            visible = sum(view[2] for view in segment.views)
            pairs += segment.count * (visible - segment.count) + segment.count * (segment.count + 1) // 2
        return pairs


@dataclass
class _Message:
    """Tokens of one message in pages of their own, at `position`."""

    pages: list[int]
    length: int
    position: int

    def views(self) -> list[tuple[int, int, int, int]]:
        return [
            (page, 0, min(PAGE, self.length - i * PAGE), self.position + i * PAGE) for i, page in enumerate(self.pages)
        ]


def plain(length: int) -> Case:
    """Give one prefill of `length` tokens; pages in random order."""
    return chunk(0, length)


def chunk(context: int, count: int) -> Case:
    """Give a chunk of `count` tokens behind `context` tokens."""
    total = context + count
    pages = list(range(-(-total // PAGE)))
    random.Random(1).shuffle(pages)
    views = [(page, 0, min(PAGE, total - i * PAGE), i * PAGE) for i, page in enumerate(pages)]
    return Case([Segment(views, count, context)])


def rolling_drop(turns: int, assistant: int, tool: int, *, keep: int) -> Case:
    """Give an agent's history: turns of an assistant message and a tool result, of which the newest `keep` stay."""
    free = iter(range(turns * (-(-assistant // PAGE) + -(-tool // PAGE))))
    messages: list[_Message] = []
    segments: list[Segment] = []
    own: list[_Message] = []
    position = 0
    for turn in range(turns):
        for length in (assistant, tool):
            own.append(_Message([next(free) for _ in range(-(-length // PAGE))], length, position))
            position += length
        if turn >= keep - 1:
            segments.append(_segment([*messages, *own], own))
            messages += own
            own = []
            dropped = turn - keep + 1
            messages = [m for m in messages if m.position != dropped * (assistant + tool) + assistant]
    return Case(segments)


def small_drops(length: int, *, drops: int, tokens: int, repos: bool = False) -> Case:
    """Give a history of `length` tokens in which, `drops` times, `tokens` tokens somewhere before are dropped.

    With `repos`, what is left is then moved together: only bases change.
    """
    random_numbers = random.Random(2)
    step = length // (drops + 1)
    left: list[tuple[int, int, int, int]] = []
    segments: list[Segment] = []
    next_token, position = 0, 0
    for turn in range(drops + 1):
        count = step if turn < drops else length - next_token
        own = _continued(next_token, count, position)
        segments.append(Segment([*left, *own], count, position))
        left, next_token, position = _joined([*left, *own]), next_token + count, position + count
        left = _dropped(left, random_numbers.randrange(len(left)), tokens)
        if repos:
            left, position = _moved_together(left)
    return Case(segments)


def _segment(messages: list[_Message], own: list[_Message]) -> Segment:
    views = [view for message in messages for view in message.views()]
    return Segment(views, sum(message.length for message in own), own[0].position)


def _continued(first: int, count: int, position: int) -> list[tuple[int, int, int, int]]:
    """Give views of tokens first .. first + count - 1 of a history that fills pages one after another."""
    views = []
    token = first
    while token < first + count:
        page, slot = divmod(token, PAGE)
        length = min(PAGE - slot, first + count - token)
        views.append((page, slot, length, position + token - first - slot))
        token += length
    return views


def _joined(views: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Give the views with those that continue one another made one."""
    joined = [views[0]]
    for page, offset, length, base in views[1:]:
        last_page, last_offset, last_length, last_base = joined[-1]
        if (page, offset, base) == (last_page, last_offset + last_length, last_base):
            joined[-1] = (page, last_offset, last_length + length, base)
        else:
            joined.append((page, offset, length, base))
    return joined


def _dropped(views: list[tuple[int, int, int, int]], at: int, tokens: int) -> list[tuple[int, int, int, int]]:
    """Drop the first `tokens` tokens of view `at` and what follows it."""
    kept = views[:at]
    for page, offset, length, base in views[at:]:
        gone = min(tokens, length)
        tokens -= gone
        if gone < length:
            kept.append((page, offset + gone, length - gone, base))
    return kept


def _moved_together(views: list[tuple[int, int, int, int]]) -> tuple[list[tuple[int, int, int, int]], int]:
    """Give what is left at positions from 0 on, and the next position."""
    position = 0
    moved = []
    for page, offset, length, _ in views:
        moved.append((page, offset, length, position - offset))
        position += length
    return moved, position
