"""Describes the origin of the figures: the machine, its load before, and the versions and builds of the programs."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.benchmark import BEFORE
from tests.bench.peers.versions import versions
from tests.bench.variants import Variant


def header(rounds: int, quick: bool, variants: Sequence[Variant], peers: Path | None) -> dict[str, str]:
    """Describe the machine, before anything is measured. `peers`: the folder of the peers."""
    ours, *others = variants
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "code": f"{ours.revision}, {'compiled' if ours.is_compiled else 'pure'}",
        "interpreter": ours.build,
        **{"before" if variant.suffix == BEFORE else "also": str(variant) for variant in others},
        "processors": f"{len(os.sched_getaffinity(0))}, {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "server": "",
        "peers": versions(peers) or "none",
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "rounds": f"{rounds}, and small amounts: figures of no use" if quick else str(rounds),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
