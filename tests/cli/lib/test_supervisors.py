"""Requests to played supervisors: `drain`, `reload`, `scale`, `pause --worker`, and `status`."""

import pytest

STATUS = {
    "worker": "web-1", "version": "1.2.3", "state": "draining", "left_s": 12.34, "uptime_s": 3725.0, "paused": False,
    "reloading": False, "processes": {"now": 2, "fewest": 1, "most": 8, "reason": "all were busy"},
    "busy": 1, "idle": 1,
    "children": [
        {"child": 1, "pid": 123, "jid": "j1", "klass": "email.send", "running_s": 61.24, "state": "busy", "zygote": 1},
        {"child": 2, "pid": 124, "jid": None, "klass": None, "running_s": None, "state": "idle", "zygote": 2},
    ],
    "zygotes": [{"zygote": 1, "pid": 99, "state": "current"}],
    "reload": {"at_unix": 1.0, "by": "SIGHUP", "outcome": "failed", "message": "no module named x", "traceback": "T"},
    "queues": ["high", "email-*"], "order": "strict",
    "redis": {"connected": True, "url": "redis://:***@h", "server": "Valkey 8"},
    "sandbox": {"no_new_privs": "on", "landlock": "not in this kernel"}, "sandbox_levels": ["basic", "strict"],
    "counts": {"completed": 1234, "failed": 5},
    "longest_turn_s": 1.25, "autoscaling": {"desired": 3, "ready": 9, "running": 2, "age_s": 2.5},
}  # fmt: skip
DONE = {"did": "has 4 processes"}


def told(worker):
    """Return the requests without their author."""
    (ask,) = worker.asked
    assert " at " in ask.argument["by"] and "pid " in ask.argument["by"]
    return ask.what, {name: value for name, value in ask.argument.items() if name != "by"}


@pytest.mark.parametrize(
    ("words", "what", "wish"),
    [
        (["drain", "--all"], "drain", {}),
        (["reload"], "reload", {}),
        (["scale", "--all", "4"], "scale", {"fewest": 4, "most": 4}),
        (["scale", "--all", "2:8"], "scale", {"fewest": 2, "most": 8}),
        (["scale", "--all", "auto"], "scale", {"auto": True}),
        (["pause", "--all-workers"], "pause", {}),
        (["unpause", "--all-workers"], "resume", {}),
    ],
)
def test_all_supervisors_are_told_and_each_reports_its_act(shell, played, words, what, wish):
    workers = [played(DONE), played(DONE)]
    assert sorted(shell.good(*words).splitlines()) == sorted(f"{worker.name}  has 4 processes" for worker in workers)
    assert [told(worker) for worker in workers] == [(what, wish)] * 2


@pytest.mark.parametrize("words", [["drain"], ["reload"], ["scale"], ["pause", "--worker"], ["unpause", "--worker"]])
def test_only_named_supervisors_are_told(shell, played, words):
    one, other = played(DONE), played(DONE)
    more = ["4"] if words == ["scale"] else []
    assert shell.line(*words, one.name, *more) == f"{one.name}  has 4 processes"
    assert other.asked == []
    unknown = shell.refused(1, *words, "nobody", *more)
    assert unknown == "there is no worker nobody; `leasehold workers` lists those that there are"
    assert "WORKER is empty" in shell.refused(2, *words, "", *more)


def test_a_silent_supervisor_may_still_act_and_the_code_is_1(shell, played, silent):
    worker = played(DONE)
    said = shell("scale", "--all", "4", "--timeout", "300ms")
    assert (said.code, said.out) == (1, f"{worker.name}  has 4 processes\n")
    assert said.err.count("\n") == 1
    assert f"{silent.name} has not answered within 300ms; what it was told stands for 59.7s more" in said.err
    assert f"`leasehold status {silent.name}`" in said.err


def test_refusing_supervisor_is_named_with_the_reason(shell, played):
    worker = played({"error": "it drains"})
    assert shell.refused(1, "pause", "--worker", worker.name) == f"{worker.name} refuses: it drains"


@pytest.mark.parametrize("words", [["drain", "--all"], ["reload"], ["status"]])
def test_an_answer_of_another_version_is_said(shell, played, words):
    worker = played({"done": True})
    assert shell.refused(1, *words).startswith(f"{worker.name} answers what this version does not know")


@pytest.mark.parametrize("words", [["drain", "--all"], ["reload"], ["scale", "--all", "4"], ["status"]])
def test_missing_supervisor_is_said(shell, words):
    assert "no supervisor is running here" in shell.refused(1, *words)


def test_handlers_that_do_not_boot_are_71_with_the_traceback(shell, played):
    broken = played({"error": "no module named x", "traceback": "Traceback:\n  line 1\n"})
    played(DONE)
    said = shell("reload")
    assert said.code == 71
    assert f"{broken.name}\n  Traceback:\n    line 1\n" in said.out
    assert said.err == f"leasehold: {broken.name} does not run the new code: no module named x\n"


def test_a_reload_that_is_refused_is_1(shell, played):
    worker = played({"error": "it drains"})
    assert shell.refused(1, "reload") == f"{worker.name} refuses: it drains"


def test_supervisors_of_different_states_are_in_one_table(shell, played):
    other = {**STATUS, "worker": "web-2", "state": "serving", "left_s": None, "reload": None, "uptime_s": 12.0}
    other["processes"] = {"now": 4, "fewest": 4, "most": 4, "reason": "as given"}
    played(STATUS), played(other)
    head, *rows = shell.rows("status")
    assert head == ["worker", "state", "busy", "idle", "processes", "up", "left", "completed", "reload", "queues"]
    assert sorted(rows) == [
        ["web-1", "draining", "1", "1", "2", "of", "1:8", "1h2m", "12.3s", "1,234", "failed", "high", "email-*"],
        ["web-2", "serving", "1", "1", "4", "12s", "-", "1,234", "-", "high", "email-*"],
    ]


def test_status_of_one_supervisor_shows_everything(shell, played):
    worker = played(STATUS)
    out = shell.good("status", worker.name)
    for line in (
        "state                 draining, 12.3s left", "processes             2 of 1:8 (all were busy)",
        "queues                high email-* (strict)", "redis                 redis://:***@h, Valkey 8, connected",
        "loop                  its longest turn of the last minute took 1.25s",
        "ended                 completed 1234  failed 5",
        "desired               3, for 9 ready and 2 running jobs, seen 2.5s ago",
        "sandbox               basic strict", "sandbox landlock      not in this kernel",
        "                      no module named x",
    ):  # fmt: skip
        assert line in out.splitlines()
    assert "by SIGHUP: failed" in out and "email.send" in out and "1m1s" in out


def test_a_stopping_child_shows_reason_and_deadline(shell, played):
    busy = {**STATUS["children"][0], "state": "stopping", "stopping": "cancelled", "kill_in_s": 2.0}
    doomed = {**STATUS["children"][0], "state": "doomed", "stopping": "memory", "kill_in_s": None}
    worker = played({**STATUS, "children": [busy, doomed]})
    out = shell.good("status", worker.name)
    assert "stopping: cancelled, killed in 2s" in out
    assert "doomed: memory" in out


def test_status_json_has_the_supervisors_answers(shell, played, silent):
    worker = played(STATUS)
    assert shell.json("status", worker.name) == {worker.name: STATUS}
    said = shell("status", silent.name, "--timeout", "100ms", "--json")
    assert (said.code, said.out) == (1, f'{{"{silent.name}":null}}\n')
    assert f"{silent.name} has not answered within 100ms" in said.err


@pytest.mark.parametrize("broken", [{"children": [1]}, {"processes": None}, {"state": 7}, {"queues": "high"}])
def test_a_status_that_is_none_is_said(shell, played, broken):
    worker = played(STATUS | broken)
    assert shell.refused(1, "status").startswith(f"{worker.name} answers what this version does not know")
