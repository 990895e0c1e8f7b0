import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.media.cut import FRAME_S, OFF, ON, OVERLAP_S, PAD_S, Cut, Cutter, cut, speech
from worker.media.types import SAMPLE_RATE
from worker.media.vad import FRAME

runs = st.lists(
    st.tuples(st.integers(1, 700), st.sampled_from([0.0, 0.1, OFF, 0.3, ON, 0.9, 1.0])),
    min_size=0,
    max_size=25,
)


def track(*parts: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, probability)... -> probabilities and energies."""
    probabilities = np.concatenate(
        [np.full(round(seconds / FRAME_S), value, np.float32) for seconds, value in parts]
    )
    return probabilities, (probabilities * 60 - 80).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(
    runs=runs, seed=st.integers(0, 99), tail=st.integers(1, FRAME), limit=st.sampled_from([2.0, 7.5, 30.0])
)
def test_pieces_are_ordered_within_the_file_and_within_the_limit(runs, seed, tail, limit):
    """Whatever the detector says, pieces keep order, overlap by two seconds at most, lie in the file and fit the
    window."""
    probabilities = np.concatenate([np.zeros(0, np.float32), *[np.full(n, v, np.float32) for n, v in runs]])
    energies = np.random.default_rng(seed).normal(-40, 10, len(probabilities)).astype(np.float32)
    samples = max(0, (len(probabilities) - 1) * FRAME + tail) if len(probabilities) else 0
    start = end = before = 0
    for piece in cut(probabilities, energies, samples, limit).pieces:
        assert max(start, end - 2 * OVERLAP_S * SAMPLE_RATE, before) <= piece.offset
        assert piece.offset < piece.end <= samples
        assert end <= piece.end
        assert piece.samples <= limit * SAMPLE_RATE
        # Never three at one moment.
        start, before, end = piece.offset + 1, end, piece.end


@settings(max_examples=150, deadline=None)
@given(runs=runs, limit=st.sampled_from([2.0, 7.5, 30.0]))
def test_every_frame_of_speech_is_in_a_piece(runs, limit):
    """No frame of any stretch of speech is left out, however the pieces are cut."""
    probabilities = np.concatenate([np.zeros(0, np.float32), *[np.full(n, v, np.float32) for n, v in runs]])
    covered = np.zeros(len(probabilities), bool)
    result = cut(probabilities, probabilities * 10, len(probabilities) * FRAME, limit)
    for piece in result.pieces:
        covered[piece.offset // FRAME : piece.end // FRAME] = True
    for stretch in speech(probabilities):
        assert covered[stretch.start : stretch.end].all()
    loud = probabilities >= ON
    for at in range(len(loud) - 2):
        assert covered[at] or not loud[at : at + 3].all()


@settings(max_examples=300, deadline=None)
@given(
    runs=runs,
    portions=st.lists(st.integers(1, 2_000), min_size=1, max_size=60),
    seed=st.integers(0, 99),
    tail=st.integers(1, FRAME),
    limit=st.sampled_from([2.0, 7.5, 30.0]),
)
def test_the_pieces_do_not_depend_on_how_the_frames_come(runs, portions, seed, tail, limit):
    """In whatever portions a recording is heard, it is cut as the whole at once is; what is told early can be read by
    then, and is never all."""
    probabilities = np.concatenate([np.zeros(0, np.float32), *[np.full(n, v, np.float32) for n, v in runs]])
    energies = np.random.default_rng(seed).normal(-40, 10, len(probabilities)).astype(np.float32)
    samples = max(0, (len(probabilities) - 1) * FRAME + tail) if len(probabilities) else 0
    cutter = Cutter(limit)
    early = []
    for begin, portion in zip(np.cumsum([0, *portions]), [*portions, 1 << 30], strict=True):
        end = begin + portion
        told = cutter.hear(probabilities[begin:end], energies[begin:end])
        assert all(piece.end <= min(end * FRAME, samples) for piece in told)
        early += told
    rest = cutter.finish(samples)
    assert rest.pieces or not early
    assert Cut((*early, *rest.pieces), rest.speech_s) == cut(probabilities, energies, samples, limit)


def test_frames_one_by_one_are_cut_alike():
    """Frame by frame, two minutes of talk with pauses and one long breath give the pieces of the whole."""
    parts = (9, 0.9), (0.5, 0), (18, 0.9), (1.2, 0), (70, 0.95), (0.4, 0), (8, 0.9), (7, 0), (5, 0.9)
    probabilities, energies = track(*parts)
    cutter = Cutter()
    early = []
    for frame in zip(probabilities[:, None], energies[:, None], strict=True):
        early += cutter.hear(*frame)
    rest = cutter.finish(len(probabilities) * FRAME).pieces
    assert len(early) > len(rest) > 0
    assert (*early, *rest) == cut(probabilities, energies, len(probabilities) * FRAME).pieces


def test_a_shred_behind_a_cut_waits_for_what_it_begins():
    """Two pieces overlap by two seconds also where the second begins with a shred: its length counts, once known."""
    probabilities = np.concatenate([np.full(1800, 0.95), np.zeros(15), np.full(300, 0.95), np.zeros(400)])
    probabilities = probabilities.astype(np.float32)
    cutter = Cutter()
    early = [piece for frame in probabilities[:, None] for piece in cutter.hear(frame, frame)]
    _, before, after = (*early, *cutter.finish(len(probabilities) * FRAME).pieces)
    assert (before.end - after.offset) / SAMPLE_RATE == pytest.approx(2 * OVERLAP_S, abs=2 * FRAME_S)


@pytest.mark.parametrize(("frames", "stretches"), [(5, 1), (6, 2)])
def test_a_stop_within_a_word_is_no_pause(frames, stretches):
    """Up to five frames between two that may be speech, 0.2 s from one to the other, divide no stretch."""
    assert len(speech(np.array([0.9] * 5 + [0.0] * frames + [0.9] * 5, np.float32))) == stretches


def test_the_first_piece_does_not_wait_for_the_end():
    """Of an endless talk the first piece is told before three of the longest could have been said."""
    probabilities, energies = track(*[(9, 0.9), (0.5, 0)] * 100)
    cutter = Cutter()
    early = [cutter.hear(probabilities[at : at + 16], energies[at : at + 16]) for at in range(0, 2816, 16)]
    assert any(early)


def test_what_fits_a_piece_comes_at_the_end():
    """A file of thirty seconds, whose last frame is padded, tells nothing early, though a pause divides it."""
    probabilities, energies = track((10, 0.95), (8, 0), (12.03, 0.95))
    cutter = Cutter()
    assert cutter.hear(probabilities, energies) == ()
    assert cutter.finish(30 * SAMPLE_RATE) == cut(probabilities, energies, 30 * SAMPLE_RATE)


def test_silence_gives_no_pieces():
    """Audio in which nobody speaks is done with nothing to recognise."""
    result = cut(*track((60, 0.05)), 60 * SAMPLE_RATE)
    assert (result.pieces, result.speech_s) == ((), 0.0)


def test_a_click_is_not_speech():
    """One loud frame alone is no word."""
    assert speech(track((1, 0), (FRAME_S, 1.0), (1, 0))[0]) == []


def test_a_short_pause_stays_inside_a_piece():
    """A pause of one second between two sentences does not split them."""
    assert len(cut(*track((5, 0.9), (1, 0), (5, 0.9)), 11 * SAMPLE_RATE).pieces) == 1


def test_a_real_pause_ends_a_piece_that_is_long_enough():
    """After 16 s a pause of 2.5 s ends the piece, although 30 s would have held both sides."""
    pieces = cut(*track((16, 0.9), (2.5, 0), (8, 0.9)), int(26.5 * SAMPLE_RATE)).pieces
    assert [round(p.duration_s) for p in pieces] == [16, 8]


def test_a_dead_pause_always_splits():
    """Ten seconds of silence are not sent to the recogniser."""
    pieces = cut(*track((3, 0.9), (10, 0), (3, 0.9)), 16 * SAMPLE_RATE).pieces
    assert sum(p.duration_s for p in pieces) == pytest.approx(6 + 2 * PAD_S, abs=0.1)


def test_the_longest_pause_near_the_limit_is_where_it_cuts():
    """Of two pauses that would do, the longer one becomes the seam."""
    parts = (17, 0.9), (1.2, 0), (6, 0.9), (0.5, 0), (10, 0.9)
    first, second = cut(*track(*parts), int(34.7 * SAMPLE_RATE)).pieces
    assert 17 <= first.end / SAMPLE_RATE <= second.start_s <= 18.2


def test_what_is_left_after_a_cut_is_cut_again():
    """A pause taken early can leave more than a window before the next stretch: two cuts are needed."""
    probabilities, energies = track((16, 0.9), (1.9, 0), (2, 0.9), (0.5, 0), (28.5, 0.9))
    pieces = cut(probabilities, energies, len(probabilities) * FRAME).pieces
    assert [round(piece.duration_s) for piece in pieces] == [16, 3, 29]


def test_unbroken_speech_is_cut_at_its_quietest_spot():
    """A minute without a pause is cut at the dip that comes before the limit, not at the limit."""
    parts = (25, 0.95), (0.1, 0.5), (35, 0.95)
    first, second = cut(*track(*parts), int(60.1 * SAMPLE_RATE)).pieces[:2]
    assert (first.end + second.offset) / 2 / SAMPLE_RATE == pytest.approx(25.05, abs=0.1)


def test_pieces_of_unbroken_speech_overlap():
    """Where a cut falls into speech, both pieces hold the second before it and the second behind it."""
    parts = (25, 0.95), (0.1, 0.5), (35, 0.95)
    first, second = cut(*track(*parts), int(60.1 * SAMPLE_RATE)).pieces[:2]
    assert (first.end - second.offset) / SAMPLE_RATE == pytest.approx(2 * OVERLAP_S, abs=2 * FRAME_S)


def test_what_fits_a_piece_is_not_cut():
    """Thirty seconds of speech without a pause are one piece, to the sample."""
    probabilities, energies = track((30.02, 0.95))
    (piece,) = cut(probabilities, energies, 30 * SAMPLE_RATE).pieces
    assert (piece.offset, piece.samples) == (0, 30 * SAMPLE_RATE)


def test_a_sample_more_is_cut():
    """Of 30.01 s of speech without a pause nothing is left out: two pieces, the second of them no shred."""
    probabilities, energies = track((30.03, 0.95))
    samples = round(30.01 * SAMPLE_RATE)
    first, second = cut(probabilities, energies, samples).pieces
    assert (first.offset, second.end) == (0, samples)
    assert second.samples > 2 * OVERLAP_S * SAMPLE_RATE


def test_padding_stays_within_the_file():
    """Speech from the first sample to the last gets no padding beyond them."""
    probabilities, energies = track((2, 0.9))
    samples = len(probabilities) * FRAME - 100
    (piece,) = cut(probabilities, energies, samples).pieces
    assert (piece.offset, piece.samples) == (0, samples)


def test_close_neighbours_share_the_pause_without_overlap():
    """Two pieces with 0.3 s between them meet at the quietest frame of the pause."""
    probabilities, energies = track((20, 0.9), (0.3, 0), (20, 0.9))
    energies[round(20.1 / FRAME_S)] = -200
    first, second = cut(probabilities, energies, len(probabilities) * FRAME).pieces
    assert first.end == second.offset == round(20.1 / FRAME_S) * FRAME


@pytest.mark.parametrize(("silence_s", "kept"), [(0.6, True), (3.0, False)])
def test_only_short_silence_stays_at_the_ends(silence_s, kept):
    """Up to a second of silence at the ends of a recording belongs to its piece; more is cut off."""
    probabilities, energies = track((silence_s, 0.0), (5.0, 1.0), (silence_s, 0.0))
    samples = len(probabilities) * FRAME
    (piece,) = cut(probabilities, energies, samples).pieces
    whole = (piece.offset, piece.end) == (0, samples)
    assert whole is kept
    assert kept or abs(piece.start_s - (silence_s - PAD_S)) < 2 * FRAME_S


def test_the_ends_do_not_stretch_a_piece_over_the_limit():
    """Speech that fills a piece leaves no room for the silence before it."""
    probabilities, energies = track((0.9, 0.0), (29.2, 1.0), (0.9, 0.0))
    for piece in cut(probabilities, energies, len(probabilities) * FRAME).pieces:
        assert piece.samples <= 30 * SAMPLE_RATE
