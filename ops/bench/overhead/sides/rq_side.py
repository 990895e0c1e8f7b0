"""RQ's side: the job, and ``python -m ops.bench.overhead.sides.rq_side JOBS IDLE``."""

from __future__ import annotations

import asyncio
from typing import Any

from ops.bench.overhead.sides.measure import measure, server_url

QUEUE = "overhead"
NO_OP = "ops.bench.overhead.sides.rq_side.no_op"
"""By name: run as a program, this module has another."""
TIMEOUT_S = 60


def no_op(path: str) -> str:
    """The work."""
    return path


def main() -> None:
    """Measure, one reader: RQ's client blocks."""
    import redis
    from rq import Queue

    queue = Queue(QUEUE, connection=redis.Redis.from_url(server_url()))

    async def enqueue(paths: list[str]) -> list[Any]:
        if len(paths) == 1:
            return [queue.enqueue(NO_OP, paths[0])]
        made: list[Any] = queue.enqueue_many([Queue.prepare_data(NO_OP, (path,)) for path in paths])
        return made

    async def read(job: Any) -> Any:
        result = job.latest_result(timeout=TIMEOUT_S)
        if result is None or result.type.name != "SUCCESSFUL":
            raise ValueError(f"no result of {job.id}")
        return result.return_value

    asyncio.run(measure(enqueue, read))


if __name__ == "__main__":
    main()
