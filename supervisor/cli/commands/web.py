"""`leasehold web`: serves a page that shows everything. Runs in the command's process. Changes nothing in Redis.

Must not import supervisor.web before its packages are known to be installed: they are an extra.
"""

import argparse
import socket

from supervisor.cli.lib.connection import add_connection, client_options, connect
from supervisor.cli.lib.options import read_options
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.terminal import note
from supervisor.config import Exit, ListenAddress, parse_address

EXAMPLES = """\
examples:
  leasehold web
  leasehold web --http 127.0.0.1:8080 --hide password,token
  ssh -L 9465:127.0.0.1:9465 jobs-1     # then open http://127.0.0.1:9465 here

The page shows data, results and outputs of jobs to every user of this machine. It changes nothing.
SIGTERM or Ctrl-C ends it."""

_DEFAULT = "127.0.0.1:9465"


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("web", description="A page that shows everything.", epilog=EXAMPLES)
    parser.add_argument(
        "--http", metavar="HOST:PORT", default=_DEFAULT, help=f"where to listen, on the loopback (default: {_DEFAULT})"
    )
    parser.add_argument("--hide", metavar="NAME,…", help="hide fields with these words in their names: password,token")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    address = read_options(args, {"http": parse_address})["http"]
    hide = [word.strip() for word in args.hide.split(",")] if args.hide is not None else []
    if not all(hide):
        raise UsageError(f"--hide {args.hide!r} must be words with commas between them, like password,token")
    try:
        from supervisor.engine.client.async_client import AsyncClient
        from supervisor.web.auth import Loopback, is_loopback
        from supervisor.web.composition import app
        from supervisor.web.server import serve
    except ImportError as error:
        raise Refusal(f"web needs the package {error.name}: pip install 'leasehold[web]'") from None
    if address is None or not is_loopback(address.host):
        raise UsageError(f"--http {args.http!r} must be an address of the loopback, like {_DEFAULT}: it has no login")
    with connect(args) as client:
        client.queues()  # an unreachable Redis is reported before anybody opens the page
    with client_options(args) as options, _listening(address) as at:
        note(f"listening at http://{ListenAddress(address.host, at.getsockname()[1])}")
        serve(lambda: AsyncClient(**options), lambda client: app(client, auth=Loopback(), hide=hide), at)
    return 0


def _listening(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise Refusal(f"cannot listen at {address}: {error.strerror}", Exit.CONFIG) from error
