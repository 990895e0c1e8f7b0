from __future__ import annotations

import pytest
import redis

from tests.support.bench import Bench


@pytest.fixture
def bench(queue_redis: redis.Redis) -> Bench:
    return Bench(queue_redis)
