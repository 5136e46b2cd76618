"""Reads and writes durations and sizes. Runs in every process. Imports nothing of ours: children carry it."""

import re

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", re.ASCII)
DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)", re.ASCII)
SIZE_UNITS_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
#: Ten years. A longer duration was meant as 0 (none), or has a wrong unit.
LONGEST_S = 10 * 365 * 86400.0


def parse_duration(text: str) -> float:
    """Return the seconds of `30`, `30s`, `500ms`, `5m`, `2h`, `7d`. Raises ValueError saying what is expected."""
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError("is not a duration; write it like 30, 30s, 500ms, 5m, 2h or 7d")
    seconds = float(match[1]) * DURATION_UNITS_S[match[2]]
    if seconds > LONGEST_S:
        raise ValueError("is longer than ten years; check the unit")
    return seconds


def parse_size(text: str) -> int:
    """Return the bytes of `4096`, `64K`, `256M`, `1G`, `1.5G` (powers of 1024). Raises ValueError saying what is
    expected.
    """
    match = SIZE.fullmatch(text)
    if not match:
        raise ValueError("is not a size; write it like 4096, 64K, 256M or 1G")
    size_bytes = float(match[1]) * SIZE_UNITS_BYTES[match[2]]
    if size_bytes >= 2**63:
        raise ValueError("is more than any machine has; check the unit")
    return int(size_bytes)


def megabytes(size_bytes: float) -> str:
    """Format a size for people."""
    return f"{size_bytes / 2**20:,.1f}".removesuffix(".0") + " MB"
