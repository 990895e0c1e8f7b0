"""What a container promises, read from its bytes. Decoders hide it: a cut file decodes in silence.

What can be known about a file cut to 60 % (libsndfile 1.2.2, FFmpeg 8):

* wav, rf64, w64, aiff, au, caf state the bytes of their data chunk; both libraries read what is there. A size
  of 0 or near the field's maximum was written by a recorder that could not seek back: no promise.
* m4a, mp4, mov, 3gp are boxes with sizes. With the index at the end the file cannot be opened at all; with it
  in front the last box runs past the end. A fragmented file cut between fragments looks whole.
* ogg (vorbis, opus) has no length, but its pages have: a file that ends inside a page was cut. Ending with a
  whole page is taken as done, even without the end-of-stream flag, which live recorders leave out
  (RFC 7845 section 3 says SHOULD).
* mp3 promises a number of frames where it has a Xing, Info or VBRI header; else nothing can be known.
* flac and webm state samples or a duration, which their readers report (a live webm or a piped flac: none).
* aac (ADTS) and amr have no length; a cut nearly always leaves a last packet that does not decode.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

STREAMED = 0x7FFF_F000
"""32-bit sizes from here up mean "unknown" (FFmpeg writes 0xFFFFFFFF, SoX and arecord 0x7FFFF000 and up)."""

_MP4_FIRST = (b"ftyp", b"moov", b"mdat", b"moof", b"styp", b"free", b"skip", b"wide")


@dataclass(frozen=True, slots=True)
class Promise:
    """What the container says about its own length."""

    family: str = ""
    """ "riff", "rf64", "w64", "aiff", "au", "caf", "mp4", "ogg", "mp3", or "" for any other."""
    present: int = 0
    """Bytes of sound that are there, where `promised` is known."""
    promised: int | None = None
    """Bytes of sound that are stated."""
    frames: int | None = None
    """MPEG audio frames that are stated."""
    overrun: bool = False
    """The file ends inside a unit that it began."""
    unbounded: bool = False
    """With `overrun`: how much is missing after that unit cannot be known."""


def read(fd: int) -> Promise:
    """The promise of an open file. Leaves the file's position alone. Raises OSError."""
    size = os.fstat(fd).st_size
    head = os.pread(fd, 64, 0)
    return _reader(head)(fd, size, head)


def _reader(head: bytes) -> Callable[[int, int, bytes], Promise]:
    form = head[:4], head[8:12]
    if form[0] in (b"RIFF", b"RIFX", b"RF64", b"BW64") and form[1] == b"WAVE":
        return _riff
    if form in ((b"FORM", b"AIFF"), (b"FORM", b"AIFC")):
        return _aiff
    if form[0] == b"riff" and head[24:28] == b"wave":
        return _w64
    if head[4:8] in _MP4_FIRST:
        return _mp4
    return {b"caff": _caf, b".snd": _au, b"OggS": _ogg}.get(form[0], _mp3)


def stated_mp3_seconds(promise: Promise, rate: int) -> float | None:
    """Seconds that an mp3 states: 1152 samples a frame, 576 below 32 kHz (MPEG-2 and 2.5, ISO 13818-3)."""
    if promise.frames is None or rate <= 0:
        return None
    return promise.frames * (1152 if rate >= 32_000 else 576) / rate


Chunks = Iterator[tuple[bytes, int, int | None]]
"""(name, first byte of the body, length or None where it is not stated)."""


def _chunked(family: str, chunks: Chunks, name: bytes, size: int) -> Promise:
    for found, start, length in chunks:
        if found == name:
            present = max(0, size - start)
            if length is None or length == 0:
                return Promise(family, present)
            return Promise(family, min(present, length), length, overrun=length > present)
    # The file ends before its sound begins: nothing says how much was meant to follow.
    return Promise(family, overrun=True, unbounded=True)


def _iff(fd: int, size: int, at: int, order: str) -> Chunks:
    while at + 8 <= size:
        name, length = struct.unpack(f"{order}4sI", os.pread(fd, 8, at))
        yield name, at + 8, None if length >= STREAMED else length
        at += 8 + length + (length & 1)


def _riff(fd: int, size: int, head: bytes) -> Promise:
    order = ">" if head[:4] == b"RIFX" else "<"
    family = "rf64" if head[:4] in (b"RF64", b"BW64") else "riff"
    wide: int | None = None

    def chunks() -> Chunks:
        nonlocal wide
        for name, start, length in _iff(fd, size, 12, order):
            if name == b"ds64" and family == "rf64":
                # EBU Tech 3306: RIFF size, then the size of the data chunk, 64 bits each.
                body = os.pread(fd, 16, start)
                wide = struct.unpack("<8xQ", body)[0] if len(body) == 16 else None
            yield name, start, wide if length is None and family == "rf64" else length

    return _chunked(family, chunks(), b"data", size)


def _aiff(fd: int, size: int, _head: bytes) -> Promise:
    return _chunked("aiff", _iff(fd, size, 12, ">"), b"SSND", size)


def _au(_fd: int, size: int, head: bytes) -> Promise:
    if len(head) < 12:
        return Promise("au", overrun=True, unbounded=True)
    start, length = struct.unpack(">II", head[4:12])
    return _chunked("au", iter([(b"data", start, None if length >= STREAMED else length)]), b"data", size)


def _w64(fd: int, size: int, _head: bytes) -> Promise:
    return _chunked("w64", _w64_chunks(fd, size), b"data", size)


def _w64_chunks(fd: int, size: int) -> Chunks:
    at = 40
    while at + 24 <= size:
        guid, length = struct.unpack("<16sQ", os.pread(fd, 24, at))
        if length < 24:
            return
        yield guid[:4], at + 24, length - 24
        at += (length + 7) & ~7


def _caf(fd: int, size: int, _head: bytes) -> Promise:
    return _chunked("caf", _caf_chunks(fd, size), b"data", size)


def _caf_chunks(fd: int, size: int) -> Chunks:
    at = 8
    while at + 12 <= size:
        name, length = struct.unpack(">4sq", os.pread(fd, 12, at))
        yield name, at + 12, None if length < 0 else length
        if length < 0:
            return
        at += 12 + length


def _mp4(fd: int, size: int, _head: bytes) -> Promise:
    """Walks the top-level boxes (ISO 14496-12, section 4.2)."""
    at, fragmented, indexed = 0, False, False
    while at + 8 <= size:
        length, name = struct.unpack(">I4s", os.pread(fd, 8, at))
        if length == 1:
            wide = os.pread(fd, 8, at + 8)
            length = struct.unpack(">Q", wide)[0] if len(wide) == 8 else 16
        if length == 0:
            length = size - at
        if length < 8:
            break
        fragmented |= name == b"moof"
        indexed |= name == b"moov"
        at += length
    # Between 1 and 7 bytes of a next box count as an overrun too.
    overrun = at > size or 0 < size - at < 8
    return Promise("mp4", overrun=overrun, unbounded=overrun and (fragmented or not indexed))


_LONGEST_PAGE = 27 + 255 + 255 * 255


def _ogg(fd: int, size: int, _head: bytes) -> Promise:
    return Promise("ogg", overrun=_ogg_cut(fd, size), unbounded=True)


def _ogg_cut(fd: int, size: int) -> bool:
    """Whether the file ends inside a page (RFC 3533, section 6)."""
    start = max(0, size - 2 * _LONGEST_PAGE)
    tail = os.pread(fd, size - start, start)
    at = tail.rfind(b"OggS")
    while at >= 0:
        head = tail[at : at + 27]
        # A version byte other than 0 is the capture pattern inside a packet, not a page.
        if len(head) < 5 or head[4] == 0:
            if len(head) < 27 or len(tail) < at + 27 + head[26]:
                return True
            body = sum(tail[at + 27 : at + 27 + head[26]])
            end = at + 27 + head[26] + body
            return end > len(tail) or tail[end:] in (b"O", b"Og", b"Ogg")
        at = tail.rfind(b"OggS", 0, at)
    return False


def _mp3(fd: int, _size: int, head: bytes) -> Promise:
    """The number of frames, from the header in the first frame (Xing and VBRI, both by convention)."""
    at = 0
    if head[:3] == b"ID3" and len(head) >= 10:
        at = 10 + sum(byte << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
    first = os.pread(fd, 4096, at)
    # The first frame may follow some padding.
    sync = next((i for i in range(len(first) - 1) if first[i] == 0xFF and first[i + 1] & 0xE6 == 0xE2), None)
    if sync is None:
        return Promise()
    frame = first[sync : sync + 64]
    for mark, skip in ((b"Xing", 8), (b"Info", 8), (b"VBRI", 14)):
        found = frame.find(mark)
        if found < 0 or len(frame) < found + skip + 4:
            continue
        if mark != b"VBRI" and not frame[found + 7] & 1:
            continue
        return Promise("mp3", frames=struct.unpack(">I", frame[found + skip : found + skip + 4])[0])
    return Promise("mp3")
