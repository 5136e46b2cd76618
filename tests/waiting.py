"""Waits until a process waits in the kernel."""

import subprocess
import time
from pathlib import Path


def until_it_waits(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", where: str) -> None:
    """Wait until the process is in the kernel's function `where`.

    An earlier signal would not end that wait, because Python looks for signals before the call, not between.
    """
    while where not in Path(f"/proc/{process.pid}/wchan").read_text():
        assert process.poll() is None
        time.sleep(0.005)
