"""An operator's commands beside a running supervisor: put jobs, inspect failures, put them back, drain."""

import json
from typing import NamedTuple

import pytest
from apps import flag, start_app

from supervisor.cli.lib.parser import dispatch

MAIL = """
@handler(retries=0)
def mail(job):
    if not is_set("mended"):
        raise ValueError(f"there is no mailbox for {job.data['to']}")
    return {"sent": job.data["to"]}
"""


class Said(NamedTuple):
    """A command's exit code and output."""

    code: int
    out: str
    err: str


@pytest.fixture
def leasehold(stage, capsys, monkeypatch):
    """Run the command line in this process, with the server's URL in the environment."""
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", stage.server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", stage.namespace)

    def run(*words, code=0):
        capsys.readouterr()
        said = Said(dispatch(words), *capsys.readouterr())
        assert said.code == code, said
        return said

    return run


def rows(said):
    """Return the cells of a table by its first column."""
    head, *lines = (line.split() for line in said.out.splitlines())
    return {line[0]: dict(zip(head, line, strict=False)) for line in lines}


def test_failed_jobs_are_listed_explained_and_put_back(stage, leasehold):
    pool = start_app(stage, MAIL).wait_ready()
    letters = stage.directory / "letters.ndjson"
    lines = [json.dumps({"jid": f"letter-{number}", "data": {"to": f"ada-{number}"}}) for number in range(30)]
    letters.write_text("\n".join(lines))
    said = leasehold("put", "mail", "--lines", "--file", str(letters), "--tag", "letters")
    assert said.out.startswith("put 30 jobs in ") and said.err == ""
    jids = [f"letter-{n}" for n in range(30)]
    stage.wait_until_settled(jids)

    assert leasehold("failed").out.split() == ["group", "jobs", "ValueError", "30"]
    listed = rows(leasehold("failed", "ValueError", "--limit", "100"))
    assert listed.keys() == set(jids) and listed["letter-7"]["klass"] == "mail"
    job = leasehold("job", "letter-7").out
    assert "failure    ValueError: there is no mailbox for ada-7" in job and "in mail" in job.split("traceback:")[1]
    assert rows(leasehold("queues"))["default"]["waiting"] == "0"

    assert leasehold("cancel", "letter-29").out == "cancelled letter-29\n"
    said = leasehold("retry", "--group", "ValueError", code=2)
    assert "Retry 29 jobs of group ValueError (29 failed)? stdin is not a terminal; pass --yes" in said.err
    assert leasehold("retry", "--group", "ValueError", "--dry-run").out.startswith("would retry 29 jobs")
    flag(stage, "mended")
    assert leasehold("retry", "letter-0").out == "put back letter-0\n"
    assert json.loads(leasehold("job", "letter-0", "--wait", "20s", "--json").out)["result"] == {"sent": "ada-0"}
    assert leasehold("retry", "--group", "ValueError", "--yes").out == "put back 28 jobs\n"
    pool.wait_for("job.completed", nth=29)
    assert leasehold("failed").err == "leasehold: nothing has failed\n"
    tagged = json.loads(leasehold("tag", "--get", "letters", "--count", "100", "--json").out)
    assert tagged["total"] == 29 and {job["state"] for job in tagged["jobs"]} == {"complete"}

    assert leasehold("drain", pool.worker).out.startswith(f"{pool.worker}  drains")
    assert pool.wait() == 0
    stage.assert_nothing_left()


def test_running_jobs_are_listed_and_controlled(stage, leasehold):
    pool = start_app(stage, "", queue=["default", "slow"]).wait_ready()
    gate = stage.gate("gate")
    jid = leasehold("put", "hold", json.dumps(gate), "--jid", "busy", "--tag", "red").out.strip()
    pool.wait_for("job.started", jid=jid)
    for number in range(5):
        leasehold("put", "noop", "--jid", f"next-{number}", "--tag", "red")

    assert rows(leasehold("workers"))[pool.worker]["running"] >= "1"
    assert rows(leasehold("status"))[pool.worker]["state"] == "serving"
    children = [line.split() for line in leasehold("status", pool.worker).out.splitlines()]
    assert [words[3:6] for words in children if "busy" in words[5:6]] == [["busy", "hold", "busy"]]
    assert "child 1" in leasehold("stacks").out
    assert rows(leasehold("jobs", "running", "--queue", "default")).keys() >= {"busy"}
    assert leasehold("pause", "--worker", pool.worker).code == 0
    assert rows(leasehold("status"))[pool.worker]["state"] == "paused"
    said = leasehold("cancel", "--tag", "red", "--state", "waiting", "--dry-run")
    assert said.out == "would cancel 5 jobs with tag red (5 waiting)\n"
    assert leasehold("priority", "next-4", "-1").out == "the priority of next-4 is -1\n"
    assert next(iter(rows(leasehold("peek", "default", "5")))) == "next-4"
    assert leasehold("move", "--queue", "default", "slow", "--yes").out == "moved 5 jobs into queue slow\n"
    assert leasehold("cancel", "next-3").out == "cancelled next-3\n"
    assert leasehold("scale", pool.worker, "--timeout", "10s", "2").code == 0
    assert leasehold("unpause", "--worker", pool.worker).code == 0
    stage.wait_until_ended([f"next-{number}" for number in (0, 1, 2, 4)])
    assert leasehold("cancel", "--tag", "red", "--yes").out == "cancelled 1 job\n"
    pool.wait_for("lease.lost", jid="busy")
    leasehold("drain", "--all")
    assert pool.wait() == 0
    stage.assert_nothing_left()


def test_put_warns_of_a_job_that_no_supervisor_serves(stage, leasehold, monkeypatch):
    pool = start_app(stage, MAIL, queue=["default", "letters-*"]).wait_ready()
    stage.wait_until_counted(lambda: any(worker.queues for worker in stage.client.workers()))
    assert "did you mean mail?" in leasehold("put", "mial").err
    assert "did you mean default?" in leasehold("put", "mail", "--queue", "defualt").err
    assert leasehold("put", "mail", '{"to": "ada"}').err == ""
    monkeypatch.setattr("supervisor.cli.lib.hints._NEWS_S", 30.0)  # the supervisor hears of it when it gets its turn
    assert leasehold("put", "mail", '{"to": "ada"}', "--queue", "letters-new").err == "", "a glob stands for it"
    for queue in ("default", "defualt", "letters-new"):
        stage.client.queue(queue).delete("stop")
    assert pool.drain() == 0
    stage.assert_nothing_left()
