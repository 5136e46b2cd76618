"""The end of a job or of a child becomes an outcome for the engine and a sentence for people."""

import os
import signal

import orjson
import pytest

from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import (
    ENDLESS,
    LATER,
    REFUSED,
    TOO_MANY_QUEUES,
    Completed,
    Died,
    Failed,
    Released,
    Retried,
    Returned,
)
from supervisor.master.model import outcome_rules
from supervisor.master.model.outcome_rules import End
from supervisor.messages import (
    MAX_RESULT_BYTES,
    Blob,
    Completion,
    Follower,
    HandlerSettings,
    Stage,
    Trouble,
    Verb,
    pack_completion,
    pack_trouble,
)
from tests.parts import Process, lease_of, rest

NO_SETTINGS = HandlerSettings()


def outcome_of(verb, body=b"", settings=NO_SETTINGS, output="", **lease):
    return outcome_rules.of_outcome(lease_of(1, **lease), verb, body, settings, End(output=output))


def death_of(status=9, why=None, settings=NO_SETTINGS, max_deaths=None, output="", **known):
    told = {} if status is None else {"status": status, "cpu_s": 0.12345, "max_rss_bytes": 4096}
    end = End(why_killed=why, output=output, **told, **known)
    return outcome_rules.of_death(lease_of(1), end, settings, max_deaths)


def accepted(outcome):
    """Build the arguments of the settle, as the exchange does."""
    return outcome.arguments("w", 0.0)


# wait statuses


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (0, "exit-0"),
        (1 << 8, "exit-1"),
        (255 << 8, "exit-255"),
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGSEGV, "SIGSEGV"),
        (signal.SIGSEGV | 0x80, "SIGSEGV"),  # it left a core
        (signal.SIGABRT | 0x80, "SIGABRT"),
        (signal.SIGRTMIN, "SIGRTMIN"),
        (signal.SIGRTMAX, "SIGRTMAX"),
        (signal.SIGRTMIN + 5, "SIGRT+5"),
    ],
)
def test_wait_status_is_a_signal_or_an_exit_code(status, reason):
    assert outcome_rules.death_reason(status) == reason
    accepted(Died(lease_of(1), reason))


@pytest.mark.parametrize("signo", sorted(signal.valid_signals() | {32, 33}))
def test_every_signal_has_a_name_that_the_engine_accepts(signo):
    accepted(death_of(signo))
    accepted(death_of(signo | 0x80))


def test_real_ends_have_these_statuses():
    assert outcome_rules.death_reason(Process(lambda: os._exit(3)).await_end()) == "exit-3"
    killed = Process(rest)
    assert outcome_rules.death_reason(killed.end()) == "SIGKILL"
    own = Process(lambda: signal.raise_signal(signal.SIGRTMIN + 8))  # none of those that are reserved
    assert outcome_rules.death_reason(own.await_end()) == "SIGRT+8"


def test_exit_with_status_0_during_a_job_is_a_death():
    outcome = death_of(0)
    assert (type(outcome), outcome.reason) == (Died, "exit-0")
    assert "exited with status 0 in the middle of the job" in outcome.message


# deaths


@pytest.mark.parametrize("why", sorted(outcome_rules.INTERRUPTIONS))
def test_kills_of_a_drain_are_interruptions(why):
    for status in (9, 0, None):
        outcome = death_of(status, why)
        assert (type(outcome), outcome.started, outcome.reason) == (Released, True, why)
        accepted(outcome)


def test_reason_past_the_time_limit_is_timeout():
    outcome = death_of(9, "timeout", kill_sentence="the job passed its time limit of 3 s")
    assert outcome.reason == "timeout"
    assert "killed by us: the job passed its time limit of 3 s" in outcome.message


def test_reason_past_the_memory_limit_is_memory():
    for outcome in (death_of(9, "memory"), death_of(0, overflow="T")):
        assert (type(outcome), outcome.reason) == (Died, "memory")
        accepted(outcome)
    assert "MemoryError" in outcome.message
    assert outcome.details["traceback"] == "T"


def test_sentence_names_a_kill_by_the_oom_killer():
    outcome = death_of(9, oom=True)
    assert outcome.reason == "oom"
    assert "the kernel's OOM killer" in outcome.message
    accepted(outcome)


def test_our_other_kills_show_as_their_signal():
    outcome = death_of(9, "it spoke nonsense on its socket")
    assert outcome.reason == "SIGKILL"
    assert "killed by us: it spoke nonsense on its socket" in outcome.message


def test_sentence_names_a_kill_from_outside():
    assert "killed by SIGKILL, which we did not send" in death_of(9).message


def test_child_without_a_report_is_lost():
    outcome = death_of(None, "lost")
    assert outcome.reason == "lost"
    assert "zygote" in outcome.message
    assert "cpu_s" not in outcome.details


def test_death_carries_resource_use_output_and_klass():
    assert death_of(9, output="last words", stack="File …", memory_bytes=77).details == {
        "output": "last words", "stack": "File …", "klass": "k", "cpu_s": 0.123, "max_rss_bytes": 4096,
        "memory_bytes": 77,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("handler", "on_death", "run", "sent"),
    [
        (None, None, None, None),  # the config in Redis decides
        (None, None, 5, 5),
        (7, None, 5, 7),
        (0, None, 5, 0),
        (None, None, 0, 0),
        (7, "retry", 5, 7),
        (7, "fail", 5, 1),
        (0, "fail", None, 1),
    ],
)
def test_max_deaths_comes_from_the_handler_or_the_flag(handler, on_death, run, sent):
    outcome = death_of(9, settings=HandlerSettings(max_deaths=handler, on_death=on_death), max_deaths=run)
    assert outcome.default_max_deaths == sent
    accepted(outcome)


# outcomes


def test_completion_without_a_body_has_no_result():
    outcome = outcome_of(Verb.COMPLETED)
    assert (type(outcome), outcome.result) == (Completed, None)


@pytest.mark.parametrize("result", [None, 0, False, "", [], {"a": [1.5, None, "ä"]}, "x" * (MAX_RESULT_BYTES - 2)])
def test_result_goes_to_the_engine_unchanged(result):
    body = orjson.dumps(result)
    assert accepted(outcome_of(Verb.COMPLETED, body))[-1] == body


@pytest.mark.parametrize(
    "body", [b'"' + b"x" * (MAX_RESULT_BYTES - 1) + b'"', b"{", b"\xff", b"nope", b"1 2", b"[" * 3000]
)
def test_oversized_or_undecodable_result_is_refused(body):
    with pytest.raises(ValueError):
        outcome_of(Verb.COMPLETED, body)


def followed(next=None, then=(), result=b""):
    return b"".join(pack_completion(Completion(result, next, list(then))))


def follower(queue="q", klass="k", data=None, **options):
    return Follower(queue, klass, {"jid": "a", **options}, data or Blob("json", b"null"))


def test_puts_go_to_the_engine_unchanged():
    every = bytes(range(256))
    body = followed(
        Stage("later", 1.5, ["p"], Blob("json", b'{"n": 1}')), [follower(data=Blob("bytes", every), tags=["t"])], b"[1]"
    )
    outcome = outcome_of(Verb.FOLLOWED, body)
    arguments = accepted(outcome)
    assert (outcome.next, outcome.delay, outcome.depends) == ("later", 1.5, ["p"])
    assert arguments[:9] == ("advance", "j1", 1, "later", "json", b'{"n": 1}', 1500, "p", b"[1]")
    assert arguments[9:16] == ("follow", "put", "q", "a", "k", "bytes", every)


def test_job_without_a_next_stage_is_complete():
    arguments = accepted(outcome_of(Verb.FOLLOWED, followed(then=[follower(), follower(jid="b")])))
    assert arguments[:4] == ("complete", "j1", 1, b"")
    assert arguments.count("follow") == 2


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", followed(then=[follower(queue="")]), followed(then=[follower(klass=5)]), followed(result=b"{"),
        followed(then=[follower(jid="")]), followed(then=[follower(tries=1)]), followed(then=[follower(queue=None)]),
        followed(then=[follower(tags="t")]), followed(then=[follower(delay=-1)]),
        followed(then=[follower(at=1, delay=1)]),
        followed(then=[Follower("q", "k", {"klass": "x"}, Blob("json", b"1"))]),
        followed(then=[Follower("q", "k", {"data": "x"}, Blob("json", b"1"))]),
        followed(Stage("", 0, [], Blob("", b""))), followed(Stage("q", -1, [], Blob("", b""))),
        followed(Stage("q", "soon", [], Blob("", b""))), followed(Stage("q", 0, "p", Blob("", b""))),
        followed(Stage("q", 0, None, Blob("", b""))), followed(Stage(None, 0, [], Blob("", b""))),
        followed(result=b'"' + b"x" * MAX_RESULT_BYTES + b'"', then=[follower()]),
    ],
    ids=repr,
)  # fmt: skip
def test_invalid_puts_are_refused(body):
    with pytest.raises((ValueError, TypeError)):
        outcome_of(Verb.FOLLOWED, body)


DEEP = b"[" * 600 + b"]" * 600


@pytest.mark.parametrize("raw", [b"{{{", b"", b"\xff", b'"\\ud800"', DEEP], ids=lambda raw: repr(raw[:10]))
def test_invalid_json_is_refused_only_with_a_claim(raw):
    data = Blob("json", raw)
    with pytest.raises((ValueError, TypeError)):
        outcome_of(Verb.FOLLOWED, followed(then=[follower(data=data, unique=True)]))
    for options in ({}, {"unique": "key"}, {"unique": False}, {"unique": None}):
        assert raw in accepted(outcome_of(Verb.FOLLOWED, followed(then=[follower(data=data, **options)])))


def test_puts_keep_claim_and_jid_in_every_sending():
    body = followed(then=[Follower("q", "k", {"unique": True}, Blob("json", b'{"b": 1, "a": 2}'))])
    outcome = outcome_of(Verb.FOLLOWED, body)
    claim = new_job("put", "q", "k", {"a": 2, "b": 1}, {"unique": True}).arguments[-1]
    assert accepted(outcome) == accepted(outcome)
    assert accepted(outcome)[-1] == claim


def test_invalid_outcome_is_refused_before_the_exchange():
    trouble = pack_trouble(Trouble("E", "m"))
    with pytest.raises((ValueError, TypeError)):
        outcome_of(Verb.RETRIED, trouble, HandlerSettings(retries="many"))
    with pytest.raises((ValueError, TypeError)):
        outcome_of(Verb.FAILED, trouble, output="\udcff")


def test_death_with_invalid_details_is_told_without_them():
    for outcome in (death_of(9, settings=HandlerSettings(max_deaths="many")), death_of(9, output="\udcff")):
        assert (outcome.reason, outcome.default_max_deaths, outcome.details) == ("SIGKILL", None, {})
        accepted(outcome)


def test_persistent_job_comes_back_when_its_handler_returns():
    outcome = outcome_of(Verb.COMPLETED, b"1", persistent=True)
    assert type(outcome) is Returned


def test_persistent_job_that_raises_comes_back_at_once():
    for asked, delay in ((None, 0), (2.5, 2.5)):
        body = pack_trouble(Trouble("E", "m", None, asked))
        assert outcome_of(Verb.RETRIED, body, failures=9, persistent=True).delay == delay


def test_persistent_job_puts_nothing():
    with pytest.raises(ValueError):
        outcome_of(Verb.FOLLOWED, followed(then=[follower()]), persistent=True)


@pytest.mark.parametrize(("verdict", "group"), [(REFUSED, "DependencyError"), (TOO_MANY_QUEUES, "too-many-queues")])
def test_refused_puts_fail_the_job(verdict, group):
    outcome = outcome_rules.of_verdict(lease_of(1), verdict)
    assert (type(outcome), outcome.group) == (Failed, group)
    accepted(outcome)


@pytest.mark.parametrize("verdict", [True, False, None, 3, "waiting", LATER])
def test_other_answers_leave_the_outcome(verdict):
    assert outcome_rules.of_verdict(lease_of(1), verdict) is None


def test_persistent_job_whose_completion_is_refused_comes_back():
    assert type(outcome_rules.of_verdict(lease_of(1), ENDLESS)) is Returned


@pytest.mark.parametrize("verb", [Verb.RETRIED, Verb.FAILED, Verb.INTERRUPTED])
@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'["g"]', b'[null,"m",null,true]', b'[null,"m",null,-1]'])
def test_invalid_failure_is_refused(verb, body):
    with pytest.raises((ValueError, TypeError)):
        outcome_of(verb, body)


@pytest.mark.parametrize("verb", [Verb.READY, Verb.PROGRESS, 77, 255])
def test_unknown_verb_is_refused(verb):
    with pytest.raises(ValueError):
        outcome_of(verb, pack_trouble(Trouble("g", "m")))


def test_interruption_is_a_release_after_the_start():
    outcome = outcome_of(Verb.INTERRUPTED, pack_trouble(Trouble(None, "drain")))
    assert (type(outcome), outcome.started, outcome.reason) == (Released, True, "drain")


@pytest.mark.parametrize(("said", "reason"), [("", None), ("x" * 100, "x" * 64), ("a\nb", "a?b")])
def test_any_reason_of_an_interruption_is_made_valid(said, reason):
    outcome = outcome_of(Verb.INTERRUPTED, pack_trouble(Trouble(None, said)))
    assert outcome.reason == reason
    accepted(outcome)


def test_one_sentence_says_why_a_job_was_stopped():
    said = [
        outcome_rules.stopped_sentence(lease_of(1), why) for why in ("drain", "zygote-lost", "cancelled", "mine", None)
    ]
    assert said == [
        "k was stopped: this supervisor drains",
        "k was stopped: the zygote is lost that its child came from",
        "k was stopped: it is cancelled",
        "k was stopped: mine",
        "k was stopped: its handler has raised Interrupted",
    ]


def test_failure_carries_group_message_traceback_and_output():
    outcome = outcome_of(Verb.FAILED, pack_trouble(Trouble("broken", "no JSON", "Traceback …")), output="said")
    assert (type(outcome), outcome.group, outcome.message) == (Failed, "broken", "no JSON")
    assert outcome.details == {"traceback": "Traceback …", "output": "said"}
    accepted(outcome)


def test_retry_carries_retries_and_delay():
    outcome = outcome_of(Verb.RETRIED, pack_trouble(Trouble(None, "m", None, 2.5)), HandlerSettings(retries=7))
    assert (type(outcome), outcome.delay, outcome.default_retries, outcome.group) == (Retried, 2.5, 7, None)
    assert outcome.details == {}
    accepted(outcome)


def test_delay_of_zero_means_at_once():
    assert outcome_of(Verb.RETRIED, pack_trouble(Trouble(None, "m", None, 0)), failures=9).delay == 0


@pytest.mark.parametrize(("failures", "most_s"), [(0, 1), (1, 2), (5, 32), (9, 512), (10, 600), (10**6, 600)])
def test_back_off_doubles_up_to_ten_minutes_with_jitter(failures, most_s):
    body = pack_trouble(Trouble("E", "m"))
    delays = [outcome_of(Verb.RETRIED, body, failures=failures).delay for _ in range(300)]
    assert all(0 <= delay <= most_s for delay in delays)
    assert max(delays) > 0.8 * most_s
    assert min(delays) < 0.2 * most_s


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        ("ValueError", "ValueError"),
        ("a\x00b\nc\x1b[31m", "a?b?c?[31m"),
        ("\udcff", "\\udcff"),
        ("x" * 100, "x" * 64),
        ("ä" * 100, "ä" * 32),
        ("x" + "😀" * 100, "x" + "😀" * 15),
    ],
)
def test_group_is_cut_and_cleaned_to_a_valid_name(group, kept):
    body = pack_trouble(Trouble(group, "m"))
    for outcome in (outcome_of(Verb.FAILED, body), outcome_of(Verb.RETRIED, body)):
        assert outcome.group == kept
        accepted(outcome)


def test_missing_group_has_a_default():
    body = pack_trouble(Trouble("", "m"))
    assert outcome_of(Verb.FAILED, body).group == "failed"
    assert outcome_of(Verb.RETRIED, body).group is None


def test_any_character_makes_a_valid_group():
    for code in [*range(0x250), 0x200B, 0x2028, 0x202E, 0xE000, 0xFEFF, 0xFFFF, 0x10FFFF]:
        accepted(outcome_of(Verb.FAILED, pack_trouble(Trouble(chr(code), "m"))))


@pytest.mark.parametrize("signo", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_native_crash_under_a_memory_limit_names_the_bound(signo):
    outcome = death_of(signo, memory_limit_bytes=64 * 2**20)
    assert outcome.reason == signal.Signals(signo).name
    assert "where memory is refused: 128 MB is its bound" in outcome.message
    assert "refused" not in death_of(signo).message
    assert "refused" not in death_of(signal.SIGKILL, memory_limit_bytes=64 * 2**20).message
