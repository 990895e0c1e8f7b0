import stat

import pytest

from worker.media.spool import Spool


def test_opening_removes_what_an_earlier_life_left_and_nothing_else(tmp_path):
    """Old spool files go, foreign files stay."""
    for name in ("old-000001.pcm", "old-000001.input", "keep.txt"):
        (tmp_path / name).touch()
    Spool(tmp_path).open()
    assert [path.name for path in tmp_path.iterdir()] == ["keep.txt"]


def test_the_folder_is_private(tmp_path):
    """Nobody else may look into the folder."""
    Spool(tmp_path / "a" / "b").open()
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_link_is_refused(tmp_path):
    """A folder that somebody replaced by a link is not used."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError):
        Spool(tmp_path / "link").open()


@pytest.mark.parametrize("job", ["../../etc/passwd", "a/b", "", "\0", "é" * 300, ".."])
def test_a_job_name_cannot_leave_the_folder(tmp_path, job):
    """Whatever a job is called, its files lie in the folder."""
    for path in Spool(tmp_path).names(job):
        assert path.parent == tmp_path
        assert path.resolve().parent == tmp_path.resolve()
        assert len(path.name) < 80


def test_names_never_repeat(tmp_path):
    """The same job tried again gets other files."""
    spool = Spool(tmp_path)
    assert not set(spool.names("a")) & set(spool.names("a"))


def test_discarding_takes_only_what_is_held(tmp_path):
    """A path that is no finished spool file survives, and discarding twice is harmless."""
    spool = Spool(tmp_path)
    spool.open()
    stranger = tmp_path / "stranger.pcm"
    stranger.write_bytes(b"ab")
    sound, _ = spool.names("a")
    sound.write_bytes(b"abcd")
    spool.keep(sound, 2)
    assert spool.held_bytes == 4
    for path in (sound, sound, stranger):
        spool.discard(str(path))
    assert (spool.held_bytes, sound.exists(), stranger.exists()) == (0, False, True)


def test_a_lent_file_stays_until_it_is_discarded(tmp_path):
    """What somebody reads while it is written outlives the writing, is counted then, and can be discarded."""
    spool = Spool(tmp_path)
    lent, mine = (spool.names(name)[0] for name in "ab")
    for path in (lent, mine):
        path.write_bytes(b"abcdef")
    spool.lend(lent)
    assert (spool.held_bytes, spool.samples(lent)) == (0, 3)
    for path in (lent, mine):
        spool.drop(path)
    assert (spool.held_bytes, lent.exists(), mine.exists()) == (6, True, False)
    spool.discard(str(lent))
    assert (spool.held_bytes, lent.exists(), spool.samples(lent)) == (0, False, 0)


def test_a_file_of_another_length_is_not_kept(tmp_path):
    """A media process that lies about what it wrote is found out."""
    spool = Spool(tmp_path)
    sound, _ = spool.names("a")
    sound.write_bytes(b"abcd")
    with pytest.raises(ValueError, match="4 bytes instead of 6"):
        spool.keep(sound, 3)


def test_closing_before_opening_touches_nothing(tmp_path):
    """A worker that never started owns no file."""
    (tmp_path / "other.pcm").touch()
    Spool(tmp_path).close()
    assert (tmp_path / "other.pcm").exists()
