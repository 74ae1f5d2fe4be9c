"""What the mover does in the middle of a long job: what a request or the engine waits for, and nothing else."""

from __future__ import annotations

from akashic_daemon.tiers.jobs import Priority
from tiers_driver import InlineMover


def test_reads_and_exported_blocks_are_served_in_the_middle_of_a_long_job_and_the_rest_afterwards() -> None:
    mover = InlineMover(None)
    done: list[str] = []

    def long_job() -> None:
        mover.submit(Priority.FETCH, lambda: done.append("read"))
        mover.submit(Priority.CALL, lambda: done.append("call"))
        mover.submit(Priority.WRITE, lambda: done.append("write"))
        mover.submit_store(lambda: done.append("exported"))
        mover._serve_waiting()
        done.append("long job")

    mover.submit(Priority.WRITE, long_job)
    mover.run_pending()
    assert done == ["read", "exported", "long job", "call", "write"]


def test_an_end_that_was_asked_for_in_the_middle_of_a_long_job_still_comes_last() -> None:
    mover = InlineMover(None)
    mover._jobs.put((Priority.LAST + 1, 0, None))
    mover.submit(Priority.FETCH, lambda: None)
    mover._serve_waiting()
    assert mover._jobs.get_nowait()[2] is None
