"""`leasehold completion`: prints a shell's completion script. Runs in the command's process.

Must not use Redis, neither here nor in the script: a completing shell must not wait.
"""

import argparse
from importlib import import_module
from typing import Any

from supervisor.cli.commands.jobs import STATES
from supervisor.cli.lib.bulk import STATES as CHOSEN_STATES
from supervisor.cli.lib.parser import COMMANDS, Parser, Refusal, Subparsers, UsageError, near
from supervisor.cli.lib.terminal import say

EXAMPLES = """\
examples:
  leasehold completion bash    # into ~/.local/share/bash-completion/completions/leasehold
  leasehold completion zsh     # into ~/.zsh/completions/_leasehold, a folder that is in $fpath before compinit
  leasehold completion tcsh    # into ~/.leasehold.tcsh, with `source ~/.leasehold.tcsh` in ~/.tcshrc

The script goes to stdout: write it into that file (`leasehold completion bash > FILE`) and open a new shell. For this
bash alone: source <(leasehold completion bash). Write it anew after an update. Needs the extra `cli`."""

SHELLS = ("bash", "zsh", "tcsh")
#: Words that complete a flag's or argument's value, by its destination name.
WORDS = {
    "order": ("strict", "round-robin", "random", "weighted"),
    "on-error": ("retry", "fail"),
    "on-cut-off": ("go-on", "stop"),
    "sandbox": ("none", "basic", "strict"),
    "log": ("json", "text"),
    "log-level": ("debug", "info", "warning", "error"),
    "on_parent_failure": ("wait", "fail", "run"),
    "missed": ("all", "once", "skip"),
}
#: Flags whose value is a file or a folder.
PATHS = {"file": "FILE", "workdir": "DIRECTORY", "sandbox-read": "DIRECTORY", "peers": "DIRECTORY", "out": "DIRECTORY"}


def add(subparsers: Subparsers) -> None:
    """Declare the argument."""
    parser = subparsers.add_parser("completion", description="A script for a shell's Tab key.", epilog=EXAMPLES)
    parser.add_argument("shell", metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    if args.shell not in SHELLS:
        raise UsageError(f"SHELL {args.shell!r} must be bash, zsh or tcsh{near(args.shell, SHELLS)}")
    try:
        import shtab
    except ImportError as error:
        raise Refusal("completion needs the extra `cli`: pip install 'leasehold[cli]'") from error
    paths = {"FILE": shtab.FILE, "DIRECTORY": shtab.DIRECTORY}
    say(shtab.complete(whole(paths), shell=args.shell))
    return 0


def whole(paths: dict[str, Any]) -> Parser:
    """Return the parser of all commands with all flags, and the words that complete their values."""
    parser = Parser(prog="leasehold")
    parser.add_argument("--version", action="store_true", help="say the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for module in dict.fromkeys(module for module, _ in COMMANDS.values()):
        command: Any = import_module(f"supervisor.cli.{module}")
        command.add(_Summaries(subparsers))
    for name, each in parser.commands.items():
        for action in each.declared:
            _say_words(name, action, paths)
    return parser


class _Summaries:
    """Adds to each command its summary, without which shtab leaves the command out."""

    def __init__(self, subparsers: Any) -> None:
        self._subparsers = subparsers

    def add_parser(self, name: str, **kwargs: Any) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = self._subparsers.add_parser(name, help=COMMANDS[name][1], **kwargs)
        return added


def _say_words(command: str, action: argparse.Action, paths: dict[str, Any]) -> None:
    words = WORDS.get(action.dest)
    if action.dest == "state":
        words = STATES if command == "jobs" else CHOSEN_STATES
    elif (command, action.dest) == ("completion", "shell"):
        words = SHELLS
    elif (command, action.dest) == ("config", "option"):
        from supervisor.engine.model.options import OPTIONS

        words = tuple(OPTIONS)
    if words:
        action.choices = words
    elif action.dest in PATHS:
        action.complete = paths[PATHS[action.dest]]  # type: ignore[attr-defined]  # the attribute that shtab reads
