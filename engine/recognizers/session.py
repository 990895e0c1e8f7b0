"""A recognizer's chunks, one run after another: see :class:`engine.stepping.Session`.

A run holds one chunk, or several that are alike where the recognizer takes batches. A cancellation takes effect
between two runs, and between two tokens of a recognizer that gives them one by one. What looks wrong (it repeats
itself) is tried again at the next temperature where the family has temperatures, as Whisper's decodes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine import spool, windows
from engine.protocol import ChunkDone, ChunkFailed, ChunkRequest
from engine.recognizers.families import Family, refusal
from engine.recognizers.recognizer import Heard, Item, Recognizer, Run
from engine.stepping import GivesWay, Kind, Outcome, StepPlan, never
from engine.whisper import audio, rules

MAX_COMPRESSION_RATIO = 2.4
"""Of a text that does not repeat itself (Whisper paper, section 4.5)."""

BATCH_S = 64.0
"""Seconds of audio in one run: bounds how long a cancellation waits."""


@dataclass(slots=True, eq=False)
class _Row:
    request: ChunkRequest
    item: Item
    attempt: int = 0


class RecognizerSession:
    """See the module's page. Lives on one thread, the one that loaded the model.

    :param bits: of each weight.
    """

    def __init__(self, recognizer: Recognizer, family: Family, bits: int) -> None:
        self._recognizer = recognizer
        self._family = family
        self._bits = bits
        self._arriving: list[ChunkRequest] = []
        self._waiting: list[_Row] = []
        self._rows: list[_Row] = []
        self._run: Run | None = None
        self._text = ""
        self._outcomes: list[Outcome] = []

    @property
    def busy(self) -> bool:
        """See :class:`engine.stepping.Session`."""
        return bool(self._arriving or self._waiting or self._rows)

    def add(self, chunks: Iterable[ChunkRequest]) -> None:
        """Let chunks join. What cannot be done is answered by the next :meth:`take`."""
        for chunk in chunks:
            reason = spool.refusal(
                chunk, languages=self._recognizer.languages, can_translate=False
            ) or refusal(self._family, chunk.options)
            if reason is None:
                self._arriving.append(chunk)
            else:
                self._fail(chunk, *reason, retryable=False)

    def cancel(self, ids: Iterable[str]) -> None:
        """Drop these chunks and answer for them; others' ids are passed over."""
        for request in self._leave(set(ids)):
            self._fail(request, "cancelled", "cancelled", retryable=False)

    def abandon(self) -> list[ChunkRequest]:
        """Drop all chunks and return them, unanswered."""
        return self._leave(None)

    def _leave(self, names: set[str] | None) -> list[ChunkRequest]:
        def goes(request: ChunkRequest) -> bool:
            return names is None or request.id in names

        gone = [request for request in self._arriving if goes(request)]
        gone += [row.request for row in [*self._waiting, *self._rows] if goes(row.request)]
        self._arriving = [request for request in self._arriving if not goes(request)]
        self._waiting = [row for row in self._waiting if not goes(row.request)]
        left = [row for row in self._rows if not goes(row.request)]
        if len(left) < len(self._rows):
            # A run is of all its rows: what is left of it begins anew.
            self._waiting = left + self._waiting
            self._end_run()
        return gone

    def take(self) -> list[Outcome]:
        """Outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def texts(self) -> list[tuple[ChunkRequest, str]]:
        """Text so far of the chunk that is being decoded, where the recognizer gives any before the end."""
        return [(self._rows[0].request, self._text)] if len(self._rows) == 1 and self._text else []

    def plan(self) -> StepPlan | None:
        """What :meth:`step` would do now; None when there is nothing left. Reads the chunks that arrived."""
        self._admit()
        if self._rows and self._run is not None:
            return _plan("decode", self._rows)
        rows = self._rows or self._next()
        return _plan("encode", rows) if rows else None

    def step(self, gives_way: GivesWay = never) -> bool:
        """Run one step: a token, or a whole run of a recognizer that gives none before its end. Gives way to nobody."""
        self._admit()
        if self._run is None:
            self._rows = self._next()
            if not self._rows:
                return True
            self._waiting = [row for row in self._waiting if row not in self._rows]
            self._run = self._recognizer.run([row.item for row in self._rows])
        try:
            self._text = next(self._run)
        except StopIteration as end:
            rows = self._rows
            self._end_run()
            for row, heard in zip(rows, end.value, strict=True):
                self._judge(row, heard)
        return True

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run, self._rows, self._text = None, [], ""

    def _admit(self) -> None:
        arriving, self._arriving = self._arriving, []
        for request in arriving:
            try:
                data = spool.read_spool(request.path, request.offset, request.samples)
            except spool.BadSpool as exc:
                self._fail(request, "bad_spool", str(exc), retryable=True)
                continue
            options = request.options
            cap = windows.token_cap(request.duration_s)
            cap = min(cap, options.max_tokens) if options.max_tokens is not None else cap
            self._waiting.append(_Row(request, Item.of(audio.from_pcm(data), options, cap)))

    def _next(self) -> list[_Row]:
        """The first that waits, and those that may share its run."""
        if not self._waiting:
            return []
        first = self._waiting[0]
        key = self._recognizer.alike(first.item)
        if key is None:
            return [first]
        limit = max(1, int(BATCH_S / first.request.duration_s))
        return [row for row in self._waiting if self._recognizer.alike(row.item) == key][:limit]

    def _judge(self, row: _Row, heard: Heard) -> None:
        options = row.request.options
        ratio = rules.compression_ratio(heard.text)
        following = row.attempt + 1
        again = "temperature" in self._family.options and following < len(options.temperatures)
        if ratio > MAX_COMPRESSION_RATIO and again:
            item = replace(row.item, temperature=options.temperatures[following])
            self._waiting.insert(0, _Row(row.request, item, following))
            return
        request = row.request
        self._outcomes.append(
            ChunkDone(
                chunk=request.id,
                job=request.job,
                text=heard.text,
                segments=heard.segments,
                language=heard.language,
                avg_logprob=heard.avg_logprob,
                no_speech_prob=None,
                compression_ratio=ratio,
                temperature=row.item.temperature,
                tokens=heard.tokens,
                window_s=request.duration_s,
                widened=False,
                bits=self._bits,
            )
        )

    def _fail(self, request: ChunkRequest, code: str, message: str, *, retryable: bool) -> None:
        self._outcomes.append(ChunkFailed(request.id, request.job, code, message, retryable))


def _plan(kind: Kind, rows: Sequence[_Row]) -> StepPlan:
    return StepPlan(
        kind,
        tuple(row.request.id for row in rows),
        tuple(row.request.job for row in rows),
        max(row.request.duration_s for row in rows),
    )
