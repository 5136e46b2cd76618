"""`leasehold healthcheck`: asks this machine's supervisor by HTTP whether it is well. Runs in the command's process.

Probes run it every few seconds. Must not import handlers, redis or anything else that takes long.
"""

import argparse
import contextlib
import os
import socket
import sys

from supervisor import clock
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.config import SETTINGS, read
from supervisor.setting_values import ListenAddress

EXAMPLES = """\
examples:
  leasehold healthcheck
  leasehold healthcheck --ready
  leasehold healthcheck --http 9464

Asks at the address in LEASEHOLD_HTTP. If the supervisor listens on all interfaces, it asks over the loopback.
Exit codes: 0 it is well, 1 it is not, or does not answer."""

#: The listener answers within this time whatever the master does, unless the process is stopped.
_PATIENCE_S = 3.0
_MOST_BYTES = 65536
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_HTTP = tuple(setting for setting in SETTINGS if setting.flag == "http")


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser(
        "healthcheck", description="Ask the supervisor of this machine whether it is well.", epilog=EXAMPLES
    )
    parser.add_argument("--http", metavar="[HOST:]PORT", help="the supervisor's own --http (default: LEASEHOLD_HTTP)")
    parser.add_argument(
        "--ready", action="store_true", help="ask whether it can lease jobs, not only whether it is alive"
    )


def run(args: argparse.Namespace) -> int:
    """Ask the supervisor, and print its answer."""
    address = read(_HTTP, {"http": args.http}, os.environ)["http"]
    if address is None:
        raise UsageError(
            "nothing says where the supervisor listens: start it with LEASEHOLD_HTTP=9464 in its environment, and this"
            " command with the same, or with --http 9464"
        )
    if not address.port:
        raise UsageError("--http with port 0 is any port: give the one that the event http.listening names")
    path = "/readyz" if args.ready else "/livez"
    code, said = _ask(address, path)
    if code != 200:
        raise Refusal(f"the supervisor at {address} is not {'ready' if args.ready else 'well'}: {said}")
    sys.stdout.write(
        f"{said if said.isprintable() else ascii(said)}\n"
    )  # supervisor.cli.lib.terminal takes long to load
    return 0


def _ask(address: ListenAddress, path: str) -> tuple[int, str]:
    """Return code and words of the answer. Raises Refusal if there is none."""
    ends_at = clock.monotonic() + _PATIENCE_S
    where = (_LOOPBACK.get(address.host, address.host), address.port)
    received = b""
    try:
        with contextlib.closing(socket.create_connection(where, _PATIENCE_S)) as peer:
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            while len(received) < _MOST_BYTES:
                peer.settimeout(max(0.001, ends_at - clock.monotonic()))
                chunk = peer.recv(_MOST_BYTES)
                if not chunk:
                    break
                received += chunk
    except TimeoutError as error:
        raise Refusal(
            f"the supervisor at {address} has not answered within {_PATIENCE_S:g} s: it is stopped, or starved"
        ) from error
    except OSError as error:
        raise Refusal(f"nobody answers at {address} ({error}): does a supervisor run with this --http?") from error
    return _parsed(received, address)


def _parsed(received: bytes, address: ListenAddress) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise Refusal(f"what answers at {address} is no supervisor: {received[:40]!r}")
    return int(words[1]), body.decode(errors="replace").strip()
