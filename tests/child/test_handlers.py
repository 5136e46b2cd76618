"""Names and options of handlers, and refusals that name the argument."""

import functools
import textwrap
from datetime import timedelta

import pytest

from supervisor.child import handlers, loading
from supervisor.child.handler import HandlersError
from supervisor.child.handlers import handler
from supervisor.child.orders import Fail, Interrupted, Retry
from supervisor.messages import HandlerSettings
from tests.parts import in_fork


@pytest.fixture
def app(tmp_path):
    """Loads modules written for the test in a process of its own, and checks the result."""

    def load(files, check, root="app"):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("from supervisor.child.handlers import handler\n" + textwrap.dedent(text))

        def run():
            import os

            os.chdir(tmp_path)
            handlers._registered.clear()
            check(lambda: loading.load(root))

        in_fork(run)

    return load


def names(*expected):
    def check(load):
        assert sorted(load()) == sorted(expected)

    return check


def refused(match):
    def check(load):
        with pytest.raises(HandlersError, match=match):
            load()

    return check


SEND = "@handler\ndef send(job): pass\n"


# names


def test_klass_is_module_path_below_root_and_function_name(app):
    files = {"app/__init__.py": SEND, "app/email.py": SEND, "app/a/__init__.py": SEND, "app/a/b/__init__.py": "",
             "app/a/b/deep.py": SEND}  # fmt: skip
    app(files, names("send", "email.send", "a.send", "a.b.deep.send"))


def test_single_module_can_be_the_root(app):
    app({"app.py": SEND}, names("send"))


def test_loaded_handlers_are_those_of_the_modules_and_are_prepared(app):
    def check(load):
        loaded = load()["mail.welcome"]
        from app import mail

        assert mail.welcome is loaded  # so each child that puts its jobs finds the types that were prepared here
        assert {"parameters", "result_adapter"} <= vars(loaded).keys()

    app({"app/mail.py": "@handler\ndef welcome(job, user: int): pass\n"}, check)


@pytest.mark.parametrize("root", ["app/jobs", "app.jobs", "./app/jobs", "app/jobs/", "app/jobs.py"])
def test_root_may_be_written_as_a_path(app, root):
    app({"app/__init__.py": "", "app/jobs.py": SEND}, names("send"), root)


def test_package_without_init_can_be_the_root(app):
    app({"app/email.py": SEND}, names("email.send"))


def test_given_name_is_the_klass(app):
    app({"app/email.py": "@handler(name='mail/send now')\ndef send(job): pass\n"}, names("mail/send now"))


def test_handlers_outside_the_root_have_their_whole_path(app):
    app({"app/__init__.py": "import lib.tool, apple", "lib/tool.py": SEND, "apple.py": SEND},
        names("lib.tool.send", "apple.send"))  # fmt: skip


def test_handler_imported_twice_is_one_handler(app):
    app({"app/email.py": SEND, "app/other.py": "from app.email import send\n"}, names("email.send"))


def test_main_module_is_not_imported(app):
    app({"app/email.py": SEND, "app/__main__.py": "raise SystemExit('started')\n"}, names("email.send"))


def test_coroutine_functions_are_recognised(app):
    def check(load):
        assert {name: found.is_async for name, found in load().items()} == {"e.a": True, "e.b": False}

    app({"app/e.py": "@handler\nasync def a(job): pass\n@handler\ndef b(job): pass\n"}, check)


def test_function_with_two_names_runs_under_both(app):
    app({"app/e.py": "def f(job): pass\nhandler(name='one')(f)\nhandler(name='two')(f)\n"}, names("one", "two"))


# refusals


def test_two_handlers_of_one_name_are_refused(app):
    files = {
        "app/a.py": "@handler(name='same')\ndef f(job): pass\n",
        "app/b.py": "@handler(name='same')\ndef f(job): pass\n",
    }
    app(files, refused("two handlers are named 'same'"))
    app({"app/a.py": SEND + SEND, "app/b.py": ""}, refused("two handlers are named 'a.send'"))


def test_root_without_a_handler_is_refused(app):
    app({"app/__init__.py": "", "app/e.py": ""}, refused("no @handler in 'app'"))


@pytest.mark.parametrize("root", ["nowhere", "app.nowhere", "app/nowhere.py"])
def test_missing_root_is_refused(app, root):
    app({"app/__init__.py": ""}, refused("there is no module '(app.)?nowhere'"), root)


def test_missing_import_of_a_handler_is_no_missing_root(app):
    def check(load):
        with pytest.raises(ModuleNotFoundError, match="application"):
            load()

    app({"app/e.py": "import application_missing\n"}, check)


def test_exception_of_a_module_is_passed_on(app):
    def check(load):
        with pytest.raises(ZeroDivisionError):
            load()

    app({"app/e.py": "1 / 0\n"}, check)


# options


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    registered = []
    monkeypatch.setattr(handlers, "_registered", registered)
    return registered


def test_call_of_a_handler_is_a_call_of_the_function(registry):
    def send(job, *, to=None):
        """Send."""
        return job, to

    plain, timed = handler(send), handler(timeout=3)(send)
    assert (plain("job"), timed("job", to=7)) == (("job", None), ("job", 7))
    assert (plain.__name__, plain.__doc__, plain.__wrapped__) == ("send", "Send.", send)
    assert registry == [plain, timed]
    assert [each.settings for each in registry] == [HandlerSettings(), HandlerSettings(timeout_s=3.0)]


def test_every_option_is_kept(registry):
    handler(
        name="n", timeout="1.5m", retries=0, on_error="fail", on_death="retry", max_deaths=2**53, at_most_once=True,
        sandbox="strict", network=True, on_cut_off="stop",
    )(print)  # fmt: skip
    assert registry[0].settings == HandlerSettings(90.0, 0, "fail", "retry", 2**53, True, None, "strict", True, "stop")
    assert registry[0].name == "n"


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(0, 0.0), (1, 1.0), (0.5, 0.5), ("30", 30.0), ("500ms", 0.5), ("2h", 7200.0)]
)
def test_timeout_is_seconds_or_a_duration(registry, timeout, seconds):
    handler(timeout=timeout)(print)
    assert registry[0].settings.timeout_s == seconds


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (None, [None, None, None]),
        (2, [2.0, 2.0, 2.0]),
        ("1.5m", [90.0, 90.0, 90.0]),
        ([0, 1.5, "1m"], [0.0, 1.5, 60.0, 60.0]),
        ((3,), [3.0, 3.0]),
        (lambda failures: 10 * failures, [0.0, 10.0, 20.0]),
    ],
)
def test_backoff_is_seconds_a_list_or_a_function_of_failures(registry, backoff, delays):
    handler(name="n", backoff=backoff)(print)
    assert [registry[0].backoff_s(failures) for failures in range(len(delays))] == delays


@pytest.mark.parametrize("answer", [None, "5", -1, float("nan"), float("inf"), 1e10, True, []])
def test_backoff_function_returning_nonsense_is_a_value_error(registry, answer):
    handler(name="n", backoff=lambda failures: answer)(print)
    with pytest.raises(ValueError, match="give seconds"):
        registry[0].backoff_s(0)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("timeout", value) for value in (-1, float("nan"), float("inf"), "", "soon", "-1", "1w", True, [], {})),
        *(("retries", value) for value in (-1, 1.0, "3", True, [], 2**53 + 1, 10**30)),
        *(("max_deaths", value) for value in (-1, 1.5, "3", False, 10**30)),
        *(("backoff", value) for value in (-1, True, "soon", [], [-1], [1, "x"], {}, 1e10, float("nan"))),
        ("backoff", [float("inf")]),
        *(("at_most_once", value) for value in (None, 1, "yes")),
        *(("on_error", value) for value in ("", "Retry", "ignore", 1, True, [])),
        *(("on_death", value) for value in ("", "bury", 0, {})),
        *(("on_cut_off", value) for value in ("", "Stop", "go on", True)),
        *(("concurrency", value) for value in (0, -1, 10_001, 1.5, "2", True, None)),
        *(("sandbox", value) for value in ("", "none", "Strict", True, [])),
        *(("network", value) for value in ("", "off", 0, 1, [])),
        *(("name", value) for value in ("", 5, b"n", [], "a\nb", "x" * 65, "ä" * 33, "\ud800")),
    ],
)  # fmt: skip
def test_bad_argument_is_refused_by_name(registry, argument, value):
    with pytest.raises((ValueError, TypeError), match=argument):
        handler(**{argument: value})(print)
    assert registry == []


def test_unknown_argument_is_refused_by_name():
    with pytest.raises(TypeError, match="tries"):
        handler(tries=3)


def test_only_coroutine_functions_run_beside_each_other(registry):
    with pytest.raises(TypeError, match="async def"):
        handler(name="n", concurrency=2)(print)
    assert registry == []


@pytest.mark.parametrize("what", ["30s", 5, None, [print]])
def test_handler_must_be_callable(registry, what):
    with pytest.raises(TypeError, match="takes a function"):
        handler(name="n")(what)
    assert registry == []


def test_nameless_callable_needs_a_name(registry):
    with pytest.raises(TypeError, match="name="):
        handler(functools.partial(print, 1))
    handler(name="n")(functools.partial(print, 1))
    assert len(registry) == 1


# exceptions of handlers


@pytest.mark.parametrize("delay", [None, 0, 0.5, 10**9])
def test_retry_delay_is_seconds_or_none(delay):
    assert Retry(delay).delay == delay
    assert str(Retry(delay)) == "the handler asked for a retry"
    assert str(Retry(message="m")) == "m"


def test_retry_takes_a_delay_as_text():
    assert (Retry("5").delay, Retry("5m").delay) == (5, 300)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e10, "soon", [], {}])
def test_bad_delay_is_refused(delay):
    with pytest.raises(ValueError, match="delay"):
        Retry(delay)


@pytest.mark.parametrize("group", ["", None, 5, b"g"])
def test_failure_needs_a_group(group):
    with pytest.raises(ValueError, match="group"):
        Fail(group)


def test_failure_without_message_shows_its_group():
    assert (str(Fail("g")), str(Fail("g", "m")), Fail("g").group) == ("g", "m", "g")


def test_interruption_passes_through_except_exception():
    assert not issubclass(Interrupted, Exception)
    assert Interrupted("drain").reason == "drain"


def test_traceback_begins_with_foreign_code():
    try:
        loading.load("no_such_root_anywhere")
    except HandlersError as error:
        frames = loading.foreign_frames(error.__traceback__)
    assert frames.tb_frame.f_code.co_filename == __file__
    assert loading.foreign_frames(None) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every must be seconds"),
        ({"every": True}, "every must be seconds"),
        ({"every": "often"}, "'often' is not a duration"),
        ({"every": 60, "cron": "* * * * *"}, "every and cron: give one of them"),
        ({"every": 60, "tz": "UTC"}, "tz goes with cron"),
        ({"tz": "UTC"}, "tz='UTC'. goes with cron"),
        ({"cron": "* * * *"}, "cron must have five fields"),
        ({"cron": "61 * * * *"}, "cron must be minute hour"),
        ({"cron": "* * * * *", "tz": "Nowhere"}, "tz must be a time zone"),
    ],
)
def test_rhythm_is_checked_at_its_declaration(options, words):
    with pytest.raises(ValueError, match=words):
        handlers.handler(**options)


def test_declared_recurrence_has_the_options_of_each_put():
    @handlers.handler(name="k", every="10m", queue="bulk", tags=("a",), expires=timedelta(hours=1))
    def job(context): ...

    assert job.recurrence == {"queue": "bulk", "every": 600, "tags": ["a"], "expires": 3600}
    assert handlers.handler(name="k", cron="0 6 * * *")(job).recurrence == {"queue": "default", "cron": "0 6 * * *"}
    assert handlers.handler(name="k")(job).recurrence is None
