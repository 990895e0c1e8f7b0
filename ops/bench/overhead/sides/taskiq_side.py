"""taskiq's side: the broker, and ``python taskiq_side.py URL JOBS IDLE``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from measure import measure
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ.get("OVERHEAD_URL", "redis://127.0.0.1:6379")
POLL_S = 0.002
"""How often a reader looks for its result; the default is 0.2 s."""

backend: Any = RedisAsyncResultBackend(redis_url=URL, result_ex_time=3600)
broker = RedisStreamBroker(url=URL).with_result_backend(backend)


@broker.task
async def no_op(path: str) -> str:
    """The work."""
    return path


async def main() -> None:
    """Measure."""
    jobs, idle = int(sys.argv[2]), int(sys.argv[3])
    await broker.startup()

    async def enqueue(paths: list[str]) -> list[Any]:
        made = []
        for start in range(0, len(paths), 16):
            made += await asyncio.gather(*(no_op.kiq(path) for path in paths[start : start + 16]))
        return made

    async def read(task: Any) -> Any:
        result = await task.wait_result(check_interval=POLL_S, timeout=60)
        result.raise_for_error()
        return result.return_value

    await measure(enqueue, read, jobs, idle)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
