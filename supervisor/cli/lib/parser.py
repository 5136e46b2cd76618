"""Parses the command line, runs the command, and prints each error as one sentence. Runs in the command's process.

Owns the list of commands. Must not import a command that is not run, so that --help and --version are fast.
"""

import argparse
import io
import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn, Protocol

from supervisor.config import SETTINGS, ConfigError, Setting
from supervisor.exit_codes import Exit

#: command -> its module in supervisor.cli, and its summary in --help.
COMMANDS = {
    "run": ("commands.run", "lease jobs and run them in a pool of child processes"),
    "put": ("commands.put", "put a job into a queue"),
    "recur": ("commands.recur", "put a job repeatedly, by an interval or cron"),
    "outbox": ("commands.outbox", "put the jobs that SQL transactions have left in an outbox"),
    "queues": ("commands.queues", "show what waits, runs and stalls in each queue; delete one"),
    "lane": ("commands.lane", "the lanes of a queue: show, weigh, pause, delete"),
    "limit": ("commands.limit", "limit how many jobs of a key run, or start in a time"),
    "jobs": ("commands.jobs", "list the jobs in one state"),
    "peek": ("commands.jobs", "list the jobs that a queue would give next"),
    "job": ("commands.job", "show everything about one job"),
    "why": ("commands.why", "tell why a job or a queue stands where it does"),
    "failed": ("commands.failed", "list the groups of failed jobs, or the jobs of one group"),
    "retry": ("commands.failed", "put failed jobs back: some, or all of a group"),
    "unfail": ("commands.failed", "put the jobs of a group back, with changes if needed"),
    "cancel": ("commands.steer", "cancel jobs in any state"),
    "fail": ("commands.steer", "fail jobs by hand"),
    "release": ("commands.steer", "take running jobs from their workers, to the front of the queue"),
    "move": ("commands.steer", "put jobs into another queue"),
    "priority": ("commands.steer", "make jobs run sooner or later than others"),
    "depend": ("commands.depend", "make a job wait for others, or no longer"),
    "signal": ("commands.signal", "send a job the signal that it waits for"),
    "batch": ("commands.batch", "show batches; cancel the jobs of one, or retry those that failed"),
    "door": ("commands.door", "run the jobs that other programs put into their own lists"),
    "adopt": ("commands.adopt", "take over the queues of Celery, RQ or Sidekiq, or the jobs of qless"),
    "tag": ("commands.tag", "show and change tags; list the jobs of a tag"),
    "track": ("commands.track", "mark jobs to observe, and list them"),
    "log": ("commands.log", "write a line into a job's history"),
    "audit": ("commands.audit", "show who did what: pauses, cancellations, retries and the like"),
    "workers": ("commands.workers", "list the workers and their jobs"),
    "serve": ("commands.serve", "change the queues of a running supervisor"),
    "top": ("top.command", "watch queues, supervisors and children live, with keys to act on them"),
    "web": ("commands.web", "serve a page that shows everything, and its API"),
    "status": ("commands.status", "show the state of running supervisors and their children"),
    "drain": ("commands.drain", "end running supervisors once their jobs have ended"),
    "reload": ("commands.reload", "make running supervisors reload their handlers"),
    "scale": ("commands.scale", "set how many jobs running supervisors run at once"),
    "stacks": ("commands.stacks", "show the Python stacks of running supervisors' children"),
    "stats": ("commands.stats", "show how long a queue's jobs waited and ran on a day"),
    "config": ("commands.config", "the options in Redis: show, set, unset"),
    "pause": ("commands.pause", "start no more jobs of a queue, or at a supervisor"),
    "unpause": ("commands.pause", "resume a paused queue or supervisor"),
    "events": ("commands.events", "follow events as they happen"),
    "check": ("commands.check", "find inconsistencies, and repair them"),
    "upgrade": ("commands.upgrade", "convert the keys in Redis to this version's layout, or back to that of 0.1"),
    "reshard": ("commands.reshard", "move the jobs of a namespace from one shard into several"),
    "sweep": ("commands.check", "take jobs from lost workers now"),
    "handlers": ("commands.handlers", "list the handlers of a package, with their parameters"),
    "stubs": ("commands.stubs", "write a module that puts typed jobs where the handlers cannot be imported"),
    "doctor": ("doctor.command", "check everything that run needs, before it starts"),
    "healthcheck": ("commands.healthcheck", "ask this machine's supervisor whether it is well, for probes"),
    "completion": ("commands.completion", "print a completion script for bash, zsh or tcsh"),
    "demo": ("demo.command", "run a real pool on a real server, with jobs that crash on purpose"),
    "bench": ("commands.bench", "measure it beside the machine's limits and peers; in a clone of the source"),
}

#: Names of these commands in other programs, which are not similar to ours.
_ELSEWHERE = {
    "add": "put", "enqueue": "put", "push": "put", "start": "run", "worker": "run", "work": "run", "stop": "drain",
    "quit": "drain", "shutdown": "drain", "restart": "reload", "delete": "cancel", "remove": "cancel", "rm": "cancel",
    "kill": "cancel", "purge": "cancel", "revoke": "cancel", "requeue": "retry", "ps": "status", "inspect": "status",
    "info": "status", "ls": "jobs", "list": "jobs", "show": "job", "logs": "events", "monitor": "top",
    "migrate": "upgrade", "convert": "upgrade", "downgrade": "upgrade", "version": "--version",
    "shard": "reshard", "split": "reshard", "divide": "reshard",
}  # fmt: skip

EXAMPLES = """\
examples:
  leasehold demo
  leasehold run --handlers handlers --queue high --queue default --processes 4
  leasehold put email.send '{"to": "ada@example.org"}' --queue high
  leasehold queues

Every flag of `leasehold run` is also an environment variable: --job-timeout 5m is LEASEHOLD_JOB_TIMEOUT=5m.
Exit codes: 1 refused, 2 usage, 69 Redis unreachable, 70 internal error, 71 handlers do not boot,
75 could not hand back, 78 bad configuration."""


class Subparsers(Protocol):
    """The collection to which a command adds its parser."""

    def add_parser(self, name: str, **kwargs: Any) -> argparse.ArgumentParser:
        """Return a new parser for the command `name`."""


class CommandModule(Protocol):
    """The module of one or several commands. `args.command` has the name."""

    def add(self, subparsers: Subparsers) -> None:
        """Declare the flags of each command of the module."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command. Return the exit code."""


class UsageError(Exception):
    """A wrong command line, as one sentence. Exit code 2."""


class Refusal(Exception):
    """A request that the command cannot fulfil, as one sentence with an exit code."""

    def __init__(self, message: str, code: Exit = Exit.REFUSED) -> None:
        self.code = code
        super().__init__(message)


class OptionalValue(argparse.Action):
    """A flag with or without `=VALUE`; without it the value is "". argparse would take the next word for the value."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _flag: str | None = None) -> None:
        """Store the value."""
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Raises a UsageError where argparse would print and exit, and takes flags before, between and after arguments."""

    def __init__(self, **kwargs: Any) -> None:
        self.declared: list[argparse.Action] = []
        self.commands: dict[str, Parser] = {}
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """Declare an argument, and remember it in `declared`."""
        action = super().add_argument(*args, **kwargs)
        self.declared.append(action)
        return action

    def add_subparsers(self, **kwargs: Any) -> Any:
        """Return what takes the commands. `commands` has the parser of each by name."""
        subparsers = super().add_subparsers(**kwargs)
        self.commands = subparsers.choices
        return subparsers

    @property
    def flags(self) -> dict[str, argparse.Action]:
        """Return the declared flags by each of their spellings."""
        return {flag: action for action in self.declared for flag in action.option_strings}

    def error(self, message: str) -> NoReturn:
        """Raise the UsageError. argparse calls this for every wrong use."""
        raise UsageError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse. Unknown words are refused here: this parser knows the flags that they resemble."""
        flags = self.flags
        words = list(args)
        end = words.index("--") if "--" in words else len(words)
        words[:end] = [f"{word}=" if isinstance(flags.get(word), OptionalValue) else word for word in words[:end]]
        if not self.commands:
            words[:end] = _flags_first(words[:end], flags)
        values, unknown = super().parse_known_args(words, namespace)
        if unknown:
            raise UsageError(_about_unknown(unknown[0], flags))
        return values, unknown


def _flags_first(words: Sequence[str], known: Mapping[str, argparse.Action]) -> list[str]:
    """Return the words with flags and their values in front.

    argparse gives all words before a flag to the first argument, and then finds none for the second.
    """
    flags, others, rest = list[str](), list[str](), iter(words)
    for word in rest:
        action = known.get(word.split("=", 1)[0])
        if action is None or action.nargs in {"?", "*", "+"}:
            if word.startswith("--"):
                return list(words)  # unknown, or only argparse can tell how many values it takes
            others.append(word)
            continue
        flags.append(word)
        if action.nargs is None and "=" not in word:
            flags += itertools.islice(rest, 1)
    return flags + others


def dispatch(argv: Sequence[str]) -> int:
    """Run the command of `argv` (without the program's name). Return the exit code. Raises only KeyboardInterrupt."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal gets characters that it cannot show escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = _run(argv)
        except SystemExit as end:  # argparse after --help and --version, with its output unflushed
            code = end.code if isinstance(end.code, int) else Exit.OK
        sys.stdout.flush()
        return code
    except UsageError as error:
        command = f" {argv[0]}" if argv and argv[0] in COMMANDS else ""
        _complain([f"{error}; see `leasehold{command} --help`"])
        return Exit.USAGE
    except ConfigError as error:
        _complain(error.problems)
        return Exit.CONFIG
    except Refusal as error:
        _complain([str(error)])
        return error.code
    except BrokenPipeError:  # `leasehold failed | head` has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Exit.OK
    except Exception as error:  # noqa: BLE001 -- the boundary: a bug is one sentence too, with its place
        _complain([f"internal error: {type(error).__name__}: {error} ({_place(error)})"])
        return Exit.INTERNAL


def _run(argv: Sequence[str]) -> int:
    command = argv[0] if argv and argv[0] in COMMANDS else None
    if argv and not command and not argv[0].startswith("-"):
        if argv[0] == "help":
            return _run([*argv[1:2], "--help"])
        meant = f", did you mean {_ELSEWHERE[argv[0]]}?" if argv[0] in _ELSEWHERE else near(argv[0], COMMANDS)
        raise UsageError(f"there is no command {argv[0]!r}{meant}")
    parser, module = build(command)
    args = parser.parse_args(argv)
    if module is None:
        parser.print_help()
        return Exit.USAGE
    return module.run(args)


def build(command: str | None) -> tuple[Parser, CommandModule | None]:
    """Return the parser with the flags of `command` only, and its module. None: a parser whose help lists all."""
    parser = Parser(
        prog="leasehold",
        usage=None if command else "leasehold [-h] [--version] COMMAND ...",
        description="Runs background jobs from Redis in a supervised pool of forked processes.",
        epilog=f"commands:\n{_command_list()}\n\n{EXAMPLES}",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say the version and exit")
    if command is None:
        return parser, None
    module: Any = import_module(f"supervisor.cli.{COMMANDS[command][0]}")
    module.add(parser.add_subparsers(dest="command", metavar="COMMAND"))
    return parser, module


def _command_list() -> str:
    name_width = max(map(len, COMMANDS)) + 2
    indent, columns = " " * (4 + name_width), shutil.get_terminal_size().columns - 2
    lines = (f"    {name.ljust(name_width)}{summary}" for name, (_, summary) in COMMANDS.items())
    return "\n".join(textwrap.fill(line, max(columns, 40), subsequent_indent=indent) for line in lines)


def add_settings(parser: argparse.ArgumentParser, settings: Sequence[Setting]) -> None:
    """Declare flags from the table of settings. Values stay text, which supervisor.config parses."""
    for setting in settings:
        if setting.switch:
            parser.add_argument(
                f"--{setting.flag}", dest=setting.flag, action="store_const", const="yes", help=setting.help
            )
            continue
        default = f" (default: {setting.default})" if setting.default is not None else ""
        parser.add_argument(
            f"--{setting.flag}",
            dest=setting.flag,
            action="append" if setting.repeatable else "store",
            metavar=setting.metavar,
            help=f"{setting.help}{default}".replace("%", "%%"),
        )


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of flags by flag name, for supervisor.config."""
    return {setting.flag: getattr(args, setting.flag, None) for setting in SETTINGS}


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("leasehold")
        except PackageNotFoundError:
            number = "(not installed: run from its source)"
        sys.stdout.write(f"leasehold {number}\n")
        parser.exit()


def near(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean …?` if a known word is similar, or is the only one that begins with `word`, else ""."""
    import difflib

    names = list(known)
    if word in names:
        return ""
    longer = [name for name in names if word and name.startswith(word)]
    close = difflib.get_close_matches(word, names, 1) or (longer if len(longer) == 1 else [])
    return f", did you mean {close[0]}?" if close else ""


def _about_unknown(word: str, flags: Iterable[str]) -> str:
    if not word.startswith("-"):
        return f"there is one argument too many: {word!r}"
    flag = word.split("=", 1)[0]
    return f"there is no flag {flag}{near(flag, flags)}"


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "nowhere"


def _complain(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        sys.stderr.write(f"leasehold: {' '.join(sentence.split())}\n")
