"""When a signal ends a wait."""

import subprocess
import time
from pathlib import Path


def until_it_waits(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", where: str) -> None:
    """In a call of the kernel of this name: Python looks for signals before it calls, not between that and the call."""
    while where not in Path(f"/proc/{process.pid}/wchan").read_text():
        assert process.poll() is None
        time.sleep(0.005)
