"""When a process has come to wait in the kernel."""

import subprocess
import time
from pathlib import Path


def until_it_waits(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", where: str) -> None:
    """Until it is in a call of the kernel of this name. A signal before that would not end the wait: Python looks for
    signals before it calls, not between that and the call.
    """
    while where not in Path(f"/proc/{process.pid}/wchan").read_text():
        assert process.poll() is None
        time.sleep(0.005)
