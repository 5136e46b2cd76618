"""Makes certificates for servers of tests."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate that is its own authority, for a name like IP:127.0.0.1. Return its file and its key's."""
    if shutil.which("openssl") is None:
        pytest.skip("this machine makes no certificates")
    path, key = directory / "cert", directory / "key"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=server", "-addext", f"subjectAltName={name}"]
    subprocess.run([*request, *names, "-keyout", key, "-out", path, "-days", "2"], check=True, capture_output=True)
    return path, key
