"""A stand-in for a worker that plays by a script, and the environment of a user without settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from queueing.connect import connect
from queueing.job import WIRE_VERSION, ErrorInfo, Result, Segment, Timings
from queueing.protocol import Delivery, Queue
from queueing.scripts import run

HELLO = Result(
    text="Hello there.",
    segments=(Segment(start=0.0, end=1.25, text="Hello there."),),
    language="en",
    duration_s=1.5,
    speech_s=1.25,
    timings=Timings(queued=0.1, media=0.2, waiting=0.3, engine=0.4, total=1.0),
)


Answer = Callable[[Delivery], tuple[str, str]]
"""What becomes of a delivery: the outcome's name and its body."""


@dataclass
class StandIn:
    """Takes jobs of one model as a worker does, and answers each as it is told."""

    url: str
    queue: Queue
    answer: Answer = lambda delivery: ("done", HELLO.model_dump_json())
    taken: list[Delivery] = field(default_factory=list)

    def serve(self, stop: threading.Event) -> None:
        streams = [("tiny.en", lane) for lane in ("interactive", "normal", "bulk")]
        with connect(self.url) as redis:
            while not stop.wait(0.01):
                for delivery in run(
                    redis, self.queue.take("stand-in", "stand-in#1", 8, streams, wire=WIRE_VERSION)
                ).deliveries:
                    self.taken.append(delivery)
                    outcome, body = self.answer(delivery)
                    run(redis, self.queue.settle(delivery, outcome, body))  # type: ignore[arg-type]


def failed(code: str) -> Answer:
    return lambda delivery: ("failed", ErrorInfo(code=code, message="no such file").model_dump_json())


def clean_environment(**extra: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DECIBATCH_")}
    return {**env, "DECIBATCH_CONFIG": "", "NO_COLOR": "1", **extra}
