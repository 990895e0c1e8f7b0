"""Connections with the time-outs that each use needs.

redis-py's defaults (a socket time-out of 5 s and ten retries) turn a blocking read of seven seconds
into a hang of sixty, and a retried write into two. So: ordinary commands have a time-out and no
retries, because the callers know what may be repeated; blocking reads have a connection of their
own, whose time-out exceeds the time for which the server may block.

Nobody here asks for maintenance notifications (redis-py 7 and later do by default): a server that knows
them may with one change the time-outs of a connection, or move it; every other server is asked once more
for each connection, in vain. A connection that the server ends is made again, whatever it ended for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis
    import redis.asyncio

CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 10.0
BLOCK_MARGIN_S = 5.0


def _no_notifications() -> dict[str, Any]:
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:
        # redis-py 6 has none.
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


def connect(url: str, *, max_connections: int = 16) -> redis.Redis:
    """A synchronous client for ordinary commands. Connects at the first command."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=COMMAND_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        **_no_notifications(),
    )
    return redis.Redis(connection_pool=pool)


def connect_async(
    url: str, *, max_connections: int = 16, timeout_s: float = COMMAND_TIMEOUT_S
) -> redis.asyncio.Redis:
    """An asyncio client for ordinary commands. Waits for a free connection rather than failing."""
    import redis.asyncio
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff

    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=timeout_s,
        retry=AsyncRetry(NoBackoff(), 0),
        health_check_interval=0,
        **_no_notifications(),
    )
    return redis.asyncio.Redis(connection_pool=pool)


def connect_blocking(url: str, *, block_s: float) -> redis.asyncio.Redis:
    """An asyncio client for reads that may block for up to ``block_s`` seconds; one connection."""
    client = connect_async(url, max_connections=1, timeout_s=block_s + BLOCK_MARGIN_S)
    # Options in the URL win over ours, and a time-out meant for ordinary commands would end every such read.
    client.connection_pool.connection_kwargs["socket_timeout"] = block_s + BLOCK_MARGIN_S
    return client


def connect_bell(url: str) -> Callable[[], Any]:
    """Makes unconnected synchronous connections for pub/sub, outside any pool."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # RESP2: messages arrive as plain replies, in the order in which they were sent.
    pool = redis.ConnectionPool.from_url(
        url,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=COMMAND_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        **_no_notifications(),
    )
    return lambda: pool.connection_class(**pool.connection_kwargs)


def connect_bell_async(url: str) -> Callable[[], Any]:
    """Makes unconnected asyncio connections for pub/sub, outside any pool."""
    import redis.asyncio
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff

    pool = redis.asyncio.ConnectionPool.from_url(
        url,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=COMMAND_TIMEOUT_S,
        retry=AsyncRetry(NoBackoff(), 0),
        health_check_interval=0,
        **_no_notifications(),
    )
    return lambda: pool.connection_class(**pool.connection_kwargs)
