"""arq's side: the worker's settings, and ``python arq_side.py JOBS IDLE``."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from measure import by_sixteen, measure, server_url

POLL_S = 0.005
"""Its default, half a second, would hide what it can do: both ends look every 5 ms instead."""


async def no_op(context: dict[str, Any], path: str) -> str:
    """The work."""
    return path


class WorkerSettings:
    functions = [no_op]  # noqa: RUF012 - as arq's documentation has it
    redis_settings = RedisSettings.from_dsn(server_url())
    poll_delay = POLL_S


async def main() -> None:
    """Measure."""
    pool = await create_pool(WorkerSettings.redis_settings)

    async def enqueue(paths: list[str]) -> list[Any]:
        made: list[Any] = await by_sixteen(paths, lambda path: pool.enqueue_job("no_op", path))
        return made

    async def read(job: Any) -> Any:
        return await job.result(timeout=60, poll_delay=POLL_S)

    await measure(enqueue, read)


if __name__ == "__main__":
    asyncio.run(main())
