"""Tries new handlers on the jobs that are in the queue. Runs in the command's process.

Must not import them itself, nor change anything in the namespace.
"""

import select
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from typing import IO, Any, Final

import orjson

from supervisor.cli.doctor.findings import Finding, ok, problem
from supervisor.cli.lib.described import environment
from supervisor.cli.lib.terminal import counted
from supervisor.config import RunConfig
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Job
from supervisor.engine.commands import entries
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.transport.credentials import load
from supervisor.exit_codes import Exit
from supervisor.redis_url import EMBEDDED

_CHECK: Final = "queued-jobs"
_PAGE: Final = 1000
#: The states of jobs that the new code will start.
_STATES: Final = ("waiting", "scheduled", "depends", "parked")
_END_S: Final = 60.0


def examine(config: RunConfig) -> Iterator[Finding]:
    """Have a process import the handlers, show it the data of each job, and yield a finding for each klass."""
    command = [sys.executable, "-m", "supervisor.child.trial", config.handlers]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if _is_ready(process.stdout, config.boot_timeout_s):
                yield from _findings(_tried(config, process.stdin, process.stdout))
            else:
                yield problem(_CHECK, "not tried: the handlers cannot be imported", Exit.HANDLERS)
        except (OSError, ValueError) as error:
            yield problem(_CHECK, f"not tried: the process that imports the handlers has ended ({error})")
        except LeaseholdError as error:
            yield problem(_CHECK, f"not tried: {error}")
        finally:
            process.kill()


def _is_ready(answers: IO[bytes], most_s: float) -> bool:
    """Return whether the handlers are imported in time."""
    return bool(select.select([answers], [], [], most_s)[0]) and answers.readline() == b"null\n"


def _tried(config: RunConfig, jobs: IO[bytes], answers: IO[bytes]) -> dict[str, dict[str, Any]]:
    """Show all jobs to the process. Raises OSError or ValueError if it ends before its answer."""
    credentials = load(config.redis_credentials)
    url = config.redis_url or EMBEDDED  # another check has told of it
    with Client(url, config.namespace, credentials=credentials, poll=config.redis_poll_s) as client:
        for klass, jid, is_bytes, is_call, raw in chain(_jobs(client), _pushed(client)):
            jobs.write(orjson.dumps((klass, jid, is_bytes, is_call, len(raw))) + b"\n" + raw)
    jobs.close()
    if not select.select([answers], [], [], _END_S)[0]:
        raise ValueError(f"it does not answer within {_END_S:g} s")
    found: dict[str, dict[str, Any]] = orjson.loads(answers.read())
    return found


def _jobs(client: Client) -> Iterator[tuple[str, str, bool, bool, bytes]]:
    for name in client.queues():
        queue = client.queue(name)
        for state in (*_STATES, "recurring"):
            offset = 0
            while page := queue.jobs(state, offset, _PAGE):
                for one in page:
                    yield one.klass, one.jid, one.is_bytes, isinstance(one, Job) and one.is_call, one.raw
                offset += len(page)


def _pushed(client: Client) -> Iterator[tuple[str, str, bool, bool, bytes]]:
    """Yield the jobs that leases will make of pushed entries. What names no klass is `broken` for any code."""
    calls, options = calls_of(client), client.config.all()
    for name in sorted(calls.follow(entries.queues())):
        queue = name.decode(errors="replace")
        default_klass = options.get(f"klass-{queue}") or options["klass"]
        offset = 0
        while page := calls.run(entries.page(name, offset)):
            for one in page:
                if klass := one.klass or default_klass:
                    yield str(klass), one.jid or f"an entry of in:{queue}", one.is_bytes, False, one.raw
            offset += len(page)


def _findings(tried: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    taken = 0
    for klass, about in sorted(tried.items()):
        if about["refused"] is None:
            yield problem(
                _CHECK,
                f"no handler in this code for {counted(about['jobs'], 'job')} of {klass}; deploy it beside code that"
                " has one, or cancel them",
            )
        elif about["refused"]:
            jid, why = about["first"]
            yield problem(
                _CHECK,
                f"{about['refused']} of {counted(about['jobs'], 'job')} of {klass} could not be taken by this code; the"
                f" first is {jid}: {why}",
            )
        else:
            taken += about["jobs"]
    if taken or not tried:
        yield ok(_CHECK, f"of the jobs that wait, are scheduled or recur, this code can take {taken}")
