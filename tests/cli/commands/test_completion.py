"""Completion scripts, sourced in a real shell."""

import shutil
import subprocess
import sys

import pytest

from supervisor.cli.commands import completion
from supervisor.cli.lib.parser import COMMANDS, dispatch
from supervisor.config import SETTINGS

shtab = pytest.importorskip("shtab")


def script(shell, capsys):
    assert dispatch(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture
def completed(capsys, tmp_path):
    """Return what a real bash offers for the last word."""
    path = tmp_path / "leasehold.bash"
    path.write_text(script("bash", capsys))

    def complete(*words):
        program = (
            'source "$1"; shift; COMP_WORDS=(leasehold "$@"); COMP_CWORD=$#; _shtab_leasehold leasehold;'
            ' printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", program, "bash", path, *words], capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())

    return complete


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["que"], ["queues"]),
        (["re"], ["recur", "release", "reload", "reshard", "retry"]),
        (["run", "--drain"], ["--drain-timeout"]),
        (["run", "--order", "r"], ["random", "round-robin"]),
        (["put", "--on-parent-failure", ""], ["fail", "run", "wait"]),
        (["jobs", "st"], ["stalled"]),
        (["cancel", "--queue", "q", "--state", "s"], ["scheduled", "stalled"]),
        (["config", "heart"], ["heartbeat"]),
        (["completion", ""], ["bash", "tcsh", "zsh"]),
        (
            ["failed", "--"],
            [
                "--help",
                "--json",
                "--klass",
                "--limit",
                "--namespace",
                "--offset",
                "--redis-credentials",
                "--redis-password-file",
                "--redis-poll",
                "--redis-url",
                "--since",
            ],
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_real_bash_completes_commands_flags_and_words(completed, words, offered):
    assert completed(*words) == offered


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_each_shell_knows_every_command(capsys, shell):
    text = script(shell, capsys)
    assert all(command in text for command in COMMANDS)


def test_completed_words_are_valid_values():
    for setting in SETTINGS:
        if setting.flag in completion.WORDS:
            words = completion.WORDS[setting.flag]
            assert [setting.parse(word) for word in words] == list(words)
            with pytest.raises(ValueError, match=".*".join(words)):
                setting.parse("another")


def test_an_unknown_shell_and_a_missing_extra_are_refused(capsys, monkeypatch):
    assert dispatch(["completion", "fish"]) == 2
    assert "SHELL 'fish' must be bash, zsh or tcsh" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert dispatch(["completion", "bash"]) == 1
    said = capsys.readouterr().err
    assert said == "leasehold: completion needs the extra `cli`: pip install 'leasehold[cli]'\n"
