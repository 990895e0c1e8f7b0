"""arq's side: the worker's settings, and ``python arq_side.py URL JOBS IDLE``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from measure import measure

POLL_S = 0.005
"""Its default, half a second, would hide what it can do: both ends look every 5 ms instead."""


async def no_op(context: dict[str, Any], path: str) -> str:
    """The work."""
    return path


class WorkerSettings:
    functions = [no_op]  # noqa: RUF012 - as arq's documentation has it
    redis_settings = RedisSettings.from_dsn(os.environ.get("OVERHEAD_URL", "redis://127.0.0.1:6379"))
    poll_delay = POLL_S


async def main() -> None:
    """Measure."""
    url, jobs, idle = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def enqueue(paths: list[str]) -> list[Any]:
        made = []
        for start in range(0, len(paths), 16):
            made += await asyncio.gather(*(pool.enqueue_job("no_op", p) for p in paths[start : start + 16]))
        return made

    async def read(job: Any) -> Any:
        return await job.result(timeout=60, poll_delay=POLL_S)

    await measure(enqueue, read, jobs, idle)


if __name__ == "__main__":
    asyncio.run(main())
