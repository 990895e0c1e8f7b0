"""A running batch of chunks, advanced one step at a time.

``step()`` makes one call to the encoder or one to the decoder, so that a cancellation takes effect between two
of them, and rows join and leave at any step. A row holds one of a bounded number of slots from its encoder step to
its end; the next one that waits takes it in the step after. While rows are decoded, encoder steps are small and
come between decoder steps. Urgent chunks run in a batch of their own, and have most of the time while there are any:
a long file does not slow a short one down (:class:`engine.stepping.Schedule`). A call to the encoder over other chunks
gives way where it can be interrupted, to what has arrived and to urgent chunks; further steps go on with it. What a row
gives depends on its chunk and options alone (invariant I8): rows are never padded against each other, windows come from
the chunk's own duration, and sampling is seeded by the chunk's own samples.

A chunk takes one row or more: a decode that looks wrong is tried again in a window of 30 s, then at higher
temperatures; a decode that ends before its audio does is followed by another over the rest.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from engine import spool, windows
from engine.protocol import ChunkDone, ChunkFailed, ChunkRequest, DecodeOptions
from engine.stepping import GivesWay, Kind, Outcome, Schedule, StepPlan, always, never
from engine.whisper import aligning, audio, rules, transcript
from engine.whisper.encoder_call import EncoderCall
from engine.whisper.lanes import Lane, spend, wake
from engine.whisper.model import Whisper
from engine.whisper.rows import Row, Task, search_of, tried_again
from engine.whisper.search import MAX_BEAM, MAX_BEST_OF
from engine.whisper.tokenizer import Tokenizer, TooManyHotWords

MAX_COMPRESSION_RATIO = 2.4
MIN_AVG_LOGPROB = -1.0
MAX_NO_SPEECH_PROB = 0.6
"""Thresholds of the Whisper paper, section 4.5."""

FORESEEN = 8
"""Rows whose spectrograms may be ready before their turn: a megabyte and some 20 ms each."""


class WhisperSession:
    """See the module's page. Lives on one thread, the one that loaded the model.

    :param model: on the device.
    :param tokenizer: of the same folder.
    :param window_frames: encoder frames of the window of a chunk of so many seconds. Others than the default are for
        measurements and comparisons.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        model: Whisper,
        tokenizer: Tokenizer,
        schedule: Schedule | None = None,
        window_frames: Callable[[float], int] = windows.window_frames,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._window_frames = window_frames
        self._rules = rules.LogitRules(tokenizer)
        self._heads = model.alignment_heads
        self._schedule = schedule or Schedule()
        self._clock = clock
        self._arriving: list[ChunkRequest] = []
        self._urgent, self._patient = self._lanes = (Lane(urgent=True), Lane(urgent=False))
        self._outcomes: list[Outcome] = []
        # It never calls MLX, whose streams belong to a thread.
        self._features = ThreadPoolExecutor(1, thread_name_prefix="features")

    # --- joining and leaving -------------------------------------------------------------

    def add(self, chunks: Iterable[ChunkRequest]) -> None:
        """Let chunks join. What cannot be done is answered by the next :meth:`take`."""
        for chunk in chunks:
            reason = spool.refusal(
                chunk, languages=self.tokenizer.languages, can_translate=self.tokenizer.multilingual
            ) or self._refusal(chunk.options)
            if reason is None:
                self._arriving.append(chunk)
            else:
                self._outcomes.append(ChunkFailed(chunk.id, chunk.job, *reason, retryable=False))

    def _refusal(self, options: DecodeOptions) -> tuple[str, str] | None:
        if not 1 <= options.beam_size <= MAX_BEAM or not 1 <= options.best_of <= MAX_BEST_OF:
            return "unsupported_option", f"beam_size lies in 1..{MAX_BEAM}, best_of in 1..{MAX_BEST_OF}"
        try:
            self._context(options)
        except TooManyHotWords as exc:
            return "unsupported_option", str(exc)
        return None

    def _context(self, options: DecodeOptions) -> list[int]:
        """Tokens before the transcript. :raises TooManyHotWords: see :meth:`Tokenizer.context`."""
        return self.tokenizer.context(options.prompt, options.hot_words, self.model.dims.n_text_ctx // 2 - 1)

    def cancel(self, ids: Iterable[str]) -> None:
        """Drop the rows of these chunks and answer for them; others' ids are passed over."""
        names = set(ids)
        for request in self._leave(names):
            self._outcomes.append(
                ChunkFailed(request.id, request.job, "cancelled", "cancelled", retryable=False)
            )

    def abandon(self) -> list[ChunkRequest]:
        """Drop all rows and return their chunks, unanswered."""
        return self._leave(None)

    def take(self) -> list[Outcome]:
        """Outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    @property
    def busy(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return bool(self._arriving or any(lane.rows for lane in self._lanes))

    def texts(self) -> list[tuple[ChunkRequest, str]]:
        """Text so far of each chunk that is being decoded."""
        found = []
        for row in (row for lane in self._lanes for row in lane.running):
            tokens = list(row.search.best().tokens) if row.search is not None else []
            so_far = "".join(segment.text for segment in row.task.segments) + self.tokenizer.decode(tokens)
            # A character may still lack some of its bytes.
            found.append((row.task.request, so_far.rstrip("\ufffd").strip()))
        return found

    def _leave(self, names: set[str] | None) -> list[ChunkRequest]:
        """Take out the chunks with these names, or all of them."""

        def goes(request: ChunkRequest) -> bool:
            return names is None or request.id in names

        gone = [request for request in self._arriving if goes(request)]
        self._arriving = [request for request in self._arriving if not goes(request)]
        for lane in self._lanes:
            gone += [row.task.request for row in lane.rows if goes(row.task.request)]
            lane.drop(lambda row: goes(row.task.request))
        return gone

    # --- stepping --------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """What :meth:`step` would do now; None when there is nothing left. Reads the chunks that arrived."""
        self._admit()
        found = self._turn()
        return self._plan(*found) if found else None

    def step(self, gives_way: GivesWay = never) -> bool:
        """Run one step. Outcomes wait for :meth:`take`.

        :param gives_way: whether what has arrived waits: may interrupt the encoder.
        :returns: whether it is done: see :class:`engine.stepping.Session`.
        :raises Exception: what MLX raises; the session is then good for :meth:`abandon` alone.
        """
        self._admit()
        found = self._turn()
        if found is None:
            return True
        lane, kind, rows = found
        self._foresee(rows)
        began = self._clock()
        done = True
        if kind == "encode":
            done = self._encode(lane, rows, gives_way)
        else:
            self._decode(lane, kind, rows)
        spend(self._clock() - began, lane, self._lanes)
        return done

    def _foresee(self, now: list[Row]) -> None:
        """Have the spectrograms of the rows that are next made beside the step of those of *now*."""
        waiting = (row for lane in self._lanes for row in lane.waiting if row not in now)
        for row in itertools.islice(waiting, FORESEEN):
            row.task.foresee(self._features, self.model.dims.n_mels)

    def _turn(self) -> tuple[Lane, Kind, list[Row]] | None:
        """The lane whose turn it is, and what it does. A lane that waits for the other's slots lets it pass."""
        share = self._schedule.patient_share
        spent = self._urgent.seconds + self._patient.seconds
        first = self._patient if self._patient.seconds < share * spent else self._urgent
        for lane in sorted(self._lanes, key=lambda one: one is not first):
            work = self._work(lane)
            if work is not None:
                return lane, *work
        return None

    def _work(self, lane: Lane) -> tuple[Kind, list[Row]] | None:
        """What a lane's next step is, over which of its rows."""
        if lane.encoding is not None:
            return "encode", lane.encoding.rows
        if encoding := self._next_to_encode(lane):
            return "encode", encoding
        if undetected := [row for row in lane.encoded if row.task.language is None]:
            return "detect", undetected
        if lane.aligning:
            return "align", lane.aligning[: aligning.MAX_ROWS]
        rows = self._next_to_open(lane) or lane.running
        return ("decode", rows) if rows else None

    def _decode(self, lane: Lane, kind: Kind, rows: list[Row]) -> None:
        lane.decoder_steps += 1
        if kind == "detect":
            self._detect(lane, rows)
        elif kind == "align":
            self._align(lane, rows)
        elif rows is lane.running:
            self._advance(lane)
        else:
            self._open(lane, rows)

    def _lane(self, task: Task) -> Lane:
        return self._urgent if task.request.urgent else self._patient

    def _plan(self, lane: Lane, kind: Kind, rows: Sequence[Row]) -> StepPlan:
        return StepPlan(
            kind,
            tuple(row.task.request.id for row in rows),
            tuple(row.task.request.job for row in rows),
            max(row.window_s for row in rows),
            audio_s=sum(min(row.length_s, row.window_s) for row in rows),
            padded_s=sum(row.window_s for row in rows),
            slots=self._schedule.slots,
            waiting=sum(len(one.waiting) for one in self._lanes),
            begun=lane.encoding is not None,
        )

    def _admit(self) -> None:
        arriving, self._arriving = self._arriving, []
        for request in arriving:
            try:
                data = spool.read_spool(request.path, request.offset, request.samples)
            except spool.BadSpool as exc:
                self._outcomes.append(
                    ChunkFailed(request.id, request.job, "bad_spool", str(exc), retryable=True)
                )
                continue
            language = request.options.language if self.tokenizer.multilingual else "en"
            task = Task(request, audio.from_pcm(data), language, self._context(request.options))
            lane = self._lane(task)
            if lane is self._patient and not lane.rows:
                wake(lane, self._urgent, self._schedule.patient_share)
            lane.waiting.append(self._row(task, 0))

    def _row(self, task: Task, start: int, tail: bool = False) -> Row:
        rest_s = max(0.0, task.request.duration_s - start / audio.MEL_FRAMES_PER_SECOND)
        window = self._window_frames(rest_s)
        if start == 0:
            task.window_s = window / windows.FRAMES_PER_SECOND
        cap = windows.token_cap(rest_s)
        asked = task.request.options.max_tokens
        left = math.inf if asked is None else asked - task.tokens
        return Row(task, start, window, int(min(cap, left)), cap_is_asked=left <= cap, tail=tail)

    def _next_to_encode(self, lane: Lane) -> list[Row]:
        """Waiting rows for the encoder's turn, if it is its turn: those that came first, as many as it may hold."""
        schedule = self._schedule
        held = [row for one in self._lanes for row in one.held]
        free = schedule.slots - sum(row.width for row in held)
        if lane.urgent and lane.running and lane.decoder_steps < schedule.decode_steps:
            return []
        beside = lane.running or self._urgent.running
        alone_s = schedule.encode_s if lane.urgent else schedule.patient_s
        limit_s = schedule.encode_beside_s if beside else alone_s
        rows: list[Row] = []
        for row in lane.waiting:
            if rows and sum(other.window_s for other in rows) + row.window_s > limit_s:
                break
            # A search wider than there are slots must be able to run, by itself.
            if row.width > free and (rows or held):
                break
            free -= row.width
            rows.append(row)
        return rows

    def _encode(self, lane: Lane, rows: list[Row], gives_way: GivesWay) -> bool:
        """Begin a call of the encoder or go on with it, until it is done or gives way. Returns whether it is done."""
        if lane.encoding is None:
            lane.encoding = EncoderCall(self.model, rows)
            lane.waiting = [row for row in lane.waiting if row not in rows]
        if not lane.encoding.advance(self._who_waits(lane, gives_way)):
            return False
        lane.encoded += lane.encoding.rows
        lane.encoding = None
        lane.decoder_steps = 0
        return True

    def _who_waits(self, lane: Lane, gives_way: GivesWay) -> GivesWay:
        """For which others a lane gives way. Urgent chunks do for nobody. Others do for urgent ones, after as little as
        can be done, and for what has arrived, which may hold some."""
        if lane.urgent:
            return never
        return always if self._work(self._urgent) is not None else gives_way

    def _detect(self, lane: Lane, rows: list[Row]) -> None:
        """The likeliest language token after the start (Whisper's ``detect_language``)."""
        cache = self.model.cache([row.features for row in rows])
        logits = self.model.decode([[self.tokenizer.sot]] * len(rows), cache, [0])[:, 0]
        codes = list(self.tokenizer.language_tokens)
        columns = np.array([self.tokenizer.language_tokens[code] for code in codes])
        for row, scores in zip(rows, logits[:, columns], strict=True):
            if not np.isfinite(scores).all():
                lane.encoded.remove(row)
                self._fail_numeric(row)
                continue
            row.task.language = codes[int(scores.argmax())]

    def _next_to_open(self, lane: Lane) -> list[Row]:
        """Encoded rows whose opening tokens are as many as the first one's, so that none is padded."""
        for row in lane.encoded:
            if not row.opening:
                options = row.task.request.options
                start = self.tokenizer.start(row.task.language or "en", options.task, options.timestamps)
                row.opening = row.task.prompt + start
                row.cap = max(1, min(row.cap, self.model.dims.n_text_ctx - len(row.opening)))
        shapes = [(len(row.opening), len(row.task.prompt)) for row in lane.encoded]
        return [row for row, shape in zip(lane.encoded, shapes, strict=True) if shape == shapes[0]]

    def _open(self, lane: Lane, rows: list[Row]) -> None:
        """First decoder call of rows: their opening tokens at once. They then join the running batch."""
        cache = self.model.cache([row.features for row in rows])
        sot = len(rows[0].task.prompt)
        at = sorted({sot, len(rows[0].opening) - 1})
        logits = self.model.decode([row.opening for row in rows], cache, at)
        lane.encoded = [row for row in lane.encoded if row not in rows]
        held = sum(len(row.lines) for row in lane.running)
        if lane.cache is None:
            lane.cache = cache
        else:
            lane.cache.append(cache)
        going, index = list(lane.running), list(range(held))
        for i, row in enumerate(rows):
            try:
                row.no_speech_prob = rules.probability(logits[i, 0], self.tokenizer.no_speech)
            except rules.NumericFailure:
                self._fail_numeric(row)
                continue
            row.search = search_of(row, self._rules, self.tokenizer.eot)
            parents = self._choose(row, logits[i, -1:])
            if parents:
                going.append(row)
                index += [held + i] * len(parents)
        lane.keep(going, index, held + len(rows))

    def _advance(self, lane: Lane) -> None:
        """One token for every line of every running row."""
        assert lane.cache is not None
        tokens = [[line.tokens[-1]] for row in lane.running for line in row.lines]
        logits = self.model.decode(tokens, lane.cache, [0])[:, 0]
        going: list[Row] = []
        index: list[int] = []
        at = 0
        for row in lane.running:
            stop = at + len(row.lines)
            parents = self._choose(row, logits[at:stop])
            if parents:
                going.append(row)
                index += [at + parent for parent in parents]
            at = stop
        lane.keep(going, index, at)

    def _choose(self, row: Row, logits: rules.FloatArray) -> tuple[int, ...]:
        """Give each line of a row its next token. Returns the lines that those which go on come from."""
        assert row.search is not None
        try:
            parents = row.search.advance(logits)
        except rules.NumericFailure:
            self._fail_numeric(row)
            return ()
        if not parents:
            row.line, row.search = row.search.best(), None
            self._judge(row)
        return parents

    def _fail_numeric(self, row: Row) -> None:
        request = row.task.request
        message = "the model gave numbers that are not finite"
        self._outcomes.append(ChunkFailed(request.id, request.job, "numeric", message, retryable=True))

    # --- judging a decode ---------------------------------------------------------------------

    def _judge(self, row: Row) -> None:
        """Take a decode, or try its audio again (Whisper paper, section 4.5)."""
        lane = self._lane(row.task)
        if self._is_silent(row):
            self._settle(row, heard=False)
        elif not self._looks_wrong(row):
            self._take(row)
        elif row.window < windows.BUCKET_FRAMES[-1]:
            lane.waiting.append(tried_again(row, window=windows.BUCKET_FRAMES[-1], attempt=row.attempt))
        elif row.tail:
            self._settle(row, heard=False)
        elif row.attempt + 1 < len(row.task.request.options.temperatures):
            again = tried_again(row, window=row.window, attempt=row.attempt + 1)
            again.features = row.features
            lane.encoded.append(again)
        else:
            self._take(self._least_wrong([*row.rejected, row]))

    def _take(self, row: Row) -> None:
        """Settle a decode, once its words have times where they are asked for."""
        row.reading = self._read(row)
        if row.task.request.options.words and row.reading.segments:
            self._lane(row.task).aligning.append(row)
        else:
            self._settle(row, heard=True)

    def _align(self, lane: Lane, rows: list[Row]) -> None:
        """Find the times of the words of these rows, together."""
        spoken = []
        for row in rows:
            assert row.reading is not None
            language, task = row.task.language or "en", row.task.request.options.task
            line = row.line
            spoken.append(
                aligning.Spoken(
                    row.features, row.reading, line.tokens, line.logprobs, language, task, row.length_s
                )
            )
        found = aligning.add_words(self.model, self.tokenizer, self._heads, spoken)
        lane.aligning = [row for row in lane.aligning if row not in rows]
        for row, reading in zip(rows, found, strict=True):
            if isinstance(reading, rules.NumericFailure):
                self._fail_numeric(row)
            else:
                row.reading = reading
                self._settle(row, heard=True)

    def _is_silent(self, row: Row) -> bool:
        if row.no_speech_prob <= MAX_NO_SPEECH_PROB:
            return False
        # Of digital silence the models are sure that it says "you".
        unlikely = row.line.score < MIN_AVG_LOGPROB
        return unlikely or row.tail or not audio.is_audible(row.task.samples[row.start * audio.HOP :])

    def _looks_wrong(self, row: Row) -> bool:
        return (
            row.line.looped
            or not (row.line.ended or row.cap_is_asked)
            or row.line.score < MIN_AVG_LOGPROB
            or rules.compression_ratio(self.tokenizer.decode(list(row.line.tokens))) > MAX_COMPRESSION_RATIO
        )

    def _least_wrong(self, rows: list[Row]) -> Row:
        """The likeliest of the decodes that do not repeat themselves, else the likeliest of all."""
        sound = [
            row
            for row in rows
            if not row.line.looped
            and rules.compression_ratio(self.tokenizer.decode(list(row.line.tokens))) <= MAX_COMPRESSION_RATIO
        ]
        return max(sound or rows, key=lambda row: row.line.score)

    def _settle(self, row: Row, heard: bool) -> None:
        """Add what a decode says to its chunk, then go on with the rest of the audio or answer."""
        task = row.task
        if task.no_speech_prob is None:
            task.no_speech_prob = row.no_speech_prob
        task.widened = task.widened or bool(row.rejected)
        covered_s, silent_tail = row.length_s, False
        if heard:
            task.logprob_sum += row.line.total
            task.logprob_count += len(row.line.tokens) + 1
            task.tokens += len(row.line.tokens)
            task.temperature = max(task.temperature, row.temperature)
            reading = row.reading or self._read(row)
            offset = row.start / audio.MEL_FRAMES_PER_SECOND
            before = task.segments[-1].end if task.segments else 0.0
            heard_now = transcript.without_echo(task.text, reading.segments) if row.tail else reading.segments
            task.segments += transcript.shifted(heard_now, offset, before, task.request.duration_s)
            covered_s, silent_tail = reading.covered_s, reading.silent_tail
        following = self._following(row, covered_s, silent_tail)
        if following is None:
            self._answer(task, row)
        else:
            self._lane(task).waiting.append(following)

    def _read(self, row: Row) -> transcript.Reading:
        read = transcript.read_tokens if row.task.request.options.timestamps else transcript.read_untimed
        return read(row.line.tokens, self.tokenizer, row.length_s)

    def _following(self, row: Row, covered_s: float, silent_tail: bool) -> Row | None:
        """A row for the audio that a decode left out, if there is any worth it."""
        if covered_s >= row.length_s - transcript.TAIL_S or covered_s <= 0:
            return None
        start = row.start + round(covered_s * audio.MEL_FRAMES_PER_SECOND)
        if silent_tail and not audio.has_sound(row.task.samples, start * audio.HOP):
            return None
        asked = row.task.request.options.max_tokens
        if asked is not None and row.task.tokens >= asked:
            return None
        return self._row(row.task, start, tail=silent_tail)

    def _answer(self, task: Task, row: Row) -> None:
        request = task.request
        self._outcomes.append(
            ChunkDone(
                chunk=request.id,
                job=request.job,
                text=task.text,
                segments=tuple(transcript.stripped(segment) for segment in task.segments),
                language=task.language or "en",
                avg_logprob=task.logprob_sum / task.logprob_count if task.logprob_count else row.line.score,
                no_speech_prob=task.no_speech_prob or 0.0,
                compression_ratio=rules.compression_ratio(task.text),
                temperature=task.temperature,
                tokens=task.tokens,
                window_s=task.window_s,
                widened=task.widened,
                bits=self.model.bits,
            )
        )
