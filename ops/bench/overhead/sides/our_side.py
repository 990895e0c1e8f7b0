"""Our side: ``python -m ops.bench.overhead.sides.our_side JOBS IDLE [PATH]``.

PATH is the recording that every job names, for a worker that really decodes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ops import stack
from ops.bench.overhead.sides.measure import by_sixteen, measure, server_url
from queueing.client import AsyncClient
from queueing.job import Result

TIMEOUT_S = 60.0
MODEL = "tiny.en"


def main() -> None:
    """Measure with the asyncio client and a call for each job, as arq, taskiq and docket are measured."""
    asyncio.run(_measure(sys.argv[3] if len(sys.argv) > 3 else None))


async def _measure(recording: str | None) -> None:
    async with AsyncClient(server_url(), queue=stack.QUEUE, model=MODEL) as client:

        async def enqueue(paths: list[str]) -> list[Any]:
            made: list[Any] = await by_sixteen(paths, lambda path: client.submit(recording or path))
            return made

        async def read(job: Any) -> Result:
            return await client.result(job, timeout=TIMEOUT_S)

        await measure(enqueue, read)


if __name__ == "__main__":
    main()
