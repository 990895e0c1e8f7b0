from worker.media.slots import Load, Ticket, admits, choose


def load(slots=2, busy=0, busy_long=0, spool_bytes=0, max_spool_bytes=100):
    return Load(slots, busy, busy_long, spool_bytes, max_spool_bytes)


LONG, SHORT = Ticket(1, False, 10), Ticket(2, True, 10)


def test_one_slot_is_kept_for_short_work():
    """With one long job running, a second waits while a short one starts."""
    assert choose(load(busy=1, busy_long=1), [LONG, SHORT]) == SHORT


def test_a_single_slot_is_not_kept():
    """With one process long work runs too, or it never would."""
    assert choose(load(slots=1), [LONG]) == LONG


def test_first_come_first_served():
    """Among those that may start, the earliest does, short or not."""
    assert choose(load(), [LONG, SHORT]) == LONG


def test_nobody_starts_without_a_slot():
    """Busy processes take nothing more."""
    assert choose(load(busy=2, busy_long=1), [SHORT]) is None


def test_nobody_steps_over_work_that_waits_for_room():
    """A small file does not keep a large one out of a full spool."""
    large = Ticket(1, False, 60)
    assert choose(load(spool_bytes=50), [large, SHORT]) is None


def test_an_empty_spool_takes_anything():
    """A worst case above the whole bound does not wait for ever."""
    assert admits(load(), Ticket(1, False, 1000))


def test_a_full_spool_takes_nothing():
    """The worst case of a job counts before it starts."""
    assert not admits(load(spool_bytes=91), LONG)
    assert admits(load(spool_bytes=90), LONG)
