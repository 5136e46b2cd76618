"""What `ps` shows of a process, however it was written there."""

from pathlib import Path

from supervisor.linux import title
from tests.parts import in_fork


def shown():
    return Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode()


def test_a_title_replaces_the_one_before_whether_longer_or_shorter():
    def run():
        title.introduce("first, and somewhat longer")
        title.find()
        for text in ("second", "third: ä…", "", "fourth"):
            title.show(text)
            assert shown() == text

    in_fork(run)


def test_what_has_no_room_where_it_is_written_is_shown_as_well():
    def run():
        title.find()
        room = len(title._area)
        for length in (room - 1, room, room + 1, room - 2):
            title.show("x" * length)
            # That much of a title that is too long, as the environment is small here and there.
            assert shown()[: room - 1] == "x" * min(length, room - 1)
            assert len(shown()) <= length

    in_fork(run)


def test_it_is_shown_where_nobody_has_looked_for_its_place_and_in_a_fork_of_who_has():
    def run():
        title.show("not found yet")
        assert shown() == "not found yet"
        title.find()
        in_fork(lambda: (title.show("forked"), _same("forked")))
        assert shown() == "not found yet"

    in_fork(run)


def _same(text):
    assert shown() == text


def test_what_another_has_made_of_it_is_replaced():
    def run():
        title.find()
        title.introduce("a handler's own, which is longer than ours")
        title.show("ours")
        assert shown() == "ours"
        assert Path("/proc/self/comm").read_text() == "a handler's own\n"

    in_fork(run)
