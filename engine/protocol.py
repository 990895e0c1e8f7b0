"""What passes between the worker and the engine process: frozen messages, one JSON object a frame.

A frame is a 4-byte big-endian length followed by that many bytes of UTF-8 JSON. Both ends live on
one machine and come from one checkout, so there is no version field; the contract with the outside
world is :mod:`queueing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.limits import Limits
from engine.system import SystemMemory

SAMPLE_RATE = 16_000
"""Samples a second of every spool file (Whisper's own rate)."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How one chunk is to be decoded. What a model cannot honour is refused, never ignored."""

    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    """ISO 639-1 code, or None to detect it (English-only models answer "en")."""
    prompt: str | None = None
    """Text put before the transcript as earlier context."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Tried in turn, per row, while a decode looks wrong (Whisper paper, section 4.5)."""
    timestamps: bool = True
    max_tokens: int | None = None
    """Upper bound on new tokens; None derives it from the chunk's duration."""
    words: bool = False
    """Give each segment its words, with their times."""
    beam_size: int = 1
    """Lines that a search at temperature 0 follows; 1 takes the likeliest token each time."""
    best_of: int = 1
    """Samples at a temperature above 0, of which the likeliest is taken."""
    seed: int = 0
    """Of the draws at a temperature above 0, beside the chunk's own samples."""
    hot_words: tuple[str, ...] = ()
    """Names and terms that are likely to be said."""
    min_bits: int = 0
    """Fewest bits of each weight at which it may run."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """One piece of audio, at most 30 s, to be transcribed."""

    id: str
    """Unique within the worker's life."""
    job: str
    """Opaque; stands in step records so that one can see whose rows shared a batch."""
    model: str
    """An alias of the registry."""
    path: str
    """Spool file: raw 16 kHz signed 16-bit little-endian mono."""
    offset: int
    """First sample."""
    samples: int
    options: DecodeOptions = field(default_factory=DecodeOptions)
    urgent: bool = False
    """Goes before those that are not. What it gives is the same."""

    @property
    def duration_s(self) -> float:
        return self.samples / SAMPLE_RATE


# --- worker -> engine ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """Load and warm a model. Answered by Loaded or LoadFailed."""

    model: str
    bits: int | None = None
    """Quantize to so many bits on the way; None takes the weights as they are."""


@dataclass(frozen=True, slots=True)
class Requantize:
    """Bring a loaded model to other bits. No chunk may be running. Answered by Requantized or RequantizeFailed."""

    model: str
    bits: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run these chunks. They join what runs already; those that came first are begun with first."""

    batch: int
    chunks: tuple[ChunkRequest, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop these chunks' rows before the next step. Each is answered by ChunkFailed(code="cancelled")."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Give MLX's buffer cache (and malloc's) back to the system, then send a fresh Sample."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Finish the running step, then exit 0."""


# --- engine -> worker ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The process is up, MLX is imported and the device is known. Models are loaded separately."""

    pid: int
    device: str
    """ "cpu", "metal" or "cuda"."""
    dtype: str
    blas: str | None
    """Path of the BLAS loaded before MLX, or None where MLX uses its own or Accelerate."""
    mlx_version: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Rung:
    """A precision at which a model can run."""

    bits: int
    weights_bytes: int
    """What its weights take."""
    from_dense_bytes: int
    """What going there takes at most beside the weights, from the dense weights in memory."""
    from_disk_bytes: int
    """The same from disk."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model that its memory follows."""

    n_audio_layer: int
    n_text_layer: int
    n_text_state: int
    n_vocab: int
    item_bytes: int
    """Of a number that is computed with: 4, or 2 in half precision."""
    windows_at_once: int
    """Windows in the encoder at the same time at most; 0 for all of a step."""
    encode_s: float = 64.0
    """Window seconds of an encoder step at most, where nothing else runs; one window always fits."""
    encode_beside_s: float = 24.0
    """The same beside rows that are decoded."""


@dataclass(frozen=True, slots=True)
class Loaded:
    model: str
    seconds: float
    weights_bytes: int
    bits: int
    n_audio_state: int
    """Width of the encoder: what activations scale with."""
    languages: tuple[str, ...]
    """Codes the model takes; ("en",) for English-only models, none where the language cannot be chosen."""
    can_translate: bool
    shape: Shape
    rungs: tuple[Rung, ...]
    """Highest first."""


@dataclass(frozen=True, slots=True)
class Canary:
    """One and the same clip before and after a change of precision: what the change costs. Holds no word of it."""

    words: int
    """Before."""
    words_changed: int
    """Substituted, left out or put in, after (Levenshtein)."""
    logprob_before: float
    logprob_after: float
    """Mean over tokens."""
    seconds_before: float
    seconds_after: float


@dataclass(frozen=True, slots=True)
class Requantized:
    """The model runs at other bits now. Bytes are of MLX's active memory."""

    model: str
    bits_before: int
    bits: int
    seconds: float
    active_before: int
    active_after: int
    active_peak: int
    weights_bytes: int
    canary: Canary | None
    """None where no speech has been heard yet."""


@dataclass(frozen=True, slots=True)
class RequantizeFailed:
    """code: busy (nothing has changed) | failed (the process is about to end)."""

    model: str
    bits: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """code: unknown_model | bad_source | model_missing | model_unreadable | parity."""

    model: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of memory, bytes. 0 means unknown."""

    active: int
    cache: int
    peak: int
    """High water of *active* since the last Sample that followed a step."""
    footprint: int
    """phys_footprint on macOS, RSS on Linux."""
    peak_footprint: int = 0
    """High water of *footprint* since the last Sample that followed a step; only such a Sample holds it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is read seldom: the machine's memory, and what takes long to read. 0 means unknown."""

    system: SystemMemory
    pss: int
    """Linux: the engine's resident set with shared pages counted by their share, bytes."""


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The MLX thread is about to run a step that must end within deadline_s, or it hangs.

    A step that gives way to others is announced anew when it goes on; what it gave way to comes between, with its own
    records.
    """

    kind: str
    """ "load", "requantize", "encode", "detect", "decode", "align"."""
    deadline_s: float
    padded_s: float = 0.0
    """Window seconds that it encodes."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """Record of one step, with the rows it held."""

    kind: str
    batch: int
    """The oldest batch among the rows': those of several run together."""
    seconds: float
    rows: tuple[str, ...]
    """Chunk ids."""
    jobs: tuple[str, ...]
    """The job of each row, in the same order."""
    window_s: float
    """Encoded seconds of the longest row."""
    sample: Sample
    steps: int = 1
    """Decode steps over the same rows are recorded together; *seconds* is their sum, and of an encoder step that gave
    way to others that of its parts."""
    audio_s: float = 0.0
    """Seconds of audio in the rows."""
    padded_s: float = 0.0
    """Seconds that their windows hold: what is more than *audio_s* is padding."""
    slots: int = 0
    """Rows that the session may run at once; 0 where that is not told."""
    waiting: int = 0
    """Rows that wait for a slot."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Text of a chunk so far."""

    chunk: str
    job: str
    text: str


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a segment, with the punctuation beside it; seconds as there, and within the segment."""

    start: float
    end: float
    text: str
    """With the blank before it: joined, they are the segment's text."""
    probability: float | None
    """Mean probability of its tokens, 0 to 1; None where the model does not tell."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Seconds are relative to the chunk's first sample, 0 <= start <= end <= duration."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()
    """In order, where they were asked for."""


@dataclass(frozen=True, slots=True)
class ChunkDone:
    chunk: str
    job: str
    text: str
    segments: tuple[Segment, ...]
    language: str
    """ISO 639 code; empty where the model does not tell."""
    avg_logprob: float | None
    """Mean log-probability of the tokens; None where the model does not tell."""
    no_speech_prob: float | None
    """None where the model does not tell."""
    compression_ratio: float
    temperature: float
    tokens: int
    window_s: float
    widened: bool
    """True where the right-sized window looked wrong and the row was encoded again at 30 s."""
    bits: int


@dataclass(frozen=True, slots=True)
class ChunkFailed:
    """code: cancelled | unsupported_language | unsupported_option | bad_spool | model_not_loaded |
    precision_unavailable | numeric | internal.
    """

    chunk: str
    job: str
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class BatchDone:
    """Every chunk of the batch has been answered."""

    batch: int
    seconds: float


Command = Load | Requantize | Dispatch | Cancel | ClearCache | Shutdown
Event = (
    Ready
    | Loaded
    | LoadFailed
    | Requantized
    | RequantizeFailed
    | Sample
    | Surroundings
    | StepStarted
    | StepDone
    | Partial
    | ChunkDone
    | ChunkFailed
    | BatchDone
)
