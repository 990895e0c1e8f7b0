"""What our connections ask of a server before the first command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from queueing.connect import connect, connect_async, connect_bell, connect_bell_async, connect_blocking


def with_connect(url: str) -> None:
    with connect(url) as client:
        client.ping()


def with_connect_async(url: str) -> None:
    asyncio.run(_ping(lambda: connect_async(url)))


def with_connect_blocking(url: str) -> None:
    asyncio.run(_ping(lambda: connect_blocking(url, block_s=1.0)))


def with_connect_bell(url: str) -> None:
    connection = connect_bell(url)()
    connection.connect()
    connection.disconnect()


def with_connect_bell_async(url: str) -> None:
    async def run() -> None:
        connection = connect_bell_async(url)()
        await connection.connect()
        await connection.disconnect()

    asyncio.run(run())


async def _ping(make: Callable[[], Any]) -> None:
    client = make()
    await client.ping()
    await client.aclose()


KINDS = [with_connect, with_connect_async, with_connect_blocking, with_connect_bell, with_connect_bell_async]


@pytest.mark.parametrize("ping", KINDS, ids=lambda kind: kind.__name__.removeprefix("with_"))
def test_no_connection_asks_for_maintenance_notifications(
    ping: Callable[[str], None], redis_url: str
) -> None:
    """None of the connections that we make asks for what a server may then change behind our back."""
    with redis.Redis.from_url(redis_url, protocol=2) as observer, observer.monitor() as monitor:
        said = monitor.listen()
        ping(redis_url)
        with redis.Redis.from_url(redis_url, protocol=2) as last:
            last.echo("the last one")
        commands = []
        for one in said:
            commands.append(one["command"].upper())
            if "THE LAST ONE" in commands[-1]:
                break
    assert any(command.startswith(("PING", "CLIENT SETINFO")) for command in commands)
    assert not [command for command in commands if "MAINT_NOTIFICATIONS" in command]
