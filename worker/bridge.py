"""The bridge from RQ as one task of a worker: its steps block, so they run in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError

from queueing.connect import connect
from queueing.protocol import Admission, Queue
from queueing.rq_bridge import OUTCOMES

if TYPE_CHECKING:
    from queueing.rq_jobs import RqJobs

T = TypeVar("T")
log = logging.getLogger("decibatch.rq")

POLL_S = 0.2
AWAY_S = 2.0


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    queues: tuple[str, ...]
    """Names of queues of RQ, the first one first."""
    redis_url: str
    """Where RQ's jobs are."""
    model: str
    """For jobs that name none."""
    admission: Admission
    pickle_allowed: bool = False


@dataclass(slots=True)
class BridgeState:
    """What health tells of the bridge: written by its thread, read by the event loop."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    problem: str = ""
    """Why nothing is bridged now; "" where all is well."""

    def document(self) -> dict[str, int | str]:
        return {**self.counts, "problem": self.problem}


async def run_bridge(
    config: BridgeConfig,
    state: BridgeState,
    *,
    queue_url: str,
    queue: Queue,
    name: str,
    open_at_once: int,
    may_take: Callable[[], bool],
) -> None:
    """Bridge until cancelled; then the step that is under way is finished.

    :param name: of this life of this worker alone; what ``rq info`` shows.
    :param open_at_once: jobs of RQ that all workers together hold unfinished: what is over that waits in RQ.
    """
    from queueing.rq_bridge import Bridge

    with connect(queue_url) as redis, connect(config.redis_url) as theirs:
        jobs = await _begin(theirs, config, state, name)
        bridge = Bridge(
            redis,
            queue,
            jobs,
            owner=name,
            model=config.model,
            admission=config.admission,
            open_at_once=open_at_once,
            clock=time.monotonic,
            counts=state.counts,
        )
        try:
            await _keep_stepping(bridge.step, may_take, state)
        finally:

            def end() -> None:
                bridge.release()
                jobs.end()

            try:
                await _in_thread(end)
            except (RedisError, OSError) as exc:
                log.warning("rq was not told the end", extra={"error": type(exc).__name__})


async def _begin(theirs: Any, config: BridgeConfig, state: BridgeState, name: str) -> RqJobs:
    from queueing.rq_jobs import RqJobs

    def begin() -> RqJobs:
        jobs = RqJobs(theirs, config.queues, name=name, pickle_allowed=config.pickle_allowed)
        jobs.begin()
        return jobs

    while True:
        try:
            return await asyncio.to_thread(begin)
        except (RedisError, OSError) as exc:
            log.warning("rq cannot be reached", extra={"error": type(exc).__name__})
            state.problem = f"its Redis does not answer: {type(exc).__name__}"
            await asyncio.sleep(AWAY_S)


async def _in_thread(act: Callable[[], T]) -> T:
    """Run in a thread, and wait for its end even when cancelled, however often: what it writes must not meet what
    comes after us. Its commands have time-outs."""
    acting = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(acting)
    except asyncio.CancelledError:
        while not acting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({acting})
        if acting.exception() is not None:
            log.warning("bridge to rq ended", extra={"error": type(acting.exception()).__name__})
        raise


async def _keep_stepping(step: Callable[..., bool], may_take: Callable[[], bool], state: BridgeState) -> None:
    while True:
        try:
            busy = await _in_thread(partial(step, may_take=may_take()))
        except (RedisError, OSError) as exc:
            log.warning("bridge to rq paused", extra={"error": type(exc).__name__})
            state.problem = f"a Redis does not answer: {type(exc).__name__}"
            await asyncio.sleep(AWAY_S)
            continue
        except Exception as exc:
            # One job of somebody else's must not end the worker; it is tried again, and seen.
            log.exception("bridge to rq failed by our own fault")
            state.problem = f"it failed by its own fault: {type(exc).__name__}"
            await asyncio.sleep(AWAY_S)
            continue
        state.problem = ""
        if not busy:
            await asyncio.sleep(POLL_S)
