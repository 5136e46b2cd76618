"""Handlers see the master's environment without its own variables and without the Redis secret."""

import subprocess
import sys

import pytest

from supervisor.master.model.environment import allowed_by, for_handlers, shell_above

URL = "redis://user:hunter22@host:6379/0"


def held_back(value, url=URL):
    kept, names = for_handlers({"V": value}, url)
    assert kept == ({} if names else {"V": value})
    return bool(names)


def test_other_variables_pass_unchanged():
    environ = {"PATH": "/bin", "HOME": "/root", "EMPTY": "", "ODD\udcff": "\udcff"}
    before = dict(environ)
    assert for_handlers(environ, URL) == (environ, [])
    assert environ == before


@pytest.mark.parametrize(
    "name",
    [
        "LEASEHOLD_REDIS_URL",
        "LEASEHOLD_X",
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
    ],
)
def test_masters_own_variables_are_left_out_silently(name):
    assert for_handlers({name: "x", "PATH": "/bin"}, URL) == ({"PATH": "/bin"}, [])


def test_similar_names_pass():
    environ = {"MY_LEASEHOLD_X": "1", "LEASEHOLDER": "1", "NOTIFY": "1", "WATCHDOGS": "1"}
    assert for_handlers(environ, URL) == (environ, [])


@pytest.mark.parametrize(
    "value",
    [
        URL, f"see {URL}.", "hunter22", "x=hunter22;", "rediss://other:hunter22@elsewhere/1",
        '{"password": "hunter22"}', "redis://:hunter2%32@host", "%68unter22",
    ],
)  # fmt: skip
def test_value_with_the_url_or_password_is_held_back(value):
    assert held_back(value)


def test_value_with_a_password_of_a_file_is_held_back(tmp_path):
    for name in ("servers", "sentinels"):
        (tmp_path / name).write_text(f"of-the-{name}\n")
    options = f"password_file={tmp_path}/servers&sentinel_password_file={tmp_path}/sentinels"
    for value in ("of-the-servers", "of-the-sentinels"):
        assert held_back(value, f"redis+sentinel://h/m?{options}")


@pytest.mark.parametrize("value", ["", "hunter2", "redis://host:6379/0", "user", "HUNTER22"])
def test_value_without_url_and_password_passes(value):
    assert not held_back(value)


@pytest.mark.parametrize("value", ["p@ss/w:rd", "p%40ss%2Fw%3Ard", "redis://:p%40ss%2fw%3ard@host", "x p@ss/w:rd x"])
def test_percent_encoded_password_is_found_both_ways(value):
    assert held_back(value, "redis://:p%40ss%2Fw%3Ard@host/0")


@pytest.mark.parametrize("value", ["abc%41def", "abc%2541def"])
def test_password_that_looks_percent_encoded_is_found_both_ways(value):
    assert held_back(value, "redis://:abc%2541def@host/0")


@pytest.mark.parametrize(
    "url",
    [
        "unix:///run/redis.sock?password=hunter22",
        "redis://host/0?db=1&password=hunter%322",
        "rediss://host/0?ssl_password=hunter22",
        "rediss://u:other1@h?ssl_password=hunter22",
    ],
)
def test_password_among_the_urls_options_counts(url):
    assert held_back("hunter22", url)
    assert held_back("redis://:hunter22@other", url)


@pytest.mark.parametrize(("value", "held"), [("abc", True), ("redis://:abc@host", True), ("redis://u:a%62c@h", True),
                                             ("abcdef", False), ("xabc", False), ("path/abc/bin", False)])  # fmt: skip
def test_short_password_counts_only_as_a_whole_value_or_in_a_url(value, held):
    assert held_back(value, "redis://:abc@host/0") is held


def test_without_a_password_only_the_url_counts():
    assert held_back("redis://host:6379/0", "redis://host:6379/0")
    assert not held_back("", "redis://host:6379/0")
    assert not held_back("host", "redis://host:6379/0")


def test_only_given_names_and_basics_pass():
    basics = {"PATH": "1", "HOME": "2", "LANG": "3", "LC_ALL": "4", "TZ": "5", "TMPDIR": "6", "PYTHONPATH": "7",
              "VIRTUAL_ENV": "8", "SSL_CERT_FILE": "9"}  # fmt: skip
    environ = {**basics, "MINE": "x", "OTHER": "y", "LANGUAGE": "z", "PATHS": "z", "MY_LC_ALL": "z"}
    assert for_handlers(environ, URL, ("MINE", "NOWHERE")) == ({**basics, "MINE": "x"}, [])
    assert for_handlers(environ, URL, ()) == (basics, [])
    assert for_handlers(environ, URL, None) == (environ, [])


def test_secret_is_held_back_even_if_its_variable_is_named():
    environ = {"MINE": URL, "LEASEHOLD_REDIS_URL": URL, "NOTIFY_SOCKET": "n", "PYTHON_X": "hunter22", "OTHER": URL}
    kept, names = for_handlers(environ, URL, ("MINE", "LEASEHOLD_REDIS_URL", "NOTIFY_SOCKET"))
    assert (kept, names) == ({}, ["MINE", "PYTHON_X"])


def test_strict_passes_only_named_variables():
    assert allowed_by((), "strict") == ()
    assert allowed_by((), "basic") is None
    assert allowed_by(("A",), "basic") == allowed_by(("A",), "strict") == ("A",)


def printed(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


ASK = f"{sys.executable} -c 'from supervisor.master.model.environment import shell_above; print(shell_above())'"


def test_shell_as_pid_1_above_the_master_is_named(as_pid_1):
    said = printed(*as_pid_1, "sh", "-c", f"{ASK}; true")
    assert "PID 1 is sh" in said
    assert "exec" in said


def test_shell_that_called_exec_or_is_not_pid_1_is_fine(as_pid_1):
    assert printed(*as_pid_1, "sh", "-c", f"exec {ASK}") == "None\n"
    assert printed(*as_pid_1, "sh", "-c", f'sh -c "{ASK}; true"; true') == "None\n"
    assert shell_above() is None
