"""Our side: ``python -m ops.bench.overhead.sides.our_side JOBS IDLE [PATH]``.

PATH is the recording that every job names, for a worker that really decodes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ops import stack
from ops.bench.overhead.sides.measure import measure, server_url
from queueing.client import Client
from queueing.job import Result

TIMEOUT_S = 60.0
MODEL = "tiny.en"


def main() -> None:
    """Measure with the client that blocks, as most do; one reader."""
    recording = sys.argv[3] if len(sys.argv) > 3 else None
    with Client(server_url(), queue=stack.QUEUE, model=MODEL) as client:

        async def enqueue(paths: list[str]) -> list[Any]:
            if len(paths) == 1:
                return [client.submit(recording or paths[0])]
            return list(client.submit_many([recording or path for path in paths]))

        async def read(job: Any) -> Result:
            if isinstance(job, Exception):
                raise job
            return client.result(job, timeout=TIMEOUT_S)

        asyncio.run(measure(enqueue, read))


if __name__ == "__main__":
    main()
