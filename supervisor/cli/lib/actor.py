"""Names who gives a command, as a claim: nothing proves it. Runs in the command's process."""

import argparse
import os
import socket

from supervisor.cli.lib.parser import UsageError
from supervisor.engine.model.bounds import BY_BYTES, LOGIN


def add_actor(parser: argparse.ArgumentParser) -> None:
    """Declare --as, of a command that changes something."""
    parser.add_argument(
        "--as", dest="actor", metavar="NAME", help="who acts, for `leasehold audit` (default: user@host)"
    )


def _claimed(args: argparse.Namespace | None) -> str:
    name: str = getattr(args, "actor", None) or ""
    if name.startswith(LOGIN):
        raise UsageError(f"--as {name!r} must not begin with {LOGIN}, as those do who have logged in at the web page")
    return name


def actor_of(args: argparse.Namespace) -> str:
    """Return who acts, as Redis keeps it."""
    return _claimed(args) or user_at_host()


def user_at_host() -> str:
    """Return user and host, in as many bytes as Redis keeps."""
    return f"{_user()}@{socket.gethostname()}".encode()[:BY_BYTES].decode(errors="ignore")


def author(args: argparse.Namespace | None = None) -> str:
    """Return the name that a supervisor logs as the author of a request."""
    return _claimed(args) or f"{_user()} at {socket.gethostname()}, pid {os.getpid()}"


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a uid without a name
        return f"uid {os.getuid()}"
