"""Decoding an open file to blocks of 16 kHz mono, a fraction of a second at a time.

libsndfile reads what it knows best: uncompressed and old formats (wav, rf64, w64, aiff, au, caf, voc, ...).
mp3, ogg and flac go to FFmpeg although libsndfile opens them: of two mp3 or ogg files joined into one it
returns the first alone, it loses the end of a flac whose length is not stated, and one damaged bit makes it
refuse a whole flac (libsndfile 1.2.2).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import av
import av.container
import av.error
import av.logging
import numpy as np
import soundfile
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from worker.media import headers
from worker.media.types import SAMPLE_RATE, MediaError

Pcm = NDArray[np.int16]

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,mp3,ogg,flac,wav,w64,aiff,caf,amr"
"""FFmpeg demuxers that may run. None of them is a playlist, a device, a script or an image sequence."""

LOST_SHARE, LOST_S = 0.02, 0.5
"""A file may miss either 2 % or 0.5 s before it counts as cut short or corrupt."""

GAP_S, LONGEST_GAP_S = 0.1, 600.0
"""Holes in the time stamps that are filled with silence, so that times stay true. Larger are nonsense."""

_BLOCK_S = 0.5
_BLOCK_VALUES = 1 << 20
"""Samples of all channels in a block: a damaged header may state a thousand channels."""

RATES = range(1_000, 400_001)
"""Samples a second. Outside of it a header is damaged, and the filter for such a rate takes seconds to build."""
_BETTER_BY_FFMPEG = frozenset({"MP3", "OGG", "FLAC", "MPEG"})

av.logging.set_level(av.logging.PANIC)


class Reader(Protocol):
    """An opened input."""

    format: str
    stated_s: float | None
    """Duration that the container states, where that is more than an estimate."""

    def blocks(self) -> Iterator[Pcm]:
        """16 kHz mono. Raises MediaError at the end where the file was cut short or is corrupt."""

    def close(self) -> None: ...


def open_reader(fd: int, name: str) -> Reader:
    """A reader of the file at `fd`, which stays the caller's. `name` is for messages. Raises MediaError."""
    promise = headers.read(fd)
    sound = _open_soundfile(fd)
    if sound is not None and not _better_by_ffmpeg(sound, promise):
        return SoundFileReader(sound, promise, name)
    if sound is not None:
        sound.close()
    return AvReader(fd, promise, name)


def _better_by_ffmpeg(sound: Any, promise: headers.Promise) -> bool:
    # A stated size of 0 with sound behind it: libsndfile takes it at its word.
    streamed = sound.frames == 0 and promise.promised is None and promise.present > 0
    return streamed or sound.format in _BETTER_BY_FFMPEG


def _open_soundfile(fd: int) -> Any:
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        return soundfile.SoundFile(fd, closefd=False)
    except (soundfile.LibsndfileError, ValueError, TypeError):
        # Not its format; FFmpeg is asked next.
        return None


def too_little(given_s: float, stated_s: float) -> bool:
    """Whether a file that states one duration and gives another was cut short."""
    missing = stated_s - given_s
    return missing > LOST_S and missing > LOST_SHARE * stated_s


def _truncated(name: str, given_s: float, stated_s: float | None = None) -> NoReturn:
    what = f"it holds {given_s:.1f} s" if given_s > 0 else "no sound can be read"
    of = f" of the {stated_s:.1f} s it states" if stated_s is not None else ""
    raise MediaError("truncated_input", f"The input ({name}) is cut short: {what}{of}.")


class Resampler:
    """Any frames to 16 kHz s16 mono, with exactly as many samples as their duration asks for.

    FFmpeg's resampler keeps a few samples at the end and swallows inputs shorter than its filter.
    """

    def __init__(self) -> None:
        self._inner: AudioResampler | None = None
        self._kind: tuple[str, str, int] | None = None
        self._due = 0.0
        self._given = 0

    def feed(self, frame: av.AudioFrame) -> Iterator[Pcm]:
        """Blocks that this frame completes."""
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind != self._kind:
            # A stream may change its rate or layout on the way (joined mp3 files, HE-AAC).
            yield from self.finish()
            if frame.sample_rate not in RATES:
                raise MediaError("corrupt_audio", f"The sound states {frame.sample_rate} samples a second.")
            self._kind = kind
            self._inner = AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
        self._due += frame.samples * SAMPLE_RATE / frame.sample_rate
        # Time stamps are the reader's business: here they would only make FFmpeg stretch or drop.
        frame.pts = None
        yield from self._take(frame)

    def finish(self) -> Iterator[Pcm]:
        """What is left."""
        if self._inner is not None:
            yield from self._take(None)
        self._inner = self._kind = None
        short = round(self._due) - self._given
        if short > 0:
            self._given += short
            yield np.zeros(short, dtype=np.int16)

    def _take(self, given: av.AudioFrame | None) -> Iterator[Pcm]:
        assert self._inner is not None
        try:
            frames = self._inner.resample(given)
        except (av.error.FFmpegError, ValueError) as exc:
            raise MediaError("corrupt_audio", "The sound has a rate or layout that cannot be used.") from exc
        for frame in frames:
            pcm = frame.to_ndarray().reshape(-1)[: max(0, round(self._due) - self._given)]
            self._given += len(pcm)
            yield pcm.astype(np.int16, copy=False)


class SoundFileReader:
    """libsndfile's formats. Channels are averaged, since most of them do not say which is which."""

    def __init__(self, sound: Any, promise: headers.Promise, name: str) -> None:
        self._sound = sound
        self._promise = promise
        self._name = name
        self.format = f"{sound.format}/{sound.subtype}".lower()
        self.stated_s: float | None = sound.frames / max(1, sound.samplerate)

    def blocks(self) -> Iterator[Pcm]:
        rate = self._sound.samplerate
        resampler = Resampler()
        frames = 0
        for block in self._read(max(64, min(int(rate * _BLOCK_S), _BLOCK_VALUES // self._sound.channels))):
            frames += len(block)
            mono = block.mean(axis=1, dtype=np.float32)
            # A damaged float file holds NaN and infinities; neither is a sample.
            mono = np.nan_to_num(mono, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
            frame = av.AudioFrame.from_ndarray(mono.reshape(1, -1), format="flt", layout="mono")
            frame.sample_rate = rate
            yield from resampler.feed(frame)
        yield from resampler.finish()
        self._check(frames / max(1, rate))

    def close(self) -> None:
        self._sound.close()

    def _read(self, frames: int) -> Iterator[NDArray[np.float32]]:
        try:
            while len(block := self._sound.read(frames, dtype="float32", always_2d=True)):
                yield block
        except soundfile.LibsndfileError as exc:
            raise MediaError(
                "corrupt_audio", f"The sound of the input ({self._name}) could not be decoded."
            ) from exc

    def _check(self, given_s: float) -> None:
        promise = self._promise
        if promise.overrun and promise.unbounded:
            _truncated(self._name, given_s)
        if promise.promised is not None and promise.present:
            # Both libraries clip the stated length to the file, so bytes must tell.
            stated_s = given_s * promise.promised / promise.present
            if too_little(given_s, stated_s):
                _truncated(self._name, given_s, stated_s)
        elif promise.promised:
            _truncated(self._name, given_s)


class AvReader:
    """FFmpeg's formats, from a file object instead of a path."""

    def __init__(self, fd: int, promise: headers.Promise, name: str) -> None:
        self._promise = promise
        self._name = name
        self._file = _File(fd)
        self._container = self._open()
        self._stream = self._choose()
        codec = self._stream.codec_context.name
        self.format = f"{self._container.format.name.split(',')[0]}/{codec}"
        self._family = self._container.format.name
        self.stated_s = self._stated()
        self._end_s = 0.0
        self._decoded_s = 0.0
        self._lost_s = 0.0
        self._last_failed = False
        self._packets = 0

    def blocks(self) -> Iterator[Pcm]:
        resampler = Resampler()
        clock = _Clock()
        for frame in self._frames():
            gap = clock.gap(frame)
            if gap > 0:
                yield from resampler.finish()
                yield from _silence(gap)
            yield from resampler.feed(frame)
        yield from resampler.finish()
        self._check(clock.length_s)

    def close(self) -> None:
        self._container.close()

    def _open(self) -> av.container.InputContainer:
        try:
            container = av.open(
                self._file,
                options={"format_whitelist": FORMATS, "protocol_whitelist": ""},
                metadata_errors="ignore",
                buffer_size=1 << 17,
                io_open=_refuse,
            )
            assert isinstance(container, av.container.InputContainer)
            return container
        except (av.error.FFmpegError, ValueError) as exc:
            if self._promise.overrun:
                _truncated(self._name, 0.0)
            raise MediaError(
                "not_audio", f"The input ({self._name}) is not in a known audio format."
            ) from exc

    def _choose(self) -> Any:
        stream = self._container.streams.best("audio")
        if stream is None:
            self._container.close()
            if self._promise.family == "mp4" and self._promise.overrun:
                _truncated(self._name, 0.0)
            raise MediaError("no_audio_stream", f"The input ({self._name}) holds no sound.")
        if stream.codec_context is None:
            self._container.close()
            raise MediaError(
                "not_audio", f"The sound of the input ({self._name}) has a coding that is not known."
            )
        return stream

    def _stated(self) -> float | None:
        """Only what the container itself says: for aac, amr and bare mp3 FFmpeg guesses from the bit rate."""
        if self._family == "mp3":
            return headers.stated_mp3_seconds(self._promise, self._stream.codec_context.sample_rate or 0)
        if self._family.startswith(("mov", "flac")) and self._stream.duration:
            return float(self._stream.duration * self._stream.time_base)
        if self._family.startswith("matroska") and self._container.duration:
            return self._container.duration / av.time_base
        return None

    def _frames(self) -> Iterator[av.AudioFrame]:
        for packet in self._demuxed():
            seconds = float((packet.duration or 0) * (packet.time_base or 0))
            if packet.pts is not None:
                self._end_s = max(self._end_s, float(packet.pts * packet.time_base) + seconds)
            if packet.stream.index != self._stream.index:
                continue
            flush = packet.size == 0
            self._packets += not flush
            try:
                for frame in packet.decode():
                    if frame.sample_rate > 0 and frame.samples > 0:
                        self._decoded_s += frame.samples / frame.sample_rate
                        yield frame
                self._last_failed = self._last_failed and flush
            except (av.error.FFmpegError, ValueError):
                # One damaged packet in an hour is no reason to refuse the hour; `_check` adds them up.
                self._lost_s += seconds
                self._last_failed = True

    def _demuxed(self) -> Iterator[Any]:
        # In matroska the length belongs to the file, not to a stream: its pictures may outlast its sound.
        streams = () if self._family.startswith("matroska") else (self._stream,)
        packets = self._container.demux(*streams)
        while True:
            try:
                packet = next(packets, None)
            except (av.error.FFmpegError, ValueError):
                # The demuxer lost its way: what follows is lost too, like the end of a file.
                self._last_failed = True
                return
            if packet is None:
                return
            yield packet

    def _check(self, length_s: float) -> None:
        promise, stated_s = self._promise, self.stated_s
        given_s = max(length_s, self._decoded_s)
        if promise.overrun and promise.unbounded:
            _truncated(self._name, given_s)
        if promise.promised is not None and promise.present:
            stated_s = given_s * promise.promised / promise.present
        elif promise.family == "mp4" and not promise.overrun:
            # Edit lists make the stated length differ from the sound; all bytes are there.
            stated_s = None
        elif self._family.startswith("matroska"):
            given_s = max(given_s, self._end_s)
        if stated_s is not None and too_little(given_s, stated_s):
            _truncated(self._name, given_s, stated_s)
        if self._last_failed and self.stated_s is None and self._decoded_s > 0:
            _truncated(self._name, given_s)
        total_s = self._decoded_s + self._lost_s
        if too_little(self._decoded_s, total_s) or (self._packets and not self._decoded_s):
            raise MediaError("corrupt_audio", f"Too much of the input ({self._name}) could not be decoded.")


class _File:
    """What FFmpeg reads from. It gets no name by which it could open a neighbour.

    A damaged file makes FFmpeg seek to places that do not exist. PyAV would keep that exception and raise it
    from a later, innocent call, so `seek` answers with an error code.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.lseek(fd, 0, os.SEEK_SET)

    def read(self, size: int) -> bytes:
        return os.read(self._fd, size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return os.lseek(self._fd, offset, whence)
        except (OSError, OverflowError):
            return -errno.EINVAL

    def tell(self) -> int:
        return os.lseek(self._fd, 0, os.SEEK_CUR)


class _Clock:
    """Finds holes in the time stamps of decoded frames."""

    def __init__(self) -> None:
        self._start_s: float | None = None
        self.length_s = 0.0
        """From the first sample to the end of the last, holes included."""

    def gap(self, frame: av.AudioFrame) -> float:
        """Seconds of silence that belong before this frame: 0 where it follows on."""
        gap = 0.0
        if frame.pts is not None and frame.time_base is not None:
            at = float(frame.pts * frame.time_base)
            if self._start_s is None:
                self._start_s = at
            ahead = at - self._start_s - self.length_s
            if GAP_S < ahead <= LONGEST_GAP_S:
                gap = ahead
            elif ahead > LONGEST_GAP_S or ahead < -GAP_S:
                # Another recording was joined on, with a clock of its own.
                self._start_s = at - self.length_s
        self.length_s += gap + frame.samples / frame.sample_rate
        return gap


def _silence(seconds: float) -> Iterator[Pcm]:
    left = round(seconds * SAMPLE_RATE)
    while left > 0:
        count = min(left, SAMPLE_RATE)
        left -= count
        yield np.zeros(count, dtype=np.int16)


def _refuse(*_args: object) -> NoReturn:
    raise PermissionError("An input may not open other files.")
