"""Measures one variant: a process with the variant's interpreter and code, and with servers of its own.

Told over a socket what to measure next, as the variants of a row take turns. Ends with the one that has started it.
"""

import json
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from supervisor.linux import kernel
from tests.bench.bench import Bench, prepared
from tests.bench.benchmark import Benchmark, Step, Unmeasured
from tests.bench.table import BENCHMARKS


class Measuring:
    """Answers requests from a socket one after another, until it is closed."""

    def __init__(self, link: socket.socket, quick: bool, peers: Path | None) -> None:
        self._requests = link.makefile()
        self._link = link
        self._quick = quick
        self._peers = peers
        self._stack = ExitStack()  # of the run
        self._bench: Bench | None = None
        self._steps: Sequence[Step] = ()

    def run(self) -> None:
        with self._stack, ExitStack() as benchmark:
            for line in self._requests:
                request = json.loads(line)
                if "begin" in request:
                    benchmark.close()
                    self._answer(self._begun(BENCHMARKS[request["begin"]], benchmark))
                else:
                    self._answer(self._measured(self._steps[request["measure"]]))

    def _begun(self, benchmark: Benchmark, stack: ExitStack) -> dict[str, Any]:
        try:
            bench = self._prepared()
            bench.server.clear()
            self._steps = stack.enter_context(benchmark.steps(bench))
        except Exception as error:  # noqa: BLE001 -- the boundary: it is told to the one that asks
            return {"why": _in_words(error)}
        names = ("rows", "missing", "is_ours", "runs_python")
        steps = [{name: getattr(step, name) for name in names} for step in self._steps]
        return {"steps": steps, "server": bench.server.name}

    def _prepared(self) -> Bench:
        if self._bench is None:
            # The path of a socket may have a hundred bytes.
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lh-bench-", dir="/tmp"))
            say = self._say
            self._bench = self._stack.enter_context(prepared(Path(directory), self._quick, self._peers, say))
        return self._bench

    def _measured(self, step: Step) -> dict[str, Any]:
        try:
            return {"figures": step.measure()}
        except Exception as error:  # noqa: BLE001 -- the boundary: for one row an hour of others is not thrown away
            return {"why": _in_words(error)}

    def _say(self, text: str) -> None:
        self._answer({"say": text})

    def _answer(self, answer: dict[str, Any]) -> None:
        self._link.sendall(json.dumps(answer).encode() + b"\n")


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, Unmeasured) else f"{type(error).__name__}: {error}"


def main(descriptor: str, quick: str, peers: str) -> None:
    """Run until the socket's other end is closed. SIGTERM ends servers and supervisors first."""
    kernel.set_parent_death_signal(signal.SIGTERM)
    kernel.become_subreaper()  # what peers leave behind stays below us: it is not taken for other work
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with socket.socket(fileno=int(descriptor)) as link:
            Measuring(link, quick == "quick", Path(peers) if peers else None).run()
    except (KeyboardInterrupt, ConnectionError):
        sys.exit(1)
