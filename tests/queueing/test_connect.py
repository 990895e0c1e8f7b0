"""What our connections ask of a server before the first command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from ops.embedded import EmbeddedServer
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


@pytest.fixture(scope="module")
def tcp_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a TCP port: over a unix socket redis-py asks for no notifications anyway."""
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as server:
        yield server.url


@pytest.mark.parametrize("ping", KINDS, ids=lambda kind: kind.__name__.removeprefix("with_"))
def test_no_connection_asks_for_maintenance_notifications(ping: Callable[[str], None], tcp_url: str) -> None:
    """No connection that we make asks for what few servers know: the others would count one refusal for each."""
    with redis.Redis.from_url(tcp_url, protocol=2) as observer:
        refused = observer.info("stats")["total_error_replies"]
        ping(tcp_url)
        assert observer.info("stats")["total_error_replies"] == refused


def test_a_connection_as_the_library_makes_it_asks(tcp_url: str) -> None:
    """What the test above counts is there to be counted, with this version of redis-py."""
    with redis.Redis.from_url(tcp_url, protocol=2) as observer, redis.Redis.from_url(tcp_url) as usual:
        refused = observer.info("stats")["total_error_replies"]
        usual.ping()
        assert observer.info("stats")["total_error_replies"] == refused + 1
