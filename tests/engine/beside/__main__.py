"""`python -m tests.engine.beside`: play random calls on this engine and on that of another source tree.

    git worktree add ../before <commit>
    .venv/bin/python -m tests.engine.beside play ../before

Each seed is a list of calls. After each call the replies are compared, and after every few calls all that queries
show. A difference is cut down to few calls and printed; a file of such lines can be played again with --replay.
`record` in place of `play`: the replies of that tree become those that test_recorded.py expects.

Jobs that are completed in one millisecond have no order of their own. Across a change of layout retention may drop
others of them first: the printed difference then names two such jobs, and the rest of the calls is worth playing.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from supervisor.engine.model import scripts
from tests.engine.beside import recorded
from tests.engine.beside.engines import Pair, drawn, engine_of

ROOT = Path(__file__).parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.beside", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=["play", "record"])
    parser.add_argument("reference", type=Path, help="the source tree to compare with, or whose replies to record")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the source tree that is compared; default: this one")
    parser.add_argument("--calls", type=int, default=40_000, help="calls in all; default 40000")
    parser.add_argument("--length", type=int, default=500, help="calls of each seed; default 500")
    parser.add_argument("--look-every", type=int, default=50, help="calls between two looks at all; default 50")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--differences", type=int, default=1, help="stop after so many seeds that differ; default 1")
    parser.add_argument("--replay", type=Path, help="a file of calls, a line each, in place of random ones")
    parser.add_argument("--seed", type=int, default=0, help="of the calls in that file")
    options = parser.parse_args()
    if options.verb == "record":
        with engine_of(options.reference.resolve()) as reference:
            recorded.record(reference)
        return 0
    with engine_of(options.reference.resolve()) as reference, engine_of(options.tree.resolve()) as candidate:
        return play(Pair(reference, candidate), options)


def play(pair: Pair, options: argparse.Namespace) -> int:
    began = time.monotonic()
    if options.replay:
        calls = [json.loads(line) for line in options.replay.read_text().splitlines() if line.startswith("{")]
        lists = {options.seed: calls}
    else:
        seeds = range(options.first_seed, options.first_seed - (-options.calls // options.length))
        lists = {seed: [] for seed in seeds}
    played = differing = 0
    for seed, given in lists.items():
        calls = given or drawn(seed, options.length, options.look_every)
        difference = pair.compare(seed, calls)
        played += sum(call["do"] not in ("look", "drain") for call in calls)
        if difference is not None:
            sys.stdout.write("\n".join([f"seed {seed} differs:", *difference.lines(), ""]))
            sys.stdout.flush()
            differing += 1
            if differing == options.differences:
                break
    missed = sorted({script.name for script in scripts.ALL} - pair.candidate.used)
    said = f"{played} calls in {time.monotonic() - began:.0f} s, {differing} seeds differ"
    sys.stdout.write(f"{said}; scripts never called: {', '.join(missed) or 'none'}\n")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
