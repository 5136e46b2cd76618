"""Builds deploy/Dockerfile by buildah, on a base image that debootstrap makes. Needs Debian, root and its archive.

Everything lies in one directory: the base's root file system, and the images (driver vfs: plain files, no mounts).
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: Debian's packages of these names hold them.
PROGRAMS = ("buildah", "runc", "debootstrap")
#: Debian's packages for the image python:…-slim and for a machine with systemd.
PACKAGES = ("python3", "python3-venv", "python3-pip", "python-is-python3", "systemd", "systemd-sysv", "dbus", "procps")
#: Names a directory in which all this is done, and the base is kept for the next session.
KEEP_IN = "TEST_IMAGE_DIRECTORY"
_SLOW_S = 600
#: Each test of the image may have to wait until another process has built it.
TIMEOUT_S = 1200


@dataclass(frozen=True)
class Built:
    """The image as a container engine gets it: its files, and how it is to be run (Docker's config)."""

    files: Path
    config: dict[str, Any]


def skip_where_it_cannot_be() -> None:
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"this machine has no {', '.join(missing)} (Debian's packages of these names)")
    if os.geteuid():
        pytest.skip("only root may build an image and run containers here")


@contextmanager
def built(session: Path) -> Iterator[Built]:
    """The image, built in `session` or in $TEST_IMAGE_DIRECTORY. The processes of a test session share the directory:
    the first one builds, the last one removes.
    """
    kept = os.environ.get(KEEP_IN)
    directory = Path(kept or session)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(directory / "users", "w") as users, open(directory / "building", "w") as building:
        if _is_alone(users.fileno()):  # what is there was left by a session that was killed
            shutil.rmtree(directory / "image", ignore_errors=True)
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(building, fcntl.LOCK_EX)
        if not (directory / "image/built.json").exists():
            _build(directory / "image", _base(directory / "base"))
        fcntl.flock(building, fcntl.LOCK_UN)
        try:
            told = json.loads((directory / "image/built.json").read_text())
            yield Built(Path(told["files"]), told["config"])
        finally:
            if _is_alone(users.fileno()):
                shutil.rmtree(directory / "image" if kept else directory)


def _is_alone(users: int) -> bool:
    """Return whether no other process of the session uses the directory. If so, others wait until this lock ends."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _build(directory: Path, base: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)  # what a build that was broken off has left
    directory.mkdir(mode=0o755)
    scratch = _buildah(directory, "from", "scratch")
    _buildah(directory, "add", "--quiet", scratch, str(base), "/")
    _buildah(directory, "commit", "--quiet", "--rm", scratch, "localhost/base")
    recipe = ["--file", str(ROOT / "deploy/Dockerfile"), "--build-arg", "PYTHON=localhost/base"]
    as_docker = ["--format", "docker", "--pull-never", "--network", "host", "--tag", "localhost/leasehold"]
    _buildah(directory, "build", *as_docker, *recipe, *_index_as_here(directory), str(ROOT))
    config = json.loads(_buildah(directory, "inspect", "--type", "image", "localhost/leasehold"))["Docker"]["config"]
    files = _buildah(directory, "mount", _buildah(directory, "from", "--pull-never", "localhost/leasehold"))
    (directory / "built.json").write_text(json.dumps({"files": files, "config": config}))


def _base(directory: Path) -> Path:
    """The root file system of this machine's release of Debian, from where its packages come from."""
    if not directory.exists():
        release = _field("/etc/os-release", "VERSION_CODENAME")
        archives = _run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Component: main")
        mirror = next((line.split()[1] for line in archives.splitlines() if line.split()[0] == release), None)
        if mirror is None:
            pytest.skip(f"apt knows no archive of {release or 'this machine'}: only a Debian has one")
        begun = directory.with_suffix(".begun")
        shutil.rmtree(begun, ignore_errors=True)
        packages = f"--include={','.join(PACKAGES)}"
        _run("debootstrap", "--variant=minbase", packages, release, str(begun), mirror)
        for used_up in [*begun.glob("var/cache/apt/archives/*.deb"), *begun.glob("var/lib/apt/lists/*_*")]:
            used_up.unlink()
        begun.rename(directory)
    return directory


def _index_as_here(directory: Path) -> list[str]:
    """Return the options that give pip in the build its settings of this machine, with the files that they name."""
    lines = _run("python3", "-m", "pip", "config", "list").splitlines()
    settings = dict(line.partition("=")[::2] for line in sorted(lines, reverse=True))  # of two, the environment's
    values = {name.partition(".")[2]: value.strip("'\"") for name, value in settings.items() if "." in name}
    configuration = directory / "pip.conf"
    configuration.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
    words = {word for value in values.values() for word in value.split()}
    files = {Path(word) for word in words if word.startswith("/")}
    # The pages of an index that lies in a directory name files beside that.
    indexes = {Path(word.removeprefix("file://")).parent for word in words if word.startswith("file:///")}
    mounts = [(configuration, "/etc/pip.conf"), *((each, each) for each in sorted(files | indexes) if each.exists())]
    return [part for source, goal in mounts for part in ("--volume", f"{source}:{goal}:ro")]


def _buildah(directory: Path, *words: str) -> str:
    where = ("--root", f"{directory}/images", "--runroot", f"{directory}/run", "--storage-driver", "vfs")
    return _run("buildah", *where, *words)


def _run(*command: str) -> str:
    """Run a command and return its output. If this process ends, all processes and mounts of the command end, too."""
    alone = ("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child=SIGKILL")
    done = subprocess.run([*alone, *command], capture_output=True, text=True, timeout=_SLOW_S, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def _field(file: str, name: str) -> str:
    lines: Sequence[str] = Path(file).read_text().splitlines()
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith(f"{name}=")), "")
