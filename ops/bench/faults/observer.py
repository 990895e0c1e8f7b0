"""Watches jobs from outside: its own connection, plain reads, no script, nothing that a worker or a client keeps.

How a second end of a job is noticed, each by itself enough:

- its hash is compared with the first outcome seen, every few seconds and at the end: state, time, result or error,
  to the byte;
- every end rings the job's bell once, and a subscription to all bells counts the rings;
- every end appends one event to the job's stream, which is read when the end is first seen and at the very end;
- every end raises a counter by its state, and the sum of these must be the number of jobs that ended.

What would escape: a second end that a restart of the server undoes before anybody reads it; and one written
around the script with the same bytes, without bell, event and counter.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import RedisError

from queueing.connect import connect, connect_bell
from queueing.events import FINAL
from queueing.job import LANES, Result
from queueing.keys import GROUP, Keys

POLL_S = 0.2
SWEEP_S = 3.0
"""Seconds between two comparisons of everything that has ended."""
PAUSE_S = 0.05
FIELDS = ("state", "finished", "result", "error", "attempt")


@dataclass(frozen=True, slots=True)
class Outcome:
    """An end as it was read."""

    state: str
    finished_ms: int
    digest: str
    """Of the result or the error, to the byte."""


@dataclass(slots=True)
class Seen:
    """All that is known of one job."""

    clip: int
    outcome: Outcome | None = None
    """The first one seen."""
    others: set[Outcome] = field(default_factory=set)
    """Later ones that differ from it."""
    text: str | None = None
    rings: int = 0
    ends: int = 0
    """Final events in its stream."""
    starts: dict[int, int] = field(default_factory=dict)
    """Attempt: Unix milliseconds of the server's clock at which it was delivered."""
    vanished: bool = False
    forgotten: int = 0
    """How often it was found unfinished, or missing, after its end had been seen."""

    @property
    def duplicated(self) -> bool:
        return bool(self.others) or self.rings > 1 or self.ends > 1


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery in a worker's hands when a fault struck."""

    job: str
    attempt: int


class Observer:
    """Two threads, from :meth:`start` to :meth:`stop`. ``url`` leads straight to the server."""

    def __init__(self, url: str, keys: Keys, model: str) -> None:
        self._url = url
        self._redis = connect(url)
        self._keys = keys
        self._streams = [keys.stream(model, lane.value) for lane in LANES]
        self._jobs: dict[str, Seen] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(work,), name=name, daemon=True)
            for name, work in (("poll", self._poll), ("bells", self._listen))
        ]
        self.last_end = time.monotonic()
        """When something was last seen to end."""

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Safe twice, safe before the start."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(15)
        self._redis.close()

    def _keep(self, work: Callable[[], None]) -> None:
        """A server that is away is part of the script."""
        while not self._stop.is_set():
            try:
                work()
            except (RedisError, OSError):
                self._stop.wait(PAUSE_S)

    # --- what the rest of the bench asks ----------------------------------------------------------

    def expect(self, job: str, clip: int) -> None:
        """The server has admitted this job."""
        with self._lock:
            self._jobs[job] = Seen(clip)

    @property
    def jobs(self) -> dict[str, Seen]:
        with self._lock:
            return dict(self._jobs)

    @property
    def open(self) -> int:
        """Jobs whose end has not been seen."""
        return sum(1 for seen in self.jobs.values() if seen.outcome is None)

    def in_flight(self, consumer: str | None = None) -> tuple[Held, ...]:
        """Deliveries pending for a worker, or for anybody; none where the server does not answer."""
        try:
            rows = [
                (stream, row["message_id"])
                for stream in self._streams
                for row in self._pending(stream)
                if consumer is None or _belongs(row["consumer"].decode(), consumer)
            ]
            return self._held(rows)
        except (RedisError, OSError):
            return ()

    def _pending(self, stream: str) -> list[dict[str, Any]]:
        if not self._redis.exists(stream):
            return []
        rows: list[dict[str, Any]] = self._redis.xpending_range(stream, GROUP, "-", "+", 1000)
        return rows

    def _held(self, rows: Sequence[tuple[str, bytes]]) -> tuple[Held, ...]:
        with self._redis.pipeline(transaction=False) as pipe:
            for stream, entry in rows:
                pipe.xrange(stream, entry, entry)
            jobs = [found[0][1][b"job"].decode() for found in pipe.execute() if found]
            for job in jobs:
                pipe.hget(self._keys.job(job), "attempt")
            attempts = pipe.execute() if jobs else []
        return tuple(Held(job, int(attempt or 0)) for job, attempt in zip(jobs, attempts, strict=True))

    def pending_left(self) -> int:
        """Deliveries pending now."""
        return sum(len(self._pending(stream)) for stream in self._streams)

    def health(self, consumer: str) -> bytes | None:
        """What a worker says of itself, or None where it, or the server, says nothing."""
        try:
            said: Any = self._redis.get(self._keys.worker(consumer))
        except (RedisError, OSError):
            return None
        return bytes(said) if said else None

    def counted_ends(self) -> int:
        """Ends by the server's counters."""
        counts: Any = self._redis.hgetall(self._keys.counts)
        return sum(int(value) for name, value in counts.items() if name.decode() in FINAL)

    def look_at_everything(self) -> None:
        """The last word: every job's hash and stream. Raises RedisError."""
        self._look(self.jobs, streams=True)

    # --- reading ----------------------------------------------------------------------------------

    def _poll(self) -> None:
        swept = time.monotonic()
        while not self._stop.wait(POLL_S):
            jobs = self.jobs
            self._look({job: seen for job, seen in jobs.items() if seen.outcome is None})
            if time.monotonic() - swept > SWEEP_S:
                self._look({job: seen for job, seen in jobs.items() if seen.outcome is not None})
                swept = time.monotonic()

    def _look(self, jobs: dict[str, Seen], *, streams: bool = False) -> None:
        names = list(jobs)
        for start in range(0, len(names), 500):
            part = names[start : start + 500]
            with self._redis.pipeline(transaction=False) as pipe:
                for job in part:
                    pipe.hmget(self._keys.job(job), FIELDS)
                read = pipe.execute()
            with self._lock:
                ended = [job for job, values in zip(part, read, strict=True) if self._note(jobs[job], values)]
            self._read_streams(part if streams else ended)

    def _note(self, seen: Seen, values: Sequence[bytes | None]) -> bool:
        """Compare what is there with what was; True where this is the first sight of an end."""
        state = (values[0] or b"").decode()
        seen.vanished = not state
        if state not in FINAL:
            seen.forgotten += seen.outcome is not None
            return False
        body = values[2] or values[3] or b""
        outcome = Outcome(state, int(values[1] or 0), hashlib.sha256(body).hexdigest())
        if seen.outcome is None:
            seen.outcome = outcome
            seen.text = Result.model_validate_json(body).text if state == "done" else None
            self.last_end = time.monotonic()
            return True
        if outcome != seen.outcome:
            seen.others.add(outcome)
        return False

    def _read_streams(self, jobs: Iterable[str]) -> None:
        names = list(jobs)
        if not names:
            return
        with self._redis.pipeline(transaction=False) as pipe:
            for job in names:
                pipe.xrange(self._keys.events(job))
            read = pipe.execute()
        with self._lock:
            for job, events in zip(names, read, strict=True):
                self._note_events(self._jobs[job], events)

    @staticmethod
    def _note_events(seen: Seen, events: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        kinds = [fields[b"type"].decode() for _, fields in events]
        # A stream is gone a minute after the end: what was read before stays true.
        seen.ends = max(seen.ends, sum(kind in FINAL for kind in kinds))
        for (entry, fields), kind in zip(events, kinds, strict=True):
            if kind == "started":
                seen.starts.setdefault(int(fields[b"attempt"]), int(entry.split(b"-")[0]))

    def _listen(self) -> None:
        connection = connect_bell(self._url)()
        try:
            connection.connect()
            connection.send_command("PSUBSCRIBE", self._keys.bell("*"))
            while not self._stop.is_set():
                if connection.can_read(timeout=0.5):
                    self._heard(connection.read_response())
        finally:
            connection.disconnect()

    def _heard(self, message: Sequence[Any]) -> None:
        if message[0] != b"pmessage" or message[3].partition(b" ")[0].decode() not in FINAL:
            return
        job = message[2].decode().rpartition(":")[2]
        with self._lock:
            if job in self._jobs:
                self._jobs[job].rings += 1


def _belongs(consumer: str, name: str) -> bool:
    """A worker that found its name taken has added a number to it."""
    return consumer == name or consumer.startswith(f"{name}-")
