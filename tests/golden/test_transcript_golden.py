"""One sample of each format against the messages that it must give, field by field.

After a wanted change, `python tests/golden/test_transcript_golden.py` writes the expected files anew; read their diff.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from akashic_daemon.transcript import FORMATS, Problem, detect_format, read_transcript

FOLDER = Path(__file__).parent / "transcript"
SAMPLES = sorted(path for path in FOLDER.iterdir() if not path.name.endswith(".expected"))


def rendered(sample: Path) -> str:
    out = []
    for item in read_transcript(sample):
        if isinstance(item, Problem):
            out.append(json.dumps({"problem": item.reason, "line": item.line}))
            continue
        place = {"conversation": item.conversation, "is_main": item.is_main, "line": item.line}
        out.append(json.dumps({**place, **item.message.to_json()}, ensure_ascii=False))
    return "\n".join(out) + "\n"


def expected_path(sample: Path) -> Path:
    return sample.with_name(f"{sample.name}.expected")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_gives_the_expected_messages(sample: Path) -> None:
    assert rendered(sample) == expected_path(sample).read_text(encoding="utf-8")


def test_every_format_has_a_sample() -> None:
    assert {detect_format(sample) for sample in SAMPLES} == set(FORMATS)


if __name__ == "__main__":
    for each in SAMPLES:
        expected_path(each).write_text(rendered(each), encoding="utf-8")
