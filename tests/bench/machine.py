"""What the figures come from: the machine, its load before, and the versions of what runs."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.pool import SOURCE


def header(server: str, rounds: int, quick: bool, peers: str) -> dict[str, str]:
    """To be asked before anything is measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "code": _revision(),
        "processors": f"{len(os.sched_getaffinity(0))}, {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": f"{server}, without an append-only file",
        "peers": peers or "none",
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "rounds": f"{rounds}, and small amounts: figures of no use" if quick else str(rounds),
    }


def _revision() -> str:
    """Of the checkout; with a + where it has been changed since."""
    command = ["git", "-C", str(SOURCE), "describe", "--always", "--dirty=+"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError:  # ENOENT: there is no git
        return "unknown"
    return told.stdout.strip() or "unknown"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
