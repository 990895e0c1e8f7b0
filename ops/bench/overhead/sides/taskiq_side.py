"""taskiq's side: the broker, and ``python taskiq_side.py JOBS IDLE``."""

from __future__ import annotations

import asyncio
from typing import Any

from measure import by_sixteen, measure, server_url
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = server_url()
POLL_S = 0.002
"""How often a reader looks for its result; the default is 0.2 s."""

backend: Any = RedisAsyncResultBackend(redis_url=URL, result_ex_time=3600)
broker = RedisStreamBroker(url=URL).with_result_backend(backend)


@broker.task(task_name="no_op")  # type: ignore[untyped-decorator]
async def no_op(path: str) -> str:
    """The work."""
    return path


async def main() -> None:
    """Measure."""
    await broker.startup()

    async def enqueue(paths: list[str]) -> list[Any]:
        made: list[Any] = await by_sixteen(paths, no_op.kiq)
        return made

    async def read(task: Any) -> Any:
        result = await task.wait_result(check_interval=POLL_S, timeout=60)
        result.raise_for_error()
        return result.return_value

    await measure(enqueue, read)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
