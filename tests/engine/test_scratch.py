"""Room to work in is kept by each thread."""

from __future__ import annotations

import threading

from engine.scratch import scratch


def test_a_thread_gets_the_same_memory_again() -> None:
    """A smaller array after a larger one lies in the same place; shapes are as asked for."""
    first = scratch(30, 50)
    first[:] = 7
    again = scratch(4, 5, 6)
    assert (first.shape, again.shape) == ((30, 50), (4, 5, 6))
    assert again.base is first.base
    assert (again == 7).all()


def test_threads_share_nothing() -> None:
    """What two threads work in are two places."""
    found = []
    thread = threading.Thread(target=lambda: found.append(scratch(10)))
    thread.start()
    thread.join()
    assert found[0].base is not scratch(10).base
