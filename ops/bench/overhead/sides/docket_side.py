"""docket's side: the tasks, and ``python docket_side.py URL JOBS IDLE``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from docket import Docket
from measure import measure

NAME = "overhead"


async def no_op(path: str) -> str:
    """The work."""
    return path


tasks = [no_op]


async def main() -> None:
    """Measure."""
    url, jobs, idle = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    async with Docket(name=NAME, url=url) as docket:
        docket.register(no_op)

        async def enqueue(paths: list[str]) -> list[Any]:
            made = []
            for start in range(0, len(paths), 16):
                made += await asyncio.gather(*(docket.add(no_op)(path) for path in paths[start : start + 16]))
            return made

        async def read(execution: Any) -> Any:
            return await execution.get_result()

        await measure(enqueue, read, jobs, idle)


if __name__ == "__main__":
    asyncio.run(main())
