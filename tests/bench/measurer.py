"""The runner's hand: a process that measures one variant (`measuring.py`), asked over a socket."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.benchmark import Unmeasured
from tests.bench.variants import Variant

#: The folder in which tests/ lies.
BENCHMARKS = Path(__file__).parents[2]
#: The variant's package comes from its own folder alone, the benchmarks from ours. An editable installation would add
#: the modules that an earlier version lacks.
START = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if not getattr(each, "__module__", "").startswith("__editable__")]
sys.path.insert(0, sys.argv[1])
import supervisor
sys.path[0] = sys.argv[2]
try:
    from tests.bench.measuring import main
except ImportError as error:
    sys.exit(f"these benchmarks do not fit the code in {sys.argv[1]}: {error}")
main(*sys.argv[3:])
"""
PATIENCE_S = 90.0


@dataclass(frozen=True)
class StepSeen:
    """A step of a benchmark, as its own process has told it."""

    rows: Sequence[str]
    missing: str | None
    is_ours: bool
    runs_python: bool


@dataclass(frozen=True)
class Begun:
    """A benchmark that can be measured now."""

    steps: Sequence[StepSeen]
    server: str


@dataclass(frozen=True)
class Reply:
    """Figures by row; or why there are none."""

    figures: Mapping[str, Mapping[str, float]]
    why: str | None = None


class Measurer:
    """The process, while it lives."""

    def __init__(self, variant: Variant, link: socket.socket) -> None:
        self.variant = variant
        self._link = link
        self._answers = link.makefile()

    def begin(self, benchmark: str) -> Begun:
        """Raises Unmeasured if it cannot be, for example where there is no server."""
        answer = self._ask({"begin": benchmark}, lambda _: None)
        if "why" in answer:
            raise Unmeasured(answer["why"])
        return Begun([StepSeen(**step) for step in answer["steps"]], answer["server"])

    def measure(self, step: int, say: Callable[[str], None]) -> Reply:
        answer = self._ask({"measure": step}, say)
        return Reply(answer.get("figures", {}), answer.get("why"))

    def _ask(self, request: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
        try:
            self._link.sendall(json.dumps(request).encode() + b"\n")
            while line := self._answers.readline():
                answer = json.loads(line)
                if "say" not in answer:
                    return dict(answer)
                say(answer["say"])
        except ConnectionError:  # it has ended before it could read the request
            pass
        raise Unmeasured(f"the process that measures {self.variant.source} has ended")


@contextmanager
def started(variant: Variant, quick: bool, peers: Path | None) -> Iterator[Measurer]:
    """A process of this variant, with all that it has started, while the block runs."""
    ours, theirs = socket.socketpair()
    arguments = [variant.source, BENCHMARKS, theirs.fileno(), "quick" if quick else "", peers or ""]
    with ours, theirs:
        process = subprocess.Popen(
            [variant.python, "-P", "-c", START, *map(str, arguments)],
            cwd="/", pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        try:
            yield Measurer(variant, ours)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except BaseException:
                process.kill()
                process.wait()
                raise
