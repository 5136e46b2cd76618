"""Each printed line belongs to its job, and only a bounded part is kept."""

import os
import random

import pytest

from supervisor.master.model.output import KEPT_BYTES, LINES_PER_S, LOGGED_BYTES_PER_S, READS_PER_S, Output
from tests.parts import open_fds

LEFT_OUT = b"leasehold: %d lines (%d bytes) are left out: more than 200 lines or 64 KiB in a second"


class Tape:
    """An output with its writing end, and what it told."""

    def __init__(self):
        reading, self.writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.open = set()  # tokens of jobs that are not answered yet
        self.said = []
        self.output = Output(reading, lambda token, line: self.said.append((token, line)), self.open.__contains__)

    def run(self, *tokens):
        self.open |= set(tokens)

    def answer(self, token):
        self.open.discard(token)
        self.output.forget(token)

    def prints(self, data, read=True):
        view = memoryview(data)
        while view:
            view = view[os.write(self.writing, view[:60_000]) :]
            if read:
                self.output.read()

    def lines(self, token):
        return [line for whose, line in self.said if whose == token]

    def hang_up(self):
        if self.writing is not None:
            os.close(self.writing)
            self.writing = None


@pytest.fixture
def tape():
    before = open_fds()
    tape = Tape()
    yield tape
    tape.hang_up()
    tape.output.close()
    assert open_fds() == before


def test_a_line_is_told_at_its_end(tape):
    tape.prints(b"one\ntwo\nthr")
    assert tape.said == [(0, b"one"), (0, b"two")]
    tape.prints(b"ee\n\n")
    assert tape.said[2:] == [(0, b"three"), (0, b"")]


def test_empty_pipe_gives_no_line_and_never_blocks(tape):
    assert tape.output.read() == 0
    assert (tape.said, tape.output.last_of(1), tape.output.at_end) == ([], "", False)


def test_unfinished_line_is_told_at_the_end_of_the_pipe(tape):
    tape.run(1)
    tape.prints(b"one\nlast words")
    tape.hang_up()
    tape.output.read_to_end()
    assert tape.output.at_end
    assert tape.lines(0) == [b"one", b"last words"]
    tape.output.read_to_end()
    assert tape.output.last_of(1) == "one\nlast words\n"


def test_one_chunk_of_three_jobs_is_told_apart(tape):
    tape.run(11, 12, 13)
    tape.prints(b"a1\na2\n\x1e11\nb1\n\x1e12\nc1\nc2")
    assert tape.lines(11) == [b"a1", b"a2"]
    assert tape.lines(12) == [b"b1"]
    assert tape.lines(0) == [b"c1"]
    assert [tape.output.last_of(token) for token in (11, 12, 13)] == ["a1\na2\n", "b1\n", "c1\nc2"]


def test_unfinished_line_before_a_mark_belongs_to_its_job(tape):
    tape.run(11, 12)
    tape.prints(b"a1\nopen\x1e11\nb1\n")
    assert tape.lines(11) == [b"a1", b"open"]
    assert [tape.output.last_of(token) for token in (11, 12)] == ["a1\nopen\n", "b1\n"]


STREAM = b"a1\nopen\x1e11\nb1\n\x1e12\n\x1e13\nc1\n"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cut", range(1, len(STREAM)))
def test_stream_cut_anywhere_is_told_the_same(tape, cut):
    tape.run(11, 12, 13, 14)
    tape.prints(STREAM[:cut])
    tape.prints(STREAM[cut:])
    assert [tape.output.last_of(token) for token in (11, 12, 13, 14)] == ["a1\nopen\n", "b1\n", "", "c1\n"]


@pytest.mark.parametrize("cut", range(1, 5))
def test_mark_cut_behind_a_huge_line_is_found(tape, cut):
    tape.run(11, 12)
    tape.prints(b"x" * 9000 + b"\x1e11\n"[:cut])
    tape.prints(b"\x1e11\n"[cut:] + b"b1\n")
    assert tape.output.last_of(11).replace("\n", "") == "x" * 9000
    assert tape.output.last_of(12) == "b1\n"
    assert b"b1" in tape.lines(0)


def test_next_job_inherits_no_output_without_a_mark(tape):
    tape.run(11, 12)
    tape.prints(b"secret of 11\nand its open line")
    tape.answer(11)
    assert tape.lines(11) == [b"and its open line"]
    tape.prints(b"b1\n")
    assert tape.output.last_of(12) == "b1\n"


def test_output_read_after_the_answer_is_not_the_next_jobs(tape):
    tape.run(11, 12)
    tape.prints(b"a1\n")
    tape.answer(11)
    tape.prints(b"a2\n\x1e11\nb1\n")
    assert tape.lines(11) == [b"a2"]
    assert tape.output.last_of(12) == "b1\n"


def test_beginning_of_a_mark_survives_the_answer(tape):
    tape.run(11, 12)
    tape.prints(b"a1\n\x1e1")
    tape.answer(11)
    tape.prints(b"1\nb1\n")
    assert tape.lines(0) == [b"a1", b"b1"]
    assert tape.output.last_of(12) == "b1\n"


def test_last_of_includes_unread_output(tape):
    tape.run(11)
    tape.prints(b"x" * 50_000 + b"\nend\n", read=False)
    assert tape.output.last_of(11).endswith("xxx\nend\n")


def test_jobs_answered_before_their_mark_leave_no_memory(tape):
    for token in range(1, 500):
        tape.run(token)
        tape.prints(b"x" * 100 + b"\n\x1e%d\n" % token, read=False)
        tape.answer(token)
        tape.output.read()
    assert tape.output._marked == {}
    assert len(tape.output._unmarked) == 0


def test_forged_marks_take_no_memory(tape):
    tape.run(11)
    tape.prints(b"".join(b"\x1e%d\n" % number for number in range(10_000)))
    assert set(tape.output._marked) <= {11}
    tape.prints(b"\x1e11\n")
    assert tape.output._marked.keys() == {11}


@pytest.mark.parametrize("digits", [21, 4300, 5000, 50_000])
def test_mark_with_too_many_digits_is_a_line(tape, digits):
    tape.run(11)
    tape.prints(b"\x1e" + b"9" * digits + b"\n\x1e\n\x1ex\n\x1e-1\n\x1e1.5\n")
    assert [line[:3] for line in tape.lines(0)[-5:]] == [b"\x1e99" if digits < 9000 else tape.lines(0)[-5][:3], b"\x1e",
                                                         b"\x1ex", b"\x1e-1", b"\x1e1."]  # fmt: skip


def test_last_16_kib_stay(tape):
    tape.run(11)
    for number in range(5000):
        tape.prints(b"line %06d of many\n" % number)
    kept = tape.output.last_of(11)
    assert len(kept) == KEPT_BYTES
    assert kept.endswith("line 004999 of many\n")
    tape.prints(b"\x1e11\n")
    assert tape.output.last_of(11) == kept
    tape.answer(11)
    assert tape.output._marked == {}


def test_endless_line_is_told_in_pieces(tape):
    tape.run(11)
    for _ in range(50):
        tape.prints(b"x" * 60_000)
    assert all(set(line) == {ord("x")} and len(line) <= 8192 for line in tape.lines(0))
    assert len(tape.said) == LOGGED_BYTES_PER_S // 8192
    assert len(tape.output._open_line) <= 8192
    assert len(tape.output._unmarked) <= 2 * KEPT_BYTES + 1
    assert len(tape.output.last_of(11)) == KEPT_BYTES


def test_lines_beyond_the_rate_are_counted_and_kept(tape, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: now[0])
    tape.run(11)
    tape.prints(b"".join(b"%d\n" % number for number in range(LINES_PER_S + 300)))
    tape.prints(b"late\n")
    assert len(tape.said) == LINES_PER_S
    assert tape.output.lines_dropped == 301
    assert tape.output.last_of(11).endswith("498\n499\nlate\n")
    now[0] += 1.0
    tape.prints(b"again\n")
    assert tape.said[-2:] == [(0, LEFT_OUT % (301, 1205)), (0, b"again")]
    assert tape.output.lines_dropped == 0


def test_invalid_bytes_become_replacement_characters(tape):
    tape.run(11)
    garbage = bytes(range(256)) * 4
    tape.prints(garbage)
    tape.hang_up()
    text = tape.output.last_of(11)
    assert "\ufffd" in text
    text.encode()
    assert b"".join(line + b"\n" for line in tape.lines(0))[:-1] == garbage


def test_long_line_is_cut_between_characters(tape):
    line = "ä€😀x" * 2000
    tape.prints(f"{line}\n".encode())
    tape.prints(line.encode()[:9001])
    tape.prints(line.encode()[9001:] + b"\nend\n")
    *pieces, end = tape.lines(0)
    assert all(len(piece) <= 8192 for piece in pieces)
    assert "".join(piece.decode() for piece in pieces) == 2 * line
    assert end == b"end"
    tape.prints(b"y" * 8192 + b"\n")
    assert tape.lines(0)[-1] == b"y" * 8192


def test_lines_beyond_the_bytes_are_counted(tape, monkeypatch):
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: 100.0)
    line = b"x" * 999 + b"\n"
    tape.prints(line * 100)
    told = len(tape.said)
    assert LOGGED_BYTES_PER_S <= told * 999 < LOGGED_BYTES_PER_S + 999
    assert (tape.output.lines_dropped, tape.output.bytes_dropped) == (100 - told, (100 - told) * 1000)


def test_lines_left_out_are_reported_once_per_second(tape, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: now[0])
    tape.run(11, 12, 13)
    tape.prints(b"a\n" * 300 + b"\x1e11\n" + b"b\n" * 10 + b"\x1e12\n")
    assert tape.said[LINES_PER_S:] == [(11, LEFT_OUT % (100, 200))]
    now[0] += 1.0
    tape.prints(b"c\n")
    assert tape.said[LINES_PER_S + 1 :] == [(0, LEFT_OUT % (10, 20)), (0, b"c")]


def test_child_that_prints_too_much_waits(tape, monkeypatch):
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: 100.0)
    for _ in range(LINES_PER_S - 1):
        tape.prints(b"line\n")
    assert tape.output.rests_until_at == 0.0
    tape.prints(b"line\nline\n")
    assert tape.output.rests_until_at == 100.008


def test_unread_output_is_read_at_the_answer(tape, monkeypatch):
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: 100.0)
    tape.run(11)
    for _ in range(READS_PER_S - 1):
        tape.prints(b".")
    tape.prints(b"\n")
    assert tape.output.rests_until_at > 100.0
    tape.prints(b"a1\na2\n\x1e11\n", read=False)
    tape.answer(11)
    assert tape.lines(11) == [b"a1", b"a2"]


def test_child_that_prints_dot_by_dot_waits(tape, monkeypatch):
    monkeypatch.setattr("supervisor.clock.monotonic", lambda: 100.0)
    for _ in range(READS_PER_S):
        assert tape.output.rests_until_at == 0.0
        tape.prints(b".")
    assert tape.output.rests_until_at > 0.0
    assert tape.output.last_of(0) == "." * READS_PER_S


@pytest.mark.parametrize(("busy_s", "rest_s"), [(0.001, 0.01), (0.02, 0.2), (3.0, 0.5)])
def test_pause_is_many_times_the_time_of_the_read(tape, monkeypatch, busy_s, rest_s):
    now = [100.0]

    def later():
        now[0] += busy_s
        return now[0]

    monkeypatch.setattr("supervisor.clock.monotonic", later)
    tape.prints(b"x\n" * 1000)
    assert tape.output.rests_until_at == pytest.approx(now[0] + rest_s)


def test_binary_output_keeps_at_most_16_kib_of_text(tape):
    tape.run(11)
    tape.prints(bytes(range(128, 256)) * 500 + b"end")
    kept = tape.output.last_of(11)
    assert len(kept.encode()) <= KEPT_BYTES
    assert kept.endswith("end")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(20))
def test_flood_of_many_jobs_leaves_each_its_own_end(tape, seed):
    chance = random.Random(seed)
    stream, ends = b"", {}
    tape.run(*range(1, 9))
    for token in range(1, 9):
        words = [b"\n", b"x" * 9000, b"\x1e", b"\x1e7-", b"12345 ", b"line\n", "€".encode(), b"\0\xff", b"y\n" * 5000]
        printed = b"".join(chance.choices(words, k=chance.choice([0, 3, 40])))
        stream += printed + b"\x1e%d\n" % token
        ends[token] = printed if not printed or printed.endswith(b"\n") else printed + b"\n"
    while stream:
        cut = chance.choice([1, 5, 1000, 60_000])
        tape.prints(stream[:cut])
        stream = stream[cut:]
    for token, end in ends.items():
        text = end[-KEPT_BYTES:].decode(errors="replace").encode()
        assert tape.output.last_of(token).encode() == text[-KEPT_BYTES:].decode(errors="ignore").encode()


def test_endless_printer_cannot_prolong_a_read(tape, monkeypatch):
    tape.prints(b"y\n" * 10_000, read=False)
    read = []
    monkeypatch.setattr("os.read", lambda fd, size: read.append(size) or b"y\n" * (size // 2))
    tape.output.read_to_end()
    assert sum(read) <= 2 * 65536


def test_read_to_end_tells_the_unfinished_line(tape):
    tape.prints(b"line\nlast words", read=False)
    tape.hang_up()
    tape.output.read_to_end()
    assert tape.output.at_end
    assert tape.said == [(0, b"line"), (0, b"last words")]


def test_slow_reads_become_small(tape, monkeypatch):
    now, busy_s, sizes = [100.0], [0.02], []
    read = os.read

    def later():
        now[0] += busy_s[0] / 2
        return now[0]

    monkeypatch.setattr("supervisor.clock.monotonic", later)
    monkeypatch.setattr("os.read", lambda fd, size: sizes.append(size) or read(fd, size))
    for _ in range(5):
        tape.prints(b"x\n" * 1000)
    busy_s[0] = 0.0001
    for _ in range(7):
        tape.prints(b"x\n" * 1000)
    assert [size >> 10 for size in sizes] == [64, 32, 16, 8, 8, 8, 16, 32, 64, 128, 256, 256]
