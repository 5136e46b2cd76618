"""`leasehold audit`: who did what, as commands claim it."""

import getpass
import socket


def test_commands_are_recorded_with_user_and_host(shell, jobs):
    jobs.queue("emails").put("k", jid="x")
    shell.good("pause", "emails")
    shell.good("cancel", "x")
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    acts = shell.json("audit")
    assert [(act["act"], act["actor"], act["names"]) for act in acts] == [
        ("cancel", me, ["x"]),
        ("pause", me, ["emails"]),
    ]
    assert [act["act"] for act in shell.json("audit", "x")] == ["cancel"]


def test_name_that_a_command_gives_is_shown_as_a_claim(shell, jobs):
    shell.good("limit", "smtp", "--running", "5", "--as", "kim")
    shown = shell.good("audit")
    assert "claimed actor" in shown and "kim" in shown and "limit smtp" in shown and "5 at once" in shown


def test_empty_record_and_unknown_subject_are_said(shell, jobs):
    assert shell.json("audit") == [] == shell.json("audit", "x")
    assert "no act on x is recorded" in shell.noted("audit", "x")


def test_name_that_is_too_long_is_refused(shell, jobs):
    assert "actor" in shell.refused(2, "pause", "emails", "--as", "x" * 200)
    assert "must not begin with login:" in shell.refused(2, "pause", "emails", "--as", "login:kim")
    assert shell.json("audit") == []
