"""A real PostgreSQL for tests, of the machine's own package: on a unix socket, in a directory that goes with it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

#: PostgreSQL refuses to run as root.
_NOBODY = 65534


def programs() -> Path | None:
    """Return the folder of initdb and pg_ctl. None: there is no PostgreSQL."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (debian and debian[-1])
    return Path(os.path.realpath(found)).parent if found else None


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The URL of a server that lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="lh-pg-", dir="/tmp") as directory:
        user = _NOBODY if os.getuid() == 0 else None
        if user is not None:
            os.chown(directory, user, user)

        def command(program: str, *words: str) -> None:
            done = subprocess.run([folder / program, "-D", f"{directory}/data", *words], cwd=directory, user=user,
                                  group=user, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
            assert done.returncode == 0, done.stderr

        command("initdb", "--username=app", "--auth=trust", "--no-sync", "--encoding=UTF8", "--no-locale")
        options = f"-k {directory} -c listen_addresses= -c fsync=off"
        command("pg_ctl", "start", "--wait", f"--options={options}", f"--log={directory}/log")
        try:
            yield f"postgresql://app@/postgres?host={quote(directory, safe='')}"
        finally:
            command("pg_ctl", "stop", "--wait", "--mode=immediate")
