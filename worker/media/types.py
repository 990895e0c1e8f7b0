"""What goes into the media part and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SAMPLE_RATE = 16_000
"""Samples a second of every spool file."""

BYTES_PER_SAMPLE = 2
"""A spool file holds signed 16-bit little-endian mono without a header."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Bounds on one job and on the spool folder. Raises ValueError where they make no sense."""

    max_bytes: int = 1 << 30
    """Largest input, bytes; a download is stopped when it passes it."""
    max_duration_s: float = 6 * 3600.0
    """Longest audio, seconds."""
    timeout_s: float = 900.0
    """Wall-clock limit for one job: fetch, decode and cut."""
    max_chunk_s: float = 30.0
    """Longest piece, seconds. Whisper's window is 30 s."""
    max_spool_bytes: int = 4 << 30
    """All spool files together, counting the worst case of each job that runs."""
    allowed_schemes: tuple[str, ...] = ("http", "https")
    allow_private_hosts: bool = True
    """False refuses URLs whose host resolves to a loopback, link-local or private address."""
    roots: tuple[str, ...] | None = None
    """Folders that paths must lie under, symbolic links resolved; None for anywhere."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """Longest silence of a server in the middle of a download, seconds."""
    max_rss_bytes: int = 1 << 30
    """A media process larger than this ends itself (`media_crashed`)."""

    def __post_init__(self) -> None:
        positive = (
            self.max_bytes,
            self.max_duration_s,
            self.timeout_s,
            self.max_spool_bytes,
            self.connect_timeout_s,
            self.read_timeout_s,
            self.max_rss_bytes,
        )
        if min(positive) <= 0:
            raise ValueError("Every media limit must be positive.")
        if not 2.0 <= self.max_chunk_s <= 30.0:
            raise ValueError("max_chunk_s must lie between 2 and 30 seconds.")

    @property
    def max_decoded_bytes(self) -> int:
        """Bytes of the longest spool file that one job may leave."""
        return int(self.max_duration_s * SAMPLE_RATE) * BYTES_PER_SAMPLE


@dataclass(frozen=True, slots=True)
class MediaRequest:
    """One input: exactly one of path, url and data. Raises ValueError otherwise."""

    job: str
    """Opaque; a cleaned form of it begins the spool file's name."""
    path: str | None = None
    """Absolute path of a regular file."""
    url: str | None = None
    data: bytes | None = None
    """The file itself. It reaches the media process through a 0600 file that is gone afterwards."""
    short: bool = False
    """Expected to be short: may use the slot that is kept for such work."""

    def __post_init__(self) -> None:
        if sum(source is not None for source in (self.path, self.url, self.data)) != 1:
            raise ValueError("A media request names exactly one of path, url and data.")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a spool file, in samples."""

    offset: int
    samples: int

    @property
    def end(self) -> int:
        return self.offset + self.samples

    @property
    def start_s(self) -> float:
        return self.offset / SAMPLE_RATE

    @property
    def duration_s(self) -> float:
        return self.samples / SAMPLE_RATE


OnPieces = Callable[[str, tuple[Piece, ...]], None]
"""Is told the path of a spool file and pieces that can be read from it, while the rest of it is still written."""

OnWhole = Callable[[str, Piece], bool]
"""Is told the path of a spool file and all of it as one piece, before it is known which pieces it has. Returns whether
somebody begins with it."""


@dataclass(frozen=True, slots=True)
class MediaDone:
    """A decoded job. The receiver owns the spool file until it calls ``discard``."""

    spool: str
    """Path of the spool file: 16 kHz s16le mono, mode 0600."""
    duration_s: float
    """Of the whole audio, silence included."""
    pieces: tuple[Piece, ...]
    """All, in order, each at most max_chunk_s; empty where nobody speaks. Two overlap where speech is unbroken."""
    speech_s: float
    """Seconds in which somebody speaks, without the padding around them."""
    decode_s: float
    """Wall-clock seconds spent on decoding and cutting."""
    fetch_s: float
    format: str
    """Container and codec, such as "wav/pcm_16" or "mov/aac"."""


class MediaError(Exception):
    """Why an input did not become audio.

    Final: input_not_found, input_not_file, input_unreadable, empty_input, not_audio,
    no_audio_stream, empty_audio, truncated_input, corrupt_audio, too_long, too_large,
    input_not_allowed, url_not_allowed, fetch_failed (refused by the server), media_timeout (while decoding).
    Retryable: media_crashed, media_stopped, spool_full, fetch_failed (connection lost, 5xx),
    media_timeout (while fetching). ``retryable`` tells which it is.
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = retryable
