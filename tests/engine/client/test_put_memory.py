"""Checked jobs that are not yet put take little memory in their client."""

import subprocess
import sys

GROWTH = """
from pathlib import Path
from supervisor.engine.client.answers import checked_many
def pages(): return int(Path("/proc/self/statm").read_text().split()[1])
before = pages()
batches = checked_many("q", ({"klass": "k", "data": {"number": n}} for n in range(20_000)))
print((pages() - before) * 4096 // 20_000)
"""


def test_small_payload_takes_its_own_size():
    """orjson's bytes keep a buffer of 4 KiB."""
    bytes_a_job = int(subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, check=True).stdout)
    assert 100 < bytes_a_job < 2000
