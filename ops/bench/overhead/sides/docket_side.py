"""docket's side: the tasks, and ``python docket_side.py JOBS IDLE``."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from docket import Docket
from measure import by_sixteen, measure, server_url

NAME = "overhead"
TIMEOUT = timedelta(seconds=60)


async def no_op(path: str) -> str:
    """The work."""
    return path


tasks = [no_op]


async def main() -> None:
    """Measure."""
    async with Docket(name=NAME, url=server_url()) as docket:
        docket.register(no_op)

        async def enqueue(paths: list[str]) -> list[Any]:
            made: list[Any] = await by_sixteen(paths, docket.add(no_op))
            return made

        async def read(execution: Any) -> Any:
            return await execution.get_result(timeout=TIMEOUT)

        await measure(enqueue, read)


if __name__ == "__main__":
    asyncio.run(main())
