"""`leasehold stacks` with played supervisors."""

import pytest

FRAMES = '  File "handlers/email.py", line 12 in send\n  File "handlers/email.py", line 30 in _call'
BUSY = {"child": 1, "pid": 123, "jid": "j1", "klass": "email.send", "running_s": 61.24, "stack": FRAMES}
IDLE = {"child": 2, "pid": 124, "jid": None, "klass": None, "running_s": None, "stack": ""}


def test_each_child_is_shown_with_its_job_and_its_frames(shell, played):
    worker = played({"children": [BUSY, IDLE]})
    name, busy, *frames, idle, none = shell.good("stacks").splitlines()
    assert name == f"{worker.name}  2 children"
    assert busy.startswith("  child 1  pid 123  email.send j1  since 20") and busy.endswith(" (1m1s)")
    assert frames == [
        '    File "handlers/email.py", line 12 in send', '    File "handlers/email.py", line 30 in _call',
    ]  # fmt: skip
    assert (idle, none) == (
        "  child 2  pid 124  idle",
        "    (it has not answered in time: stopped, another program, or deaf to the signal)",
    )
    assert [ask.what for ask in worker.asked] == ["stacks"]


def test_json_has_the_supervisors_answers(shell, played):
    one, two = played({"children": [BUSY, IDLE]}), played({"children": []})
    assert shell.json("stacks") == {one.name: [BUSY, IDLE], two.name: []}
    assert shell.json("stacks", two.name) == {two.name: []}


def test_a_silent_supervisor_is_named_and_the_code_is_1(shell, played, silent):
    worker = played({"children": [IDLE]})
    said = shell("stacks", "--timeout", "0.3s")
    assert (said.code, said.out.splitlines()[0]) == (1, f"{worker.name}  1 child")
    assert said.err.startswith(f"leasehold: {silent.name} has not answered within 0.3s")
    assert said.err.count("\n") == 1
    said = shell("stacks", silent.name, "--timeout", "0.1s", "--json")
    assert (said.code, said.out) == (1, f'{{"{silent.name}":null}}\n')


@pytest.mark.parametrize(
    ("answer", "about"),
    [
        ({"error": "there are no children"}, "refuses: there are no children"),
        ({"kids": []}, "answers what this version does not know, {'kids': []}"),
        ([1], "answers what this version does not know, [1]"),
        ({"children": [1]}, "answers what this version does not know"),
    ],
)
def test_an_answer_that_is_none_is_said(shell, played, answer, about):
    worker = played(answer)
    assert shell.refused(1, "stacks").startswith(f"{worker.name} {about}")


def test_missing_supervisor_is_said(shell):
    assert shell.refused(1, "stacks").startswith("no supervisor is running here")


def test_a_wrong_name_is_said_with_the_one_that_was_meant(shell, played):
    name = played({"children": []}).name
    assert shell.refused(1, "stacks", name + "x") == f"there is no worker {name}x, did you mean {name}?"
    assert shell.refused(1, "stacks", name[:3]) == f"there is no worker {name[:3]}, did you mean {name}?"


@pytest.mark.parametrize("timeout", ["soon", "-1s"])
def test_a_time_that_is_none_is_wrong_use(shell, timeout):
    assert f"--timeout {timeout!r}" in shell.refused(2, "stacks", f"--timeout={timeout}")


def test_control_characters_in_stacks_are_escaped(shell, played):
    played({"children": [BUSY | {"klass": "\x1b[31mred", "stack": "\x07bell"}]})
    out = shell.good("stacks")
    assert "\x1b" not in out and "\x07" not in out
