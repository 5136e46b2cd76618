"""Tells the versions of the measured peers, and how their interpreters were built."""

import subprocess
from functools import cache
from pathlib import Path

from tests.bench.builds import build_of
from tests.bench.peers import ALL, PYTHON, Peer, command, home, missing


def versions(folder: Path | None) -> str:
    """Return the versions of the peers that can be measured, by the interpreters that run them."""
    found: dict[str, list[str]] = {}
    for peer in _measured(folder):
        found.setdefault(_build(peer, folder), []).append(f"{peer.name} {_version(peer, folder)}".strip())
    return "; ".join(f"{', '.join(names)} under {build}" for build, names in found.items())


def builds(folder: Path | None) -> list[str]:
    """Return the builds of the Python interpreters that run peers."""
    return list(dict.fromkeys(_build(peer, folder) for peer in _measured(folder) if peer in PYTHON))


def _measured(folder: Path | None) -> list[Peer]:
    return [peer for peer in ALL if not missing(peer, folder)]


@cache
def _build(peer: Peer, folder: Path | None) -> str:
    """Describe the build of the interpreter that runs a peer."""
    if peer in PYTHON:
        return build_of(Path(command((peer.interpreter,), peer, folder)[0]))
    words = _told(peer.interpreter, "--version")  # "ruby 3.1.2p20 (…", "v20.1.0"
    return f"{peer.interpreter} {words[1] if words[0] == peer.interpreter else words[0]}"


def _version(peer: Peer, folder: Path | None) -> str:
    if peer.tells_version:
        return _told(*command(peer.tells_version, peer, folder))[-1]
    found = Path(home(peer, folder)).glob(f"lib/python*/site-packages/{peer.package}-*.dist-info")
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in found), "")


def _told(*command: str) -> list[str]:
    """The words that a program prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split() or ["unknown"]
