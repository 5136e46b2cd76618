"""`--watch`: the next job runs the edited code. Broken code changes nothing."""

import signal
from functools import partial

import pytest
from apps import VERSION, run, start_app, wait_for_arrival, wait_for_zygotes, write_app

LATE = "from app import late\n@handler\ndef version(job): return late.VERSION\n"


@pytest.fixture
def app(stage):
    """Write the handlers, and start a supervisor that watches them."""
    return partial(start_app, stage, environment={"LEASEHOLD_WATCH": "yes"})


def replace(path, text):
    """Replace a file in one step: a half-written file would be an edit of its own."""
    written = path.with_name(f"{path.name}.new")
    written.write_text(text)
    written.rename(path)


def test_next_job_runs_the_latest_of_quick_edits(stage, app):
    pool = app(VERSION.format(10)).wait_ready()
    for version in range(11, 15):
        write_app(stage, VERSION.format(version))  # as many bytes as before, maybe in the same second
        assert run(stage, "version") == [version]
    assert {event["by"] for event in pool.find("reload.requested")} == {"watch"}
    (stage.directory / "app" / "__init__.py").touch()
    pool.wait_for("reload.completed", nth=5)  # though no job comes
    wait_for_zygotes(stage, pool, 1)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_running_job_finishes_on_the_code_before_the_edit(stage, app):
    pool = app(VERSION.format(1), processes=1).wait_ready()
    stage.gate("g")
    jid = stage.queue.put("hold", "g")
    wait_for_arrival(stage, "g")
    write_app(stage, VERSION.format(2))
    pool.wait_for("reload.completed")
    stage.open_gate("g")
    assert run(stage, "version") == [2]
    assert stage.states([jid]) == ["complete"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_broken_edit_is_logged_and_fixed_by_the_next(stage, app):
    write_app(stage, "VERSION = 1\n", "late.py")
    pool = app(LATE).wait_ready()
    assert run(stage, "version") == [1]
    folder = stage.directory / "app"
    replace(folder / "late.py", "VERSION = (2\n")
    assert run(stage, "version") == [1]
    failed = pool.wait_for("reload.failed")
    assert "late.py" in failed["traceback"]
    assert run(stage, "version") == [1]
    assert len(pool.find("reload.requested")) == 1
    write_app(stage, "VERSION = 3\n", "late.py")
    assert run(stage, "version") == [3]
    # a package that is new, and wrong in a module that is not loaded yet
    (stage.directory / "other").mkdir()
    (stage.directory / "other" / "__init__.py").write_text("from other import deep\n")
    (stage.directory / "other" / "deep.py").write_text("VERSION = 4 +\n")
    write_app(stage, "from other.deep import VERSION\n", "late.py")
    assert run(stage, "version") == [3]
    replace(stage.directory / "other" / "deep.py", "VERSION = 5\n")
    assert run(stage, "version") == [5]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_added_and_removed_modules_count_as_edits(stage, app):
    pool = app(VERSION.format(1)).wait_ready()
    write_app(stage, "@handler\ndef also(job): return 2\n", "new.py")
    assert run(stage, "new.also") == [2]
    (stage.directory / "app" / "new.py").unlink()
    assert pool.wait_for("reload.completed", nth=2)["removed"] == ["new.also", "new.hold", "new.noop"]
    assert run(stage, "version") == [1]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_files_written_during_the_import_cause_no_endless_reloads(stage, app):
    """Such a file is one of those that the handlers load."""
    source = "(HERE / 'app' / 'made.py').write_text(f'AT = {{time.time_ns()}}\\n')\nfrom app import made\n"
    pool = app(source.format() + VERSION.format(1)).wait_ready()
    assert run(stage, "version") == [1]
    write_app(stage, source.format() + VERSION.format(2))
    assert run(stage, "version") == [2]
    boots = 0
    while boots != (boots := len(pool.find("zygote.spawned"))):
        assert boots < 30
        stage.let_time_pass(1.5)  # several looks
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_edit_without_watch_waits_for_a_reload(stage):
    pool = start_app(stage, VERSION.format(1)).wait_ready()
    write_app(stage, VERSION.format(2))
    assert run(stage, "version") == [1]
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    assert run(stage, "version") == [2]
    assert pool.drain() == 0
    stage.assert_nothing_left()
