"""`leasehold batch`: batches are listed and shown, and one is cancelled, retried, paused and resumed."""

from supervisor.cli.lib.terminal import local_time


def put_batch(jobs):
    with jobs.batch("b", description="July") as batch:
        batch.put_many("q", [{"klass": "k", "jid": f"b-{i}"} for i in range(3)])
    return batch


def test_list_and_look_show_the_numbers(shell, jobs):
    assert "there is no batch" in shell.noted("batch")
    put_batch(jobs)
    jobs.queue("q").lease("w")[0].fail("g", "the disk is full")
    opened = local_time(jobs.batch("b").look().opened_unix).split()
    assert shell.rows("batch")[1:] == [["b", "running", *opened, "3", "2", "0", "1", "0", "July"]]
    shown = shell.good("batch", "b")
    assert "b is running: 3 jobs, 2 pending, 0 complete, 1 failed, 0 cancelled; opened" in shown
    assert "the disk is full" in shown
    assert shell.json("batch", "b")["failed_jobs"] == ["b-0"]
    assert [one["id"] for one in shell.json("batch")] == ["b"]


def test_batch_is_retried_and_cancelled(shell, jobs):
    batch = put_batch(jobs)
    jobs.queue("q").lease("w")[0].fail("g", "m")
    assert shell.line("batch", "b", "--retry") == "b: put 1 failed job back"
    assert shell.line("batch", "b", "--cancel") == "b: cancelled 3 jobs"
    assert batch.look().state == "cancelled"


def test_batch_is_paused_and_resumed(shell, jobs):
    put_batch(jobs)
    assert shell.line("batch", "b", "--pause") == "b: paused"
    assert shell.line("batch", "b", "--pause") == "b: was paused already"
    assert shell.rows("batch")[1][:2] == ["b", "paused"]
    assert "; paused: " in shell.good("batch", "b")
    assert shell.json("batch", "b")["paused_by"] in shell.good("why", "b-0")
    assert jobs.queue("q").lease("w") == []
    assert shell.line("batch", "b", "--resume") == "b: resumed"
    assert shell.line("batch", "b", "--resume") == "b: was not paused"
    assert len(jobs.queue("q").lease("w", 9)) == 3
