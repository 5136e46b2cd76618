"""Options: their names, their values, and the scripts' equal defaults."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.engine.model import scripts
from supervisor.engine.model.options import OPTIONS, checked_option, checked_value, value_in, value_of_text, values_in

CONFIG = (Path(scripts.__file__).parents[1] / "lua/include/config.lua").read_text()


def defaults_in_lua(table: str) -> dict[str, float]:
    (body,) = re.findall(rf"local {table} = {{(.*?)}}", CONFIG, re.S)
    return {name: float(value) for name, value in re.findall(r'\b([a-z-]+)(?:"\])? = (\d+)', body)}


def test_the_scripts_have_the_same_defaults():
    of_queues, of_all = defaults_in_lua("OF_A_QUEUE"), defaults_in_lua("OF_ALL")
    numbers = {option.name: option for option in OPTIONS.values() if option.kind != "name"}
    assert {**of_queues, **of_all} == {name: float(option.default) for name, option in numbers.items()}
    assert set(of_queues) == {name for name, option in numbers.items() if option.of_queues}


@pytest.mark.parametrize(
    ("name", "option", "queue"),
    [
        ("heartbeat", "heartbeat", None),
        ("heartbeat-emails", "heartbeat", "emails"),
        ("grace-a-b", "grace", "a-b"),
        ("jobs-history-count", "jobs-history-count", None),
        ("max-deaths-count", "max-deaths", "count"),
        ("paused-max-deaths", "paused", "max-deaths"),
    ],
)
def test_option_name_may_end_in_a_queue(name, option, queue):
    assert checked_option(name) == (OPTIONS[option], queue)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("heartbaet", r"option 'heartbaet' is unknown; did you mean heartbeat\?"),
        ("max-concurency-emails", r"did you mean max-concurrency-emails\?"),
        ("xyzzy", "there are heartbeat, grace"),
        ("jobs-history-emails", r"option jobs-history holds for all queues, .* 'jobs-history-emails'"),
        ("max-worker-age-q", "option max-worker-age holds for all queues"),
        ("jobs-history-cuont", r"did you mean jobs-history-count\?"),
        ("grace-", "option's queue must have 1 to 64 bytes"),
        ("", "option '' is unknown"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name, said):
    with pytest.raises(ValueError, match=said):
        checked_option(name)


def test_a_name_must_be_a_str():
    with pytest.raises(TypeError, match="option must be a str, not int: 5"):
        checked_option(5)


@pytest.mark.parametrize(
    ("option", "value", "stored"),
    [
        ("heartbeat", 60, "60"),
        ("heartbeat", 0.5, "0.5"),
        ("grace", 0, "0"),
        ("grace", 2.0, "2"),
        ("max-concurrency", 0, "0"),
        ("max-deaths", 7, "7"),
        ("paused", True, "1"),
        ("paused", 0, "0"),
        ("klass", "email.send", "email.send"),
    ],
)
def test_scripts_read_the_stored_form_of_a_value(option, value, stored):
    assert checked_value(OPTIONS[option], value) == stored
    assert value_in({option: stored}, option) == value


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("heartbeat", 0, "heartbeat must be a duration or a number of seconds from 0.001 on: 0"),
        ("heartbeat", -1, "heartbeat must be a duration or a number of seconds"),
        ("grace", -0.5, "grace must be a duration or a number of seconds that is 0 or more: -0.5"),
        ("grace", float("nan"), "grace must be a duration or a number"),
        ("grace", float("inf"), "grace must be a duration or a number"),
        ("grace", "soon", "grace must be seconds, a duration or a timedelta: 'soon' is not a duration"),
        ("grace", timedelta(seconds=-1), "grace must be a duration or a number of seconds that is 0 or more: "),
        ("max-deaths", "5s", "max-deaths must be an int that is 0 or more: '5s'"),
        ("grace", True, "grace must be"),
        ("max-deaths", 1.5, "max-deaths must be an int that is 0 or more: 1.5"),
        ("max-deaths", -1, "max-deaths must be an int"),
        ("max-concurrency", None, "max-concurrency must be an int that is 0 or more: None"),
        ("paused", 2, "paused must be True or False: 2"),
        ("paused", "yes", "paused must be True or False: 'yes'"),
        ("klass", "", "klass must have 1 to 64 bytes"),
        ("klass", 5, "klass must be a str"),
        ("klass", "a\nb", "klass must not contain control characters"),
    ],
)
def test_bad_value_is_refused_naming_what_is_allowed(option, value, said):
    with pytest.raises(ValueError, match=said):
        checked_value(OPTIONS[option], value)


@pytest.mark.parametrize(
    ("value", "stored"), [("30s", "30"), ("500ms", "0.5"), ("2h", "7200"), (timedelta(minutes=1), "60")]
)
def test_duration_is_stored_as_seconds(value, stored):
    assert checked_value(OPTIONS["heartbeat"], value) == stored


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("grace", "2.5", 2.5),
        ("grace", "2m", 120),
        ("grace", "2", 2),
        ("paused", "yes", True),
        ("paused", "0", False),
        ("klass", "k", "k"),
    ],
)
def test_typed_text_becomes_a_value(option, text, value):
    found = value_of_text(OPTIONS[option], text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("option", "text"), [("grace", "soon"), ("grace", "-1"), ("max-deaths", "1.5"), ("paused", "2")]
)
def test_invalid_text_is_refused(option, text):
    with pytest.raises(ValueError, match=f"{option} must be .*: '{text}'"):
        value_of_text(OPTIONS[option], text)


def test_value_is_the_queues_own_or_shared_or_default():
    assert value_in({}, "grace-q") == 5
    assert value_in({"grace": "7"}, "grace-q") == 7
    assert value_in({"grace": "7", "grace-q": "0"}, "grace-q") == 0
    assert value_in({"grace-q": "nonsense"}, "grace-q") == 5


def test_all_values_include_those_of_queues():
    values = values_in({"grace": "7", "paused-q": "1", "application": "qless"})
    assert list(values) == [*OPTIONS, "paused-q"]
    assert (values["grace"], values["heartbeat"], values["paused"], values["paused-q"]) == (7, 30, False, True)
