"""`leasehold doctor`: checks everything that `run` needs, before `run` starts. Runs in the command's process.

Owns the order of the checks. Must not import handlers, nor change anything in the namespace.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence

from supervisor.cli.commands.run import check_package, check_queues
from supervisor.cli.doctor import handlers, machine, queued_jobs, server
from supervisor.cli.doctor.findings import Finding, exit_code, ok, problem, warning
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Subparsers, add_settings, given
from supervisor.cli.lib.terminal import counted, note, say, say_json
from supervisor.config import SETTINGS, ConfigError, RunConfig
from supervisor.engine.embedded.embedded import refusal
from supervisor.engine.transport.credentials import load
from supervisor.exit_codes import Exit

EXAMPLES = """\
examples:
  leasehold doctor
  leasehold doctor --redis-url redis://localhost:6379/0 --handlers handlers --processes 4
  leasehold doctor --boot-timeout 10s
  leasehold doctor --handlers next_release --against-queue
  leasehold doctor --json | jq -r '.[] | select(.level != "ok") | .message'

Takes the flags and variables of `leasehold run`, and needs no more rights. A separate process imports the handlers
and ends. Without a URL doctor starts this directory's embedded server, as `run` does.
Exit codes: 0 nothing worse than a warning; else the exit code of `run`: 78 configuration, 69 Redis, 71 handlers;
1 for another problem."""

CONFIGURATION = "configuration"
Flags = Mapping[str, str | Sequence[str] | None]


def add(subparsers: Subparsers) -> None:
    """Declare the flags of `run`."""
    parser = subparsers.add_parser("doctor", description="Look at everything that `run` would need.", epilog=EXAMPLES)
    add_json(parser, "a list of findings: check, level (ok, warning or problem) and message")
    parser.add_argument(
        "--against-queue", action="store_true", help="also try the handlers on the data of all jobs in the queue"
    )
    add_settings(parser, SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Run all checks, and print each finding as it comes. Return the exit code that `run` would have."""
    # SIGTERM ends the command and its processes, as Ctrl-C does. PID 1 would not even receive it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    findings = []
    for finding in examine(given(args), args.against_queue):
        findings.append(finding)
        if not args.json:
            say(f"{finding.level:<7}  {finding.check:<13}  {finding.message}")
            sys.stdout.flush()  # the import of the handlers may take a while
    if args.json:
        say_json([{"check": each.check, "level": each.level, "message": each.message} for each in findings])
    else:
        note(_summary(findings))
    return exit_code(findings)


def _summary(findings: Sequence[Finding]) -> str:
    problems, warnings = (sum(each.level == level for each in findings) for level in ("problem", "warning"))
    if not problems and not warnings:
        return "nothing is wrong"
    return f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"


def examine(flags: Flags, against_queue: bool = False) -> Iterator[Finding]:
    """Yield the findings of all checks in the order of need. A wrong configuration skips what depends on it."""
    config, findings = _settings(flags)
    yield from findings
    for look in machine.CHECKS:
        yield from look()
    if config is None:
        return
    for look_for in machine.CHECKS_OF_SETTINGS:
        yield from look_for(config)
    yield from server.examine(config)
    if against_queue:
        yield from queued_jobs.examine(config)
    # The last check: from here on this process adopts orphans, and the embedded server must not be one.
    yield from handlers.examine(config)


def _settings(flags: Flags) -> tuple[RunConfig | None, list[Finding]]:
    """Return the config, or None if flags and variables make none, and the findings about it."""
    try:
        check_package()
        config = RunConfig.load(flags, os.environ, terminal=sys.stderr.isatty())
        load(config.redis_credentials)
        check_queues(config, "--queue" if flags["queue"] or "LEASEHOLD_QUEUE" not in os.environ else "LEASEHOLD_QUEUE")
    except ConfigError as error:
        return None, [problem(CONFIGURATION, sentence, Exit.CONFIG) for sentence in error.problems]
    findings = [warning(CONFIGURATION, sentence) for sentence in config.warnings]
    if config.redis_url is None and (why := refusal("--redis-url embedded:")):
        findings.append(problem(CONFIGURATION, why, Exit.CONFIG))
        return None, findings
    queues = " ".join(config.queue)
    findings.append(ok(CONFIGURATION, f"serves {queues} ({config.order}) in namespace {config.namespace}"))
    return config, findings
