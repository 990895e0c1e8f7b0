"""What the speech benchmark reports. It is measured by running it, not by a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import soundfile
from click.testing import CliRunner

from ops.bench import environments, search, speech, speech_references
from ops.bench.speech import audio, markdown, ours, report, run, side, steps, trace, works
from ops.bench.speech.audio import Sound
from ops.bench.speech.report import Entry, Turn
from ops.bench.speech.run import Contender
from ops.bench.speech.side import PEERS, Answer, Heard, Peer, Side, SideFailed
from ops.commands import bench_speech
from ops.exits import Trouble
from queueing.errors import ResultTimeout
from queueing.job import Timings

SOUNDS = (Sound(Path("a.wav"), "one two", 2.0), Sound(Path("b.wav"), "three four", 4.0))
RIGHT = (Heard("One two.", ((0.0, 2.0, "One two."),)), Heard("Three four.", ((0.0, 4.0, "Three four."),)))
WRONG = (Heard("", ()), Heard("three four", ((0.05, 3.5, "three four"),)))


def entry(*figures: float, heard: tuple[Heard, ...] = RIGHT) -> Entry:
    return Entry([Turn(figure, SOUNDS, heard) for figure in figures])


def a_row(mine: Entry, theirs: Entry, peer: str = "mlx-audio") -> dict[str, Any]:
    return report.row(works.WORKS["clips"], PEERS[peer], mine, theirs)


def test_a_row_has_medians_and_their_word_error_rates() -> None:
    """A row holds the median of each side, the median of the ratios of each round, and each side's own errors."""
    row = a_row(entry(8.0, 4.0, 16.0), entry(1.6, 1.0, 2.0, heard=WRONG))
    assert (row["ours"], row["theirs"], row["ratio"], row["spread"]) == (8.0, 1.6, 5.0, [4.0, 8.0])
    assert (row["wer"], row["wer_theirs"]) == (0.0, 0.5)
    assert (row["aim"], row["reached"]) == (">= 10", False)


def test_an_aim_of_latency_is_reached_from_below() -> None:
    """Of two latencies the smaller one is better."""
    row = report.row(works.WORKS["one"], PEERS["direct"], entry(1.0), entry(1.0))
    assert (row["aim"], row["reached"]) == ("<= 1.1", True)


def test_a_row_without_an_aim_is_reached_by_nobody() -> None:
    """Where we have no aim, nothing is reached and nothing is not."""
    row = a_row(entry(1.0), entry(9.0), "mlx-whisper")
    assert (row["aim"], row["reached"], row["ratio"]) == (None, None, 0.111)


def test_agreement_counts_words_and_segments() -> None:
    """Files with the same words are counted, and of their segments those that begin and end together."""
    told = report.agreement(Turn(1.0, SOUNDS, RIGHT), Turn(1.0, SOUNDS, WRONG))
    assert (told["files"], told["same_words"]) == (2, 1)
    assert (told["segments_compared"], told["segments_within_0.1_s"]) == (1, 0)
    assert told["differences"] == [{"file": "a", "ours": "One two.", "theirs": ""}]


def test_a_peer_that_failed_is_a_row() -> None:
    """Whoever could not be measured is in the table with the reason, and our own figure stands."""
    row = a_row(entry(8.0), Entry(trouble="no network"))
    assert (row["unavailable"], row["ours"], row["theirs"], row["ratio"]) == ("no network", 8.0, None, None)
    assert "no network" in markdown.line(row)


def test_a_peer_that_fails_in_a_round_ends_no_other() -> None:
    """A side whose process ends has no turn and is not asked again; the others have theirs."""
    asked: list[int] = []

    def fails(files: Any, timeout_s: float) -> Answer:
        asked.append(len(files))
        raise SideFailed("its process ended")

    def answers(files: Any, timeout_s: float) -> Answer:
        return Answer(2.0, tuple(RIGHT[: len(files)]))

    sides = [Contender(None, answers, Entry()), Contender(PEERS["mlx-audio"], fails, Entry())]
    for _ in range(2):
        run._round(works.WORKS["clips"], [SOUNDS], sides)
    assert [turn.figure for turn in sides[0].entry.turns] == [1.0, 1.0]
    assert (sides[1].entry.trouble, sides[1].entry.turns, asked) == ("its process ended", [], [2])


def test_figures_of_works() -> None:
    """Clips are counted by the second, long files by their length, and of single clips the median counts."""
    calls = [SOUNDS]
    assert works.files_a_second(calls, [4.0]) == 0.5
    assert works.audio_a_second(calls, [3.0]) == 2.0
    assert works.median_seconds(calls, [1.0, 9.0, 2.0]) == 2.0
    assert run.p95([1.0] * 10 + [3.0] * 10) == 3.0


def test_every_work_names_peers_that_there_are() -> None:
    """Each peer of a work is known, the command offers every work, and every group of peers."""
    assert {name for work in works.WORKS.values() for name in work.against} <= set(PEERS)
    assert bench_speech.WORKS == works.NAMES
    assert set(bench_speech.PEERS) == {peer.group for peer in PEERS.values() if peer.group}


@pytest.mark.parametrize("name", sorted({peer.pins for peer in PEERS.values() if peer.pins}))
def test_every_pin_is_exact(name: str) -> None:
    """Every line of a list of pins names one version, and the peer itself is among them."""
    pins = side.HERE / "pins" / f"{name}.txt"
    assert all(line.count("==") == 1 + line.count("sys_platform") for line in pins.read_text().splitlines())
    assert environments.pinned(pins, name)


def test_a_side_is_spoken_to_by_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side tells its facts, answers paths with what it heard, and ends with its input."""
    program = tmp_path / "echo.py"
    program.write_text(
        "import sys\nfrom lines import Heard, answers, one_by_one, serve\n"
        "output = answers()\nprint('chatter')\n"
        "serve(output, {'version': '1'}, one_by_one(lambda path: Heard(path, [(0, 1, path)])))\n"
    )
    paths = {"PYTHONPATH": str(side.HERE / "sides")}
    monkeypatch.setattr(side, "_interpreter", lambda *given: ([sys.executable, str(program)], paths))
    monkeypatch.setattr(side, "_given", lambda *given: [])
    with Side.start(Peer("echo", "", "", ""), None, print) as echo:
        assert echo.facts == {"version": "1"}
        answer = echo.hear([Path("x.wav")], 30.0)
    assert answer.heard == (Heard("x.wav", ((0, 1, "x.wav"),)),)
    assert echo.process.returncode == 0


def test_a_side_that_has_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ended between two calls is a failure of the next one, not an endless wait."""
    monkeypatch.setattr(side, "_interpreter", lambda *given: ([sys.executable, "-c", "print('{}')"], {}))
    monkeypatch.setattr(side, "_given", lambda *given: [])
    with Side.start(Peer("brief", "", "", ""), None, print) as brief:
        brief.process.wait()
        with pytest.raises(SideFailed, match="status 0"):
            brief.hear([Path("x.wav")], 30.0)


def test_a_side_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is bounded, and nothing of the side is left."""
    program = "import sys; print('{}', flush=True); sys.stdin.read()"
    monkeypatch.setattr(side, "_interpreter", lambda *given: ([sys.executable, "-c", program], {}))
    monkeypatch.setattr(side, "_given", lambda *given: [])
    with Side.start(Peer("mute", "", "", ""), None, print) as mute, pytest.raises(SideFailed, match="within"):
        mute.hear([Path("x.wav")], 0.1)
    assert mute.process.returncode is not None


def test_a_side_that_does_not_come_up_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends at once is a peer that cannot be had."""
    monkeypatch.setattr(
        side, "_interpreter", lambda *given: ([sys.executable, "-c", "raise SystemExit(3)"], {})
    )
    monkeypatch.setattr(side, "_given", lambda *given: [])
    with pytest.raises(environments.PeerUnavailable, match="status 3"):
        Side.start(Peer("gone", "", "", ""), None, print)


RECORDS = [
    {"kind": "encode", "rows": ["a", "b"], "jobs": ["a", "b"], "steps": 1, "seconds": 0.5},
    {"kind": "decode", "rows": ["a", "b"], "jobs": ["a", "b"], "steps": 3, "seconds": 0.3},
    {"kind": "decode", "rows": ["a"], "jobs": ["a"], "steps": 1, "seconds": 0.1},
]


def test_the_step_log_tells_how_large_batches_were() -> None:
    """Records of several steps weigh as many; what no record tells is not told, rather than zero."""
    told = steps.summary(RECORDS)
    assert told["rows"] == {"encode": {"2": 1}, "decode": {"1": 1, "2": 3}}
    assert told["mean_rows"] == {"encode": 2.0, "decode": 1.75}
    assert (told["occupancy"], told["padding_waste"]) == (None, None)
    assert told["seconds"] == {"decode": 0.4, "encode": 0.5}


def test_slots_and_padding_are_reported_where_they_are_told() -> None:
    """Rows over slots, and what of the encoded seconds is no audio."""
    more = [{**one, "slots": 4, "padded_s": 20.0, "audio_s": 5.0} for one in RECORDS]
    told = steps.summary(more)
    assert (told["occupancy"], told["padding_waste"]) == (0.44, 0.75)


def test_a_half_written_record_is_left_for_later(tmp_path: Path) -> None:
    """The log is read while it is written: its last line may not be whole."""
    log = tmp_path / "steps.jsonl"
    assert (steps.mark(log), steps.read(log)) == (0, [])
    log.write_text('{"kind": "encode"}\n')
    mark = steps.mark(log)
    log.write_text('{"kind": "encode"}\n{"kind": "decode"}\n{"ki')
    assert [one["kind"] for one in steps.read(log, mark)] == ["decode"]


def told() -> dict[str, Any]:
    rows = [
        a_row(entry(8.0), entry(1.6)),
        a_row(entry(8.0), Entry(trouble="gone")),
        a_row(entry(1.0), entry(2.0), "mlx-whisper"),
    ]
    facts = {"machine": "M", "python": "3", "mlx": "0", "model": "tiny.en", "date": "2026-01-01T00:00+00:00"}
    return {"rows": rows, "batches": {"clips": steps.summary(RECORDS), "one": steps.summary([])}, **facts}


def test_the_table_of_the_docs_is_made_from_the_json(tmp_path: Path) -> None:
    """The program that docs/performance.md names prints a line for each row, what it ran on, and the batches."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps(told()))
    printed = subprocess.run(
        [sys.executable, "-m", "ops.bench.speech.markdown", str(file), str(file)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert printed.count("| mlx-audio, same BLAS, float32 | 8.00 clips/s |") == 4
    assert "**5.00** (5.00 to 5.00) | >= 10: not reached |" in printed
    assert "M; Python 3, MLX 0, tiny.en; 2026-01-01." in printed
    assert "| clips | 2.0 | 1.8 | 1.8 | not told | not told |" in printed


def test_people_get_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --json there is a table with both figures, and a line for whoever was not measured."""
    monkeypatch.setenv("COLUMNS", "200")
    bench_speech.print_table(told())
    out = capsys.readouterr().out
    assert "8.00 clips/s" in out
    assert "was not measured: gone" in out
    assert "2 rows in a step of the encoder" in out


def test_an_unknown_work_is_refused() -> None:
    """A typo in a list of names ends the command before anything runs."""
    refused = CliRunner().invoke(bench_speech.speech_command, ["--work", "clips,lonng"])
    assert refused.exit_code == 2
    assert "lonng: choose from clips" in refused.output


def test_cutting_loses_nothing(tmp_path: Path) -> None:
    """The clips of a recording together are as long as the recording, to a sample."""
    clips = speech_references.clips()
    files = speech.cut(clips, tmp_path)
    for name in speech_references.recordings():
        lengths = [
            soundfile.info(f).frames for f, clip in zip(files, clips, strict=True) if clip.file == name
        ]
        assert sum(lengths) == soundfile.info(audio.recordings.folder() / name).frames


def test_the_long_file_says_what_it_holds(tmp_path: Path) -> None:
    """It is at least as long as asked, and its words are those of the recordings in it."""
    long = audio.joined(tmp_path / "long.wav", 60.0)
    assert soundfile.info(long.path).duration == pytest.approx(long.seconds)
    assert long.seconds >= 60
    texts = speech_references.recordings()
    assert long.text == " ".join(texts[name] for name in (*audio.JOINED, audio.JOINED[0]))


class Refusing:
    """A client whose jobs never end well."""

    def submit_many(self, inputs: Any) -> list[str]:
        return ["job" for _ in inputs]

    def result(self, job: str, timeout: float) -> None:
        raise ResultTimeout("not yet")


def test_a_clip_without_a_transcript_is_told(tmp_path: Path) -> None:
    """A clip that is not transcribed ends the benchmark instead of making it faster."""
    with pytest.raises(Trouble, match="not transcribed"):
        ours.hear(Refusing(), [tmp_path / "a.wav"], 1.0)


JOB = trace.Traced(
    "a", SOUNDS[0], 100.0, 103.5, Timings(queued=0.5, media=0.5, waiting=0.25, engine=2.0, total=3.3)
)


def test_the_trace_adds_up() -> None:
    """The parts of a job follow each other from its submission to its answer, and its steps lie in the engine's."""
    records = [{**one, "at": 101.8 + n} for n, one in enumerate(RECORDS)]
    (lane,) = trace.lanes([JOB], records)
    spans = {bar.kind: (bar.start, bar.end) for bar in lane.bars if bar.kind != "decode"}
    assert spans["queue"] == (0.0, 0.5)
    assert spans["engine"] == (1.25, 3.25)
    assert spans["encode"] == pytest.approx((1.3, 1.8))
    assert spans["settle"] == (3.25, 3.5)
    assert all(1.25 <= bar.start <= bar.end <= 3.25 for bar in lane.bars if bar.kind == "decode")


def test_the_picture_is_well_formed_and_names_what_it_shows() -> None:
    """An SVG that a browser reads, with a legend of the stages that are in it and of no other."""
    drawn = trace.picture(trace.lanes([JOB], RECORDS), trace.STAGES, title="a < b", note="n")
    shown = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "waits in Redis", "job 1: 2 s of audio"} <= set(shown)
    assert "language" not in shown


def test_a_search_is_compared_round_by_round() -> None:
    """The beam's row has the median of the ratios, each side's errors, and on how many clips it is likelier."""
    rounds = [
        {
            "1": {"seconds": 2.0, "texts": ["one two", "three"], "totals": [-3.0, -2.0]},
            "5": {"seconds": seconds, "texts": ["one two", "four"], "totals": [-2.5, -2.0001]},
        }
        for seconds in (4.0, 5.0, 8.0)
    ]
    told = search.report(["one two", "three"], {"rounds": rounds}, beam=5, model="m")
    (row,) = told["rows"]
    assert (row["ours"], row["theirs"], row["ratio"]) == (0.4, 1.0, 0.4)
    assert row["wer_theirs"] == 0 and row["wer"] == pytest.approx(1 / 3, abs=1e-3)
    assert told["total_logprob"] == {"higher": 1, "equal": 1, "lower": 0}


def test_times_of_words_are_compared_where_both_heard_them() -> None:
    """A word that one side alone heard counts as a word, and has no difference."""
    ours = [[" Ever", 0.0, 0.5], [" tried,", 0.5, 1.2]]
    theirs = [[" ever", 0.0, 0.5], [" well", 0.5, 0.6], [" tried.", 0.6, 1.24]]
    found = search.word_times([{"ours": ours, "theirs": theirs}])
    assert (found["words"], found["in_both"]) == (3, 2)
    assert (found["median_s"], found["max_s"]) == (0.02, 0.1)
