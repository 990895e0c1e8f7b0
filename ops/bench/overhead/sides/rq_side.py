"""RQ's side: the job, and ``python -m ops.bench.overhead.sides.rq_side URL JOBS IDLE``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ops.bench.overhead.sides.measure import measure

QUEUE = "overhead"
TIMEOUT_S = 60


def no_op(path: str) -> str:
    """The work."""
    return path


def main() -> None:
    """Measure, one reader: RQ's client blocks."""
    import redis
    from rq import Queue

    url, jobs, idle = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    queue = Queue(QUEUE, connection=redis.Redis.from_url(url))

    async def enqueue(paths: list[str]) -> list[Any]:
        if len(paths) == 1:
            return [queue.enqueue(no_op, paths[0])]
        made: list[Any] = queue.enqueue_many([Queue.prepare_data(no_op, (path,)) for path in paths])
        return made

    async def read(job: Any) -> Any:
        result = job.latest_result(timeout=TIMEOUT_S)
        if result is None or result.type.name != "SUCCESSFUL":
            raise ValueError(f"no result of {job.id}")
        return result.return_value

    asyncio.run(measure(enqueue, read, jobs, idle))


if __name__ == "__main__":
    main()
