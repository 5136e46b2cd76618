"""`leasehold web`: serves a page that shows everything. Runs in the command's process.

Must not import supervisor.web before its packages are known to be installed: they are an extra.
"""

import argparse
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, client_options, connect
from supervisor.cli.lib.options import read_options
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.terminal import note
from supervisor.exit_codes import Exit
from supervisor.setting_values import ListenAddress, parse_address

if TYPE_CHECKING:
    from supervisor.web.auth import Auth

EXAMPLES = """\
examples:
  leasehold web
  leasehold web --http 127.0.0.1:8080 --hide password,token
  leasehold web --allow-actions
  ssh -L 9465:127.0.0.1:9465 jobs-1     # then open http://127.0.0.1:9465 here

  leasehold web --http 10.0.0.7:9465 --token-file tokens --http-name jobs.example.com
  leasehold web --http 10.0.0.7:9465 --auth-header X-Remote-User --auth-proxy 10.0.0.2

The page shows data, results and outputs of jobs, without a login to every user of this machine. It changes nothing,
unless --allow-actions lets operators act; without a way to log in a token is then made, and said here.
A token file has lines role:name:token. Viewers and operators may look; each token has at least 20 characters.
SIGTERM or Ctrl-C ends it."""

_DEFAULT = "127.0.0.1:9465"


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("web", description="A page that shows everything.", epilog=EXAMPLES)
    parser.add_argument("--http", metavar="HOST:PORT", default=_DEFAULT, help=f"where to listen (default: {_DEFAULT})")
    parser.add_argument("--token-file", metavar="FILE", help="lines role:name:token of those who may log in")
    parser.add_argument("--auth-header", metavar="NAME", help="the header in which a proxy names the user")
    parser.add_argument("--auth-proxy", metavar="ADDRESS", help="the address of that proxy")
    parser.add_argument(
        "--http-name",
        metavar="NAME",
        action="append",
        default=[],
        help="a name by which it may be asked; repeatable",
    )
    parser.add_argument(
        "--operators", metavar="NAME,…", help="with --auth-header: those who may act, all others only look"
    )
    parser.add_argument("--allow-actions", action="store_true", help="let operators act, always with a login")
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
        from supervisor.web.auth import Loopback, ProxyHeader, is_loopback
        from supervisor.web.composition import app
        from supervisor.web.server import serve
        from supervisor.web.tokens import Tokens
    except ImportError as error:
        raise Refusal(f"web needs the package {error.name}: pip install 'leasehold[web]'") from None
    if address is None or not (is_loopback(address.host) or args.token_file or args.auth_header):
        raise UsageError(f"--http {args.http!r} must be an address of the loopback, like {_DEFAULT}, without a login")
    if args.token_file and args.auth_header:
        raise UsageError("--token-file and --auth-header are both given; keep one of them")
    if bool(args.auth_header) != bool(args.auth_proxy):
        raise UsageError("--auth-header and --auth-proxy need each other: any program may send a header")
    operators = [name.strip() for name in (args.operators or "").split(",") if name.strip()]
    if operators and not args.auth_header:
        raise UsageError("--operators needs --auth-header; a token file has lines operator:name:token")
    if operators and not args.allow_actions:
        raise UsageError("--operators needs --allow-actions: without it nobody acts")
    if args.token_file:
        auth: Auth = _read("--token-file", args.token_file, lambda path: Tokens(Path(path).read_text().splitlines()))
    elif args.auth_header:
        auth = _read("--auth-proxy", args.auth_proxy, lambda proxy: ProxyHeader(args.auth_header, proxy, operators))
    elif args.allow_actions:
        token = token_urlsafe(24)
        auth = Tokens([f"operator:operator:{token}"])
        note(f"log in with the token {token}, which ends with this command")
    else:
        auth = Loopback()
    with connect(args) as client:
        client.queues()  # an unreachable Redis is reported before anybody opens the page
    with client_options(args) as options, listening(address) as at:
        note(f"listening at http://{ListenAddress(address.host, at.getsockname()[1])}")
        if not is_loopback(address.host):
            note("tokens and pages are readable on the way: let a proxy with TLS stand before it")
        shown = partial(app, auth=auth, hide=hide, hosts=args.http_name, allow_actions=args.allow_actions)
        serve(partial(AsyncClient, **options), shown, at)
    return 0


def _read(flag: str, text: str, reader: "Callable[[str], Auth]") -> "Auth":
    """Return a way to know visitors. Refuses what cannot be read."""
    try:
        return reader(text)
    except OSError as error:
        raise Refusal(f"{flag} {text!r} cannot be read: {error.strerror}", Exit.CONFIG) from error
    except ValueError as error:
        raise Refusal(f"{flag} {text!r}: {error}", Exit.CONFIG) from error


def listening(address: ListenAddress) -> socket.socket:
    """Return a socket that listens there. Refuses an address that cannot be had."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        at = socket.create_server((address.host, address.port), family=family)
        # Connections inherit it. Without it a body waits 40 ms for the acknowledgement of its headers.
        at.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return at
    except OSError as error:
        raise Refusal(f"cannot listen at {address}: {error.strerror}", Exit.CONFIG) from error
