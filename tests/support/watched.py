"""A worker and its health server, asked from outside."""

from __future__ import annotations

import http.client
import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ops.embedded import EmbeddedServer
from queueing.connect import connect
from tests.support.worker_process import WorkerProcess

LANES = ("interactive", "normal", "bulk")


def fetch(address: str, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, content type, body."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type") or "", answer.read().decode()
    finally:
        connection.close()


def emptied(server: EmbeddedServer) -> None:
    with connect(server.url) as redis:
        redis.flushall()


class Watched:
    """A worker, and where it can be asked."""

    def __init__(self, worker: WorkerProcess, url: str) -> None:
        self.worker = worker
        self.url = url
        self.address = str(worker.health()["http"])

    def ready(self) -> tuple[int, dict[str, Any]]:
        status, _, body = fetch(self.address, "/readyz")
        return status, json.loads(body)

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(fetch(self.address, "/status")[2])
        return told

    def scrape(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Sample name to label values to value."""
        told: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(fetch(self.address, "/metrics")[2]):
            for sample in family.samples:
                told.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return told
