"""A handler's surroundings, and what is left when its job has ended."""

import os
from pathlib import Path

import pytest
from supervised import ROOT, await_ends

from supervisor.config import IN_POOL

BOTH = pytest.mark.parametrize("jobs_per_child", [1, 0])


def _look(stage, **flags):
    pool = stage.start(**flags).wait_ready()
    jid = stage.queue.put("look.around")
    stage.wait_until_ended([jid])
    seen = stage.client.job(jid).result
    assert seen is not None, stage.last_words()
    return pool, seen


def test_handler_has_an_empty_directory_and_none_of_our_secrets(stage):
    url = stage.server.url
    secrets = {
        "REDIS_URL": url,
        "CELERY_BROKER": f"x {url}/0",
        "NOTIFY_SOCKET": "@n",
        "LISTEN_FDS": "1",
        "WATCHDOG_USEC": "9",
    }
    pool, seen = _look(stage, environment={**secrets, "LEASEHOLD_TERM_GRACE": "2s", "HARMLESS": "yes"})
    assert seen["cwd"] == seen["workdir"]
    assert Path(seen["cwd"]).is_relative_to(stage.directory / "tmp")
    assert seen["files"] == []
    assert seen["environ"]["HARMLESS"] == "yes"
    names = seen["environ"].keys()
    assert [name for name in names if name.startswith("LEASEHOLD_") or name in secrets] == [IN_POOL]
    assert url not in str(seen["environ"].values())
    assert url not in str(seen["exec_environ"])
    assert not [entry for entry in seen["exec_environ"] if entry.startswith("LEASEHOLD_")]
    warning = " ".join(event["message"] for event in pool.find("master.warned"))
    assert "REDIS_URL" in warning
    assert "CELERY_BROKER" in warning
    assert url not in warning
    assert (seen["stdin"], seen["read"]) == ("/dev/null", "")
    assert seen["no_new_privs"] == "1"
    assert seen["core"] == [0, 0]
    assert seen["sid"] == seen["pgid"] == seen["pid"]
    assert seen["ppid"] == pool.zygote_pid
    assert int(seen["blocked"], 16) == 0
    assert seen["modules"] == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_program_of_a_handler_inherits_none_of_our_descriptors(stage):
    _, seen = _look(stage)
    heirs = [target for target in seen["heirs"] if not target.startswith(("pipe:", "/proc/"))]
    assert heirs == ["/dev/null"], seen["heirs"]  # stdin; stdout is subprocess.run's pipe
    assert len([target for target in seen["heirs"] if target.startswith("pipe:")]) == 2
    assert stage.pools[0].drain() == 0
    stage.assert_nothing_left()


def test_password_in_the_url_reaches_no_handler(stage):
    redis = stage.server.redis
    redis.acl_setuser(
        "sandboxed", enabled=True, passwords=["+sesame-77"], keys=["*"], channels=["*"], categories=["+@all"]
    )
    try:
        url = stage.server.url_with("sandboxed", "sesame-77")
        pool, seen = _look(stage, redis_url=url, environment={"OTHER": "abc sesame-77 def", "PW": "sesame-77"})
        assert pool.drain() == 0
    finally:
        redis.acl_deluser("sandboxed")
    assert "sesame-77" not in str(seen)
    assert "sesame-77" not in str(pool.events) + str(pool.said)
    stage.assert_nothing_left()


@BOTH
def test_directory_is_empty_before_every_job(stage, jobs_per_child):
    treasure = stage.directory / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("x")
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child).wait_ready()
    jids = [stage.queue.put("look.litter", str(treasure)) for _ in range(4)]
    jids.append(stage.queue.put("look.litter", str(treasure)))
    stage.wait_until_ended(jids)
    assert [stage.client.job(jid).result for jid in jids] == [[]] * 5, stage.last_words()
    assert (treasure / "gold").read_text() == "x"
    stage.wait_until(lambda: len(pool.find("child.reaped")) >= 5 or jobs_per_child == 0, "the children's ends")
    if jobs_per_child == 0:
        assert [name for name in stage.files() if name.count("/") > 3] == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


@BOTH
@pytest.mark.parametrize("how", ["rename", "remove"])
def test_removed_directory_is_there_again_for_the_next_job(stage, jobs_per_child, how):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child).wait_ready()
    jids = [stage.queue.put("look.wander", how) for _ in range(3)]
    stage.wait_until_ended(jids)
    assert set(stage.states(jids)) == {"complete"}
    assert [stage.client.job(jid).result for jid in jids] == [[]] * 3
    assert not pool.find("job.died")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@BOTH
@pytest.mark.parametrize("die", [False, True])
def test_no_process_of_a_job_outlives_its_settling(stage, jobs_per_child, die):
    gate = stage.gate("gate")
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child).wait_ready()
    jid = stage.queue.put("bad.daemons", {"gate": gate, "die": die}, max_deaths=1)
    stage.wait_until(lambda: len(stage.ledger.left_behind(jid)) == 3, "three left behind")
    left = stage.ledger.left_behind(jid)
    pidfds = [os.pidfd_open(pid) for pid in left]
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert _living(pidfds) == 0
    assert stage.client.job(jid).state == ("failed" if die else "complete")
    for pidfd in pidfds:
        os.close(pidfd)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def _living(pidfds):
    import select

    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    return len(pidfds) - len(poll.poll(0))


def test_killed_job_takes_descendants_along_and_no_neighbour(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=2).wait_ready()
    jids = [stage.queue.put("bad.daemons", {"gate": gate, "deaf": deaf}, timeout=3 * deaf) for deaf in (1, 0)]
    for jid in jids:
        stage.wait_until(lambda jid=jid: len(stage.ledger.left_behind(jid)) == 3, "three left behind")
    first, second = (stage.ledger.left_behind(jid) for jid in jids)
    pool.wait_for("job.died", jid=jids[0], reason="timeout")
    assert await_ends(first, 0.0) == []
    assert sorted(await_ends(second, 0.0)) == sorted(second)
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_programs_that_handlers_start_can_be_terminated(stage):
    pool = stage.start().wait_ready()
    jid = stage.queue.put("look.pipes")
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == -15
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("klass", ["good.asynchronous", "good.decorated"])
def test_async_handlers_run_even_if_a_decorator_hides_them(stage, klass):
    pool = stage.start(processes=1, jobs_per_child=0).wait_ready()
    jids = [stage.queue.put(klass) for _ in range(3)]
    stage.wait_until_ended(jids)
    assert len({stage.client.job(jid).result for jid in jids} - {None}) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_master_never_imports_handlers(stage):
    """INV-8 from outside: the master has no file of the handlers' package open or mapped."""
    (stage.directory / "native").mkdir()
    (stage.directory / "native" / "__init__.py").write_text(
        "import sqlite3\nfrom supervisor import handler\n@handler\ndef noop(job): ...\n"
    )
    pool = stage.start(handlers="native").wait_ready()
    assert "_sqlite3" not in Path(f"/proc/{pool.pid}/maps").read_text()
    assert "_sqlite3" in Path(f"/proc/{pool.zygote_pid}/maps").read_text()
    assert ROOT.is_dir()
    assert pool.drain() == 0
    stage.assert_nothing_left()
