"""Packed messages come back unchanged. Packets of a hostile child raise only ValueError or TypeError."""

import os
import random
from dataclasses import fields

import orjson
import pytest

from supervisor import messages
from supervisor.messages import (
    Blob,
    Boot,
    BootFailed,
    Completion,
    Follower,
    Notice,
    ProgressReport,
    Ready,
    Reaped,
    Spawn,
    Spawned,
    SpawnFailed,
    Stage,
    Trouble,
    Verb,
)

CONTROL = [
    Boot("handlers", "/tmp/w", 1, "retry", 0, 1024),
    Spawn(3),
    Ready({"a.b": {"timeout_s": 1.5, "retries": None}}, ["Thread-1"], ["file 5 /tmp/x"]),
    BootFailed("no", "Traceback\n"),
    Spawned(3, 4711),
    SpawnFailed(3, "fork: no memory"),
    Reaped(3, 4711, 139, 0.25, 4096),
]
HOSTILE = [
    b"", b"\xff\xfe", b"\x00" * 40, b"1", b"null", b"true", b"[]", b"{}", b'"abcd"', b"[1,2,3,4,5]",
    b"[null,1,null,null]",
    b'["a"]', b'["a","b"]', b'["a","b","c"]', b'["a","b","c","d"]', b'["a","b","c",true]', b'["a","b","c",false]',
    b'["a","b","c",[]]', b'["a","b","c",{}]', b'["a","b","c",""]', b'["a","b","c",-1]', b'["a","b","c",1e10]',
    b'["a","b","c",1e400]', b'["a","b","c",NaN]', b'["a","b","c",1' + b"0" * 400 + b"]", b'[0,"b",null,null]',
    b'[false,"b",null,null]', b'[[],"b",null,null]', b'[{},"b",null,null]', b'[null,null,null,null]',
    b'[null,"b",0,null]', b'[null,"b",{},null]', b'["a","\\ud800",null,null]', b"[" * 100_000,
    b'{"group":1,"message":2,"traceback":3,"delay_s":4}',
]  # fmt: skip


@pytest.mark.parametrize("message", CONTROL, ids=lambda message: type(message).__name__)
def test_every_message_of_the_control_socket_comes_back_the_same(message):
    assert messages.unpack_control(messages.pack_control(message)) == message


def test_the_list_above_has_every_message_of_the_control_socket():
    assert {type(message) for message in CONTROL} == set(messages.control._CONTROL.values())


@pytest.mark.parametrize("packet", [*HOSTILE, b'["Exit"]', b'["Spawn"]', b'["Spawn",1,2]', b"[[],1]", b"[{}]"])
def test_no_other_packet_is_a_message_of_the_control_socket(packet):
    with pytest.raises((ValueError, TypeError)):
        messages.unpack_control(packet)


@pytest.mark.parametrize("is_bytes", [True, False])
@pytest.mark.parametrize("is_divided", [True, False])
@pytest.mark.parametrize("payload", [b"", b"{}", os.urandom(1000), None])
def test_a_job_comes_back_the_same(payload, is_divided, is_bytes):
    meta = ("jid-ä", "email.send", 'q"\\', -5, 1, 2, 3, ["a tag", "ä"], "lane", True, 0.25)
    packet = messages.pack_job(2**53, meta, payload, is_bytes, is_divided=is_divided)
    assert messages.token_of(packet) == 2**53
    beside = None, 0, None, False, None, 0, None, False, is_divided
    assert messages.unpack_job(packet) == (2**53, *meta, is_bytes, payload, *beside)


def test_a_job_comes_with_its_last_checkpoint():
    meta = ("jid-ä", "email.send", 'q"\\', -5, 1, 2, 3, ["a tag", "ä"], "lane", True, 0.25)
    job = messages.unpack_job(messages.pack_job(7, meta, b"payload", True, b"[1,2]"))
    assert job == (7, *meta, True, b"payload", b"[1,2]", 5, None, False, None, 0, None, False, False)


@pytest.mark.parametrize("saved", [None, b"[1,2]"])
@pytest.mark.parametrize("payload", [b"payload", None])
def test_a_job_comes_with_its_trace(payload, saved):
    meta = ("jid", "k", "q", 0, 0, 0, 0, [], None, False, 0.25)
    job = messages.unpack_job(messages.pack_job(7, meta, payload, False, saved, "00-a-b-01"))
    if payload is None:
        job = job.filled((saved or b"") + b"payload")
    assert (job.trace, job.waited_s, job.payload, job.saved) == ("00-a-b-01", 0.25, b"payload", saved)


def test_a_job_whose_payload_is_in_a_memfd_has_its_last_checkpoint_there():
    meta = ("jid", "k", "q", 0, 0, 0, 0, [], None, False, 0.25)
    job = messages.unpack_job(messages.pack_job(7, meta, None, False, b"[1,2]"))
    assert (job.payload, job.saved) == (None, None)
    filled = job.filled(b"[1,2]payload")
    assert (filled.payload, filled.saved) == (b"payload", b"[1,2]")


def test_a_job_comes_with_what_earlier_starts_have_left():
    meta = ("jid", "k", "q", 0, 0, 0, 0, [], None, False, 0.25)
    inline = messages.unpack_job(messages.pack_job(7, meta, b"[{},{}]payload", False, b"[1]", None, 7, True))
    assert (inline.saved, inline.replay, inline.payload, inline.at_most_once) == (b"[1]", b"[{},{}]", b"payload", True)
    beside = messages.unpack_job(messages.pack_job(7, meta, None, False, None, None, 7)).filled(b"[{},{}]payload")
    assert (beside.saved, beside.replay, beside.payload) == (None, b"[{},{}]", b"payload")


def test_a_job_comes_with_its_batch():
    meta = ("jid", "k", "q", 0, 0, 0, 0, [], None, False, 0.25)
    job = messages.unpack_job(messages.pack_job(7, meta, b"payload", False, batch="b"))
    assert (job.batch, job.trace, job.saved, job.payload) == ("b", None, None, b"payload")


@pytest.mark.parametrize("trace", [None, "00-a-b-01"])
def test_a_job_tells_whether_its_data_are_arguments_of_a_call(trace):
    meta = ("jid", "k", "q", 0, 0, 0, 0, [], None, False, 0.25)
    job = messages.unpack_job(messages.pack_job(7, meta, b"[1]", False, trace=trace, is_call=True))
    assert (job.is_call, job.is_bytes, job.payload) == (True, False, b"[1]")


def test_a_step_comes_back_the_same():
    outcome = messages.unpack_outcome(messages.pack_checkpoint(7, 1, b"null", "stück"))
    assert messages.unpack_checkpoint(outcome.body) == (1, b"null", "stück")


def test_a_checkpoint_comes_back_the_same():
    outcome = messages.unpack_outcome(messages.pack_checkpoint(7, 2**53, b'{"n":1}'))
    assert (outcome.verb, outcome.token) == (Verb.CHECKPOINT, 7)
    assert messages.unpack_checkpoint(outcome.body) == (2**53, b'{"n":1}', "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"1234567",
        b"12345678",
        b"12345678{",
        b"12345678\xff",
        b"12345678\0" + b"1" * (64 * 1024 + 1),
        b"12345678\3a\nb1",
    ],
)
def test_a_hostile_checkpoint_is_a_value_error(body):
    with pytest.raises(ValueError):
        messages.unpack_checkpoint(body)


@pytest.mark.parametrize("kept", [True, False])
def test_the_answer_to_a_checkpoint_comes_back_the_same_and_is_no_notice(kept):
    stored = messages.Stored(2**63, kept)
    assert messages.unpack_word(messages.pack_stored(stored)) == stored


@pytest.mark.parametrize("verb", Verb)
def test_an_outcome_comes_back_the_same(verb):
    outcome = messages.unpack_outcome(messages.pack_outcome(verb, 2**64 - 1, 1.5, b"body", 0.25, 2**40))
    assert outcome == (verb, 2**64 - 1, 1.5, b"body", 0.25, 2**40)


def test_runs_of_years_and_of_no_time_are_told_exactly():
    assert messages.unpack_outcome(messages.pack_outcome(Verb.COMPLETED, 1, 1e9)).run_s == 1e9
    assert messages.unpack_outcome(messages.pack_outcome(Verb.COMPLETED, 1, 0.0)).run_s == 0.0


def test_readiness_is_an_outcome_of_no_job():
    assert messages.unpack_outcome(messages.pack_ready()) == (Verb.READY, 0, 0.0, b"", 0.0, 0)
    assert messages.unpack_outcome(messages.pack_ready(0.5)) == (Verb.READY, 0, 0.0, b"", 0.5, 0)


@pytest.mark.parametrize("size", range(33))
def test_a_packet_too_short_for_an_outcome_is_a_value_error(size):
    with pytest.raises(ValueError, match="not an outcome"):
        messages.unpack_outcome(b"\x01" * size)


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(None, ""),
        Trouble("ValueError", "no", "Traceback …\n", None),
        Trouble(None, "later", None, 0),
        Trouble("g", "m", None, 1e9),
        Trouble("g", "m", None, 0.125),
    ],
)
def test_a_trouble_comes_back_the_same(trouble):
    assert messages.unpack_trouble(messages.pack_trouble(trouble)) == trouble


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:40]))
def test_a_hostile_body_is_a_value_error_or_a_type_error(body):
    with pytest.raises((ValueError, TypeError)):
        messages.unpack_trouble(body)


def test_random_bodies_are_sound_troubles_or_value_or_type_errors():
    draw = random.Random(2)
    values = [None, True, False, 0, -1, 1.5, 1e308, 2**63, "", "text", "\x00", [], ["a"], {}, {"a": None}]
    sound = 0
    for _ in range(10_000):
        body = orjson.dumps([draw.choice(values) for _ in range(draw.choice((3, 4, 4, 4, 5)))])
        if draw.random() < 0.2:
            at = draw.randrange(len(body))
            body = body[:at] + draw.randbytes(1) + body[at + 1 :]
        try:
            group, message, traceback, delay_s = messages.unpack_trouble(body)
        except (ValueError, TypeError):
            continue
        sound += 1
        assert isinstance(message, str)
        assert all(text is None or isinstance(text, str) for text in (group, traceback))
        assert delay_s is None or (not isinstance(delay_s, bool) and 0 <= delay_s <= messages.MAX_DELAY_S)
    assert sound > 10


def test_message_is_cut_at_its_end_and_traceback_at_its_beginning():
    trouble = messages.unpack_trouble(messages.pack_trouble(Trouble("g", "m" * 10**6 + "!", "t" * 10**6 + "!")))
    assert trouble.message == "m" * messages.MAX_MESSAGE_CHARS
    assert trouble.traceback == "t" * (messages.MAX_TRACEBACK_CHARS - 1) + "!"


def test_the_largest_trouble_fits_into_a_packet():
    packet = messages.pack_outcome(
        Verb.FAILED, 1, 1.0, messages.pack_trouble(Trouble("g", "\x00" * 10**5, "😀" * 10**5))
    )
    assert len(packet) <= messages.MAX_PACKET_BYTES


def test_texts_that_utf_8_cannot_carry_are_said_with_escapes():
    assert messages.unpack_trouble(messages.pack_trouble(Trouble("\udcff", "a\udc80b", "\ud800"))) == (
        "\\udcff", "a\\udc80b", "\\ud800", None,
    )  # fmt: skip


def test_a_notice_comes_back_the_same():
    for notice in (Notice(2**53, "drain"), Notice(1, "reload", "", True), Notice(1, "scaled", "", False, True)):
        assert messages.unpack_word(messages.pack_notice(notice)) == notice


def test_handler_settings_survive_a_message():
    settings = messages.HandlerSettings(
        timeout_s=1.5, retries=0, on_error="fail", on_death="retry", max_deaths=3, at_most_once=True
    )
    sent = {field.name: getattr(settings, field.name) for field in fields(settings)}
    back = messages.unpack_control(messages.pack_control(Ready({"k": sent}, [], [])))
    assert messages.HandlerSettings(**back.handlers["k"]) == settings


# completions


FOLLOWED = [
    Completion(b"", None, [Follower("q", "k", {"jid": "a"}, Blob("json", b"null"))]),
    Completion(b"1", Stage("q", 0.5, ["p"], Blob("", b"")), []),
    Completion(
        b'"r"',
        Stage("q", 0, [], Blob("bytes", bytes(range(256)))),
        [Follower("q", "k", {}, Blob("bytes", b"")), Follower("ä", "k", {"tags": ["t"]}, Blob("bytes", b"\xff\xfe"))],
    ),
]


def packed(head, rest=b""):
    text = orjson.dumps(head) if not isinstance(head, bytes) else head
    return len(text).to_bytes(4, "little") + text + rest


@pytest.mark.parametrize("completion", FOLLOWED)
def test_a_completion_comes_back_the_same(completion):
    assert messages.unpack_completion(b"".join(messages.pack_completion(completion))) == completion


@pytest.mark.parametrize(
    "body",
    [
        *HOSTILE, b"\xff\xff\xff\xff", packed(b""), packed([0, None]), packed([0, None, None]), packed([0, None, {}]),
        packed([1, None, []]), packed([-1, None, []], b"x"), packed([True, None, []], b"x"),
        packed([0, None, []], b"x"),
        packed([0, [], []]), packed([0, ["q", 0, [], "json"], []]), packed([0, ["q", 0, [], "pickle", 0], []]),
        packed([0, ["q", 0, [], [], 0], []]), packed([0, ["q", 0, [], "json", 5], []], b"1234"),
        packed([0, None, [["q", "k", {}, "", 0]]]), packed([0, None, [["q", "k", [], "json", 0]]]),
        packed([0, None, [["q", "k", {}, "json", 2**62]]]), packed([0, None, [["q", "k", {}]]]), packed([0, None, [5]]),
        packed([0, None, [["q", "k", {}, "json", 0]] * 1001]),
    ],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
def test_a_hostile_completion_is_a_value_error_or_a_type_error(body):
    with pytest.raises((ValueError, TypeError)):
        messages.unpack_completion(body)


def test_a_head_that_is_too_long_is_refused_undecoded(monkeypatch):
    whole = b"".join(messages.pack_completion(FOLLOWED[2]))
    head_bytes = int.from_bytes(whole[:4], "little")
    monkeypatch.setattr(messages.completions, "MAX_HEAD_BYTES", head_bytes)
    assert messages.unpack_completion(whole) == FOLLOWED[2]
    monkeypatch.setattr(messages.completions, "MAX_HEAD_BYTES", head_bytes - 1)
    with pytest.raises(ValueError, match=f"{head_bytes} bytes about what follows"):
        messages.unpack_completion(whole)


def test_a_head_of_too_many_values_is_refused_undecoded(monkeypatch):
    head = b"[" + b"{}," * 500_000 + b"1]"
    monkeypatch.setattr(messages.completions.orjson, "loads", lambda _head: pytest.fail("it was decoded"))
    with pytest.raises(ValueError, match="1000001 values"):
        messages.unpack_completion(len(head).to_bytes(4, "little") + head)


def test_a_completion_changed_anywhere_is_sound_or_a_value_or_type_error():
    draw = random.Random(3)
    whole = b"".join(messages.pack_completion(FOLLOWED[2]))
    for _ in range(10_000):
        at = draw.randrange(len(whole))
        body = whole[:at] + draw.randbytes(draw.randrange(3)) + whole[at + draw.randrange(3) :]
        try:
            messages.unpack_completion(body)
        except (ValueError, TypeError):
            continue


@pytest.mark.parametrize(
    "progress", [ProgressReport(0.0, ""), ProgressReport(1, "done"), ProgressReport(0.25, "ä" * 1000)]
)
def test_progress_comes_back_the_same(progress):
    outcome = messages.unpack_outcome(messages.pack_progress(7, progress))
    assert (outcome.verb, outcome.token, messages.unpack_progress(outcome.body)) == (Verb.PROGRESS, 7, progress)


@pytest.mark.parametrize(
    "body",
    [
        *HOSTILE, b'[2,""]', b'[-0.1,""]', b'[true,""]', b'["1",""]', b"[0.5,5]", b"[0.5,null]", b"[0.5]",
        orjson.dumps([0.5, "x" * 1001]),
    ],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
def test_hostile_progress_is_a_value_error_or_a_type_error(body):
    with pytest.raises((ValueError, TypeError)):
        messages.unpack_progress(body)
