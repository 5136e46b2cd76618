"""The doctor describes the build of the interpreter."""

import subprocess
import sys
import sysconfig

import pytest

from supervisor.cli.doctor import interpreter, machine
from supervisor.cli.doctor.interpreter import Build


@pytest.fixture
def configured(monkeypatch):
    """Have sysconfig answer for an interpreter that was configured with these options."""

    def configure(options, schemes=("posix_prefix",)):
        monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": options}.get)
        monkeypatch.setattr(sysconfig, "get_scheme_names", lambda: schemes)
        return interpreter.build()[1:]

    return configure


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("'--enable-optimizations' '--with-lto' 'CFLAGS=-g -O2'", (True, True)),
        ("--enable-optimizations --with-lto=thin", (True, True)),
        ("'--enable-optimizations' '--enable-shared'", (True, False)),
        ("'--enable-shared' 'CFLAGS=--with-lto'", (False, False)),
        ("--enable-optimizations=no --with-lto=no", (False, False)),
        ("", (False, False)),
        (None, (False, False)),
    ],
)
def test_the_options_of_configure_tell_the_build(configured, options, found):
    assert configured(options) == found


def test_debian_optimises_without_saying_so(configured):
    assert configured("'--enable-shared'", ("deb_system", "posix_prefix")) == (True, True)


@pytest.mark.parametrize(
    ("optimised", "words"),
    [
        ((True, True), "CPython 3.11.2, built with PGO and LTO"),
        ((True, False), "CPython 3.11.2, built with PGO, without LTO"),
        ((False, False), "CPython 3.11.2, built without PGO and LTO"),
    ],
)
def test_a_build_in_words(optimised, words):
    assert str(Build("CPython 3.11.2", *optimised)) == words


def test_any_interpreter_can_be_asked():
    done = subprocess.run([sys.executable, "-S", interpreter.__file__], capture_output=True, text=True, check=True)
    assert done.stdout == f"{interpreter.build()}\n"


@pytest.mark.parametrize("is_optimised", [True, False])
def test_doctor_says_that_an_interpreter_without_optimisation_is_slower(monkeypatch, is_optimised):
    monkeypatch.setattr(interpreter, "build", lambda: Build("CPython 3.11.2", is_optimised, is_optimised))
    (finding,) = machine.CHECKS[0]()
    assert (finding.check, finding.level) == ("python", "ok")
    assert ("slower" in finding.message) is not is_optimised
