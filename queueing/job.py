"""A job as it stands on the wire, and what comes back.

Parsed once, at the edge: by the client before it writes, by the worker after it has taken. Unknown
fields are refused, because an option that is silently ignored is worse than an error.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from queueing.errors import InvalidJob

WIRE_VERSION = 2
"""What this version understands. Raised when a job needs a worker that knows more than the last one did. A worker
that takes a job of a newer version hands it back untouched, for a newer worker to take. A job bears the least version
that knows all it asks for, so that older workers go on serving what they can. 2 added hooks (who is told the end) and
the options from ``carry_context`` on."""

FIRST_VERSION = 1
HOOK_VERSION = 2

DEFAULT_TENANT = "default"

NAME, JOB_ID, LANGUAGE = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$", r"^[A-Za-z0-9_-]{8,64}$", r"^[a-z]{2,3}$"
WEBHOOK_URL = r"^https?://[!-~]+$"
IN_WORDS = {
    NAME: "a name has 1 to 64 letters, digits or any of . _ @ -, and starts with a letter or digit",
    JOB_ID: "a job id has 8 to 64 letters, digits, _ or -",
    LANGUAGE: "a language is its ISO 639 code: en, de, yue",
    WEBHOOK_URL: "a webhook is an http:// or https:// URL in ASCII, without spaces",
}
"""What the patterns ask for, to those who have not seen them."""

Name = Annotated[str, StringConstraints(pattern=NAME)]
"""A part of a Redis key: no colon, no brace, nothing a shell or a glob would read."""

JobId = Annotated[str, StringConstraints(pattern=JOB_ID)]

WebhookUrl = Annotated[str, StringConstraints(pattern=WEBHOOK_URL, max_length=2048)]
"""ASCII without spaces; whether it may be reached is the worker's to decide."""


class Lane(StrEnum):
    """What goes first: someone is looking, someone will look, nobody waits."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BULK = "bulk"


LANES: tuple[Lane, ...] = (Lane.INTERACTIVE, Lane.NORMAL, Lane.BULK)


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"

    @property
    def terminal(self) -> bool:
        return self not in (State.WAITING, State.RUNNING)


class Wire(BaseModel):
    """Base of all that crosses Redis: immutable, and strict about what it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", hide_input_in_errors=True
    )


class PathInput(Wire):
    """A file that the worker's own machine can read."""

    type: Literal["path"] = "path"
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class UrlInput(Wire):
    """Fetched by the worker."""

    type: Literal["url"] = "url"
    url: Annotated[str, StringConstraints(min_length=1, max_length=8192)]


class InlineInput(Wire):
    """Bytes kept in Redis beside the job until it ends."""

    type: Literal["inline"] = "inline"
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    name: Annotated[str, StringConstraints(max_length=255)] | None = None


Input = Annotated[PathInput | UrlInput | InlineInput, Field(discriminator="type")]


HotWord = Annotated[str, StringConstraints(min_length=1, max_length=100, strip_whitespace=True)]

_SINCE_2 = ("min_bits", "carry_context", "words", "beam_size", "best_of", "seed", "hot_words", "fallback")
"""Options that workers of version 1 do not know."""


class SpeechOptions(Wire):
    """Options of the kinds that turn speech into text."""

    language: Annotated[str, StringConstraints(pattern=LANGUAGE)] | None = None
    """ISO 639 code; None lets the model detect it."""
    prompt: Annotated[str, StringConstraints(max_length=2000)] | None = None
    """Earlier context, or the spelling of names."""
    timestamps: bool = True
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Where decoding starts; rows that look wrong climb from here in steps of 0.2."""
    max_tokens: Annotated[int, Field(ge=1, le=448)] | None = None
    """Upper bound on the tokens of one chunk (<= 30 s)."""
    # From here on, version 2.
    min_bits: Literal[4, 8, 16] = 4
    """Fewest bits of each weight that the job accepts: under memory pressure workers move models to fewer."""
    carry_context: bool = False
    """Give each chunk the text before it as context. The chunks of the job then run one after another."""
    words: bool = False
    """Give the words of each segment, with their times."""
    beam_size: Annotated[int, Field(ge=1, le=16)] = 1
    """Lines that a search at temperature 0 follows; 1 takes the likeliest token each time."""
    best_of: Annotated[int, Field(ge=1, le=16)] = 1
    """Samples at a temperature above 0, of which the likeliest is taken."""
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Of the draws at a temperature above 0: the same job with the same seed gives the same text."""
    hot_words: Annotated[tuple[HotWord, ...], Field(max_length=64)] = ()
    """Names and terms that are likely to be said."""
    fallback: bool = True
    """Whether rows that look wrong are tried again at higher temperatures."""


class JobBase(Wire):
    """What every kind of job carries."""

    # Nobody validates by it, so nobody need wait for its validator.
    model_config = ConfigDict(defer_build=True)

    v: Annotated[int, Field(ge=1)] = FIRST_VERSION
    """Least wire version of a worker that may run the job."""
    id: JobId
    model: Name
    lane: Lane = Lane.NORMAL
    tenant: Name = DEFAULT_TENANT
    input: Input
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts that end in a retryable error before the job is dead."""
    deadline_ms: Annotated[int, Field(ge=0)] | None = None
    """Unix milliseconds after which the job must not start, nor go on."""
    not_before_ms: Annotated[int, Field(ge=0)] | None = None
    """Unix milliseconds before which the job must not start."""
    result_ttl_s: Annotated[int, Field(ge=1, le=31_536_000)] = 86_400
    """Seconds for which the outcome is kept after the end."""
    webhook: WebhookUrl | None = None
    """Told the end by a signed POST."""
    options: SpeechOptions = SpeechOptions()

    @model_validator(mode="after")
    def _bear_the_least_version(self) -> Self:
        """Whatever a job claims, workers that do not know its options must not take it."""
        asked = self.options.model_dump(exclude_defaults=True)
        newer = self.webhook is not None or any(option in asked for option in _SINCE_2)
        least = 2 if newer else FIRST_VERSION
        # The model is frozen for everybody else.
        object.__setattr__(self, "v", max(self.v, least))
        return self


class TranscribeJob(JobBase):
    """Speech to text in the language spoken."""

    model_config = ConfigDict(defer_build=False)

    kind: Literal["transcribe"] = "transcribe"


class TranslateJob(JobBase):
    """Speech to English text."""

    model_config = ConfigDict(defer_build=False)

    kind: Literal["translate"] = "translate"


Job = TranscribeJob | TranslateJob
"""Open at this end: a later kind is one more class here and a greater WIRE_VERSION."""

KINDS: dict[str, type[TranscribeJob] | type[TranslateJob]] = {
    "transcribe": TranscribeJob,
    "translate": TranslateJob,
}


class Answer(Wire):
    """Base of what a worker writes: a client older than the worker passes over what it does not know."""

    model_config = ConfigDict(extra="ignore")


class Word(Answer):
    """Seconds as in its segment, and within it."""

    start: float
    end: float
    text: str
    """With the blank before it, if there is one: joined, the words are the segment's text."""
    probability: float | None = None
    """0 to 1, where the model tells."""


class Segment(Answer):
    """Seconds from the beginning of the recording, 0 <= start <= end <= duration_s."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] | None = None
    """Where they were asked for."""


class Timings(Answer):
    """Where the time went, seconds."""

    queued: float = 0.0
    """From submit until a worker took the job (the attempt that succeeded)."""
    media: float = 0.0
    """Waiting for a decoder, fetching, decoding, cutting, until the first chunk is ready. What is left of a long
    recording is decoded while the engine works, and counts there."""
    waiting: float = 0.0
    """From the first chunk that is ready to the first that is in a batch."""
    engine: float = 0.0
    """From the first dispatch to the last text."""
    total: float = 0.0
    """From submit to the outcome."""


class Result(Answer):
    """The outcome of a job that is done."""

    text: str
    segments: tuple[Segment, ...] = ()
    language: str | None = None
    duration_s: float = 0.0
    """Length of the recording, seconds."""
    speech_s: float = 0.0
    """Of which were speech."""
    timings: Timings = Timings()
    model: str = ""
    bits: int = 0
    """Bits of each weight at which it ran: 32, 16, 8 or 4."""
    attempt: int = 1
    worker: str = ""
    version: str = ""


class ErrorInfo(Answer):
    """Why there is no result. ``retryable`` says whether the same job may succeed another time."""

    code: str
    message: str
    retryable: bool = False


class Note(Wire):
    """How one attempt failed, and where: kept with a job until it is done."""

    at_ms: int
    """Unix milliseconds, by the worker's clock."""
    attempt: int
    worker: str
    version: str
    code: str
    message: str


def new_job_id() -> str:
    """48 bits of time, then 80 random ones, in hexadecimal: unique, and sortable by age (after UUIDv7, RFC 9562)."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def parse_job(payload: bytes | str) -> Job:
    """Read a job from the wire.

    Raises:
        InvalidJob: not JSON, not an object, of no known kind, or with a wrong field. The message
            names the fields but never their values.
    """
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as exc:
        raise InvalidJob("the payload is not JSON") from exc
    return job_from_fields(fields)


def job_from_fields(fields: object) -> Job:
    """Validate a job that is still a mapping. Raises InvalidJob as parse_job does."""
    if not isinstance(fields, dict):
        raise InvalidJob("the payload is not a JSON object")
    kind = fields.get("kind", "transcribe")
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InvalidJob(f"no such kind of job; this version knows {', '.join(KINDS)}")
    try:
        return model.model_validate(fields)
    except (ValidationError, RecursionError) as exc:
        raise InvalidJob(explain(exc)) from exc


def explain(exc: ValidationError | RecursionError) -> str:
    """One sentence of what is wrong: field names and rules, no values."""
    if isinstance(exc, RecursionError):
        return "the payload is nested too deeply"
    parts = []
    for error in exc.errors(include_url=False, include_input=False)[:5]:
        where = ".".join(str(part) for part in error["loc"]) or "job"
        pattern = error.get("ctx", {}).get("pattern", "")
        parts.append(f"{where[:120]}: {IN_WORDS.get(pattern, error['msg'])}")
    return "; ".join(parts)


def encode_job(job: Job) -> str:
    """The job as JSON for the wire, without what equals its default."""
    body = job.model_dump(mode="json", exclude_defaults=True)
    # The tag of a union equals its default, and without it nobody could read the input back.
    body["input"] = job.input.model_dump(mode="json", exclude_none=True)
    return json.dumps({"v": job.v, "kind": job.kind, **body}, separators=(",", ":"), ensure_ascii=False)


_NOT_MEANT = {"v", "id", "deadline_ms", "not_before_ms"}


def digest(job: Job) -> str:
    """SHA-256 (hexadecimal) of what the job asks for: two submissions that mean the same work agree.

    Left out is what may differ between them: the id, the wire version, moments reckoned from now, and
    whatever equals its default (so that an option added later changes no digest).
    """
    body = job.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_MEANT)
    body |= {"kind": job.kind, "input": job.input.model_dump(mode="json", exclude_none=True)}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
