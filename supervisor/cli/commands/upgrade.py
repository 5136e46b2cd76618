"""`leasehold upgrade`: converts the keys of a namespace to another layout. Runs in the command's process.

Must not convert anything while workers live. It may be killed at any point, and goes on when it is run again.
"""

import argparse
from typing import TYPE_CHECKING

from supervisor.cli.lib.connection import add_connection, connect
from supervisor.cli.lib.consent import confirm
from supervisor.cli.lib.parser import Refusal, Subparsers
from supervisor.cli.lib.progress import ProgressLine
from supervisor.cli.lib.terminal import counted, say
from supervisor.engine.client.sync_calls import calls_of

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.upgrade import NamespaceLayout

EXAMPLES = """\
examples:
  leasehold upgrade --dry-run
  leasehold upgrade
  leasehold upgrade --back --yes

Stop all supervisors and clients of the old version first: `leasehold drain --all`. A worker that was lost counts as
alive for a minute, and as long as a lease of it runs. --back makes the namespace one of Leasehold 0.1 again. Killed or
cut off in between, it is to be run again and goes on. Exit code 1: workers live, or the layout is a newer one."""

_NOW = "Clients of the other version can no longer use it."
_CURE = (
    "A key has a foreign type: `leasehold check --repair` moves it aside, that of 0.1 while the namespace is of 0.1."
    " If the way back has begun, `leasehold upgrade` must undo it before that."
)


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser(
        "upgrade", description="Convert the keys of a namespace to the layout of this version.", epilog=EXAMPLES
    )
    parser.add_argument("--back", action="store_true", help="convert them back to the layout of Leasehold 0.1")
    parser.add_argument("--dry-run", action="store_true", help="only say what would change, and who is in the way")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Say what is to change, ask, and convert."""
    from supervisor.engine.model.errors import LeaseholdError

    with connect(args) as client:
        try:
            _convert(args, client)
        except LeaseholdError as error:
            if "WRONGTYPE" in str(error):
                raise Refusal(f"{error} {_CURE}") from error
            raise
    return 0


def _convert(args: argparse.Namespace, client: "Client") -> None:
    from supervisor.engine.commands import upgrade

    found = calls_of(client).follow(upgrade.look_at_all(calls_of(client).clock))
    wanted = upgrade.FIRST if args.back else upgrade.THIS
    if found.layout in (wanted, "new"):
        say(_nothing_to_do(found))
        return
    if found.layout in ("sharded", "moving"):
        raise Refusal(
            f"the namespace has several shards (its mark is {found.mark}), so it has this version's layout, from which"
            " no way leads back to layout 1"
        )
    if found.layout in ("newer", "lost"):
        client.queues()  # raises LayoutError with what is to be done
    words = _words(args, client, found)
    if args.dry_run:
        say(words)
    upgrade.refuse_while_alive(found.living, found.now_unix)
    if args.back:
        upgrade.refuse_unknown_to_first(found)
    if args.dry_run:
        return
    confirm(args, f"{words} {_NOW} Go on?", "nothing was converted")
    if args.back:
        _back(client)
    else:
        calls_of(client).follow(upgrade.to_this(calls_of(client).clock))
        say("done: the namespace has the layout of this version")


def _nothing_to_do(found: "NamespaceLayout") -> str:
    if found.layout == "new":
        return "nothing to do: there are no keys yet, and the first put makes them as this version wants them"
    return f"nothing to do: the namespace has layout {found.layout}"


def _words(args: argparse.Namespace, client: "Client", found: "NamespaceLayout") -> str:
    """Say what the conversion changes."""
    from supervisor.engine.commands import upgrade

    if found.layout == "back" and not args.back:
        return "This ends the way back to layout 1, on which the namespace is. Its jobs stay as they are."
    renamed = ", ".join(
        counted(number, noun)
        for number, noun in (
            (found.options, "option"), (found.tracked, "tracked job"), (found.tags, "tag"), (found.workers, "worker"),
        )
    )  # fmt: skip
    if not args.back:
        return f"From layout 1 to 2: the keys of {renamed} get other names. Jobs stay as they are."
    dense = calls_of(client).follow(upgrade.count_dense())
    return f"From layout 2 to 1: {counted(dense, 'job')} stored another way, and the keys of {renamed} renamed."


def _back(client: "Client") -> None:
    from supervisor.engine.commands import upgrade
    from supervisor.engine.model.errors import LeaseholdError

    done = 0

    def show(expanded: int) -> None:
        nonlocal done
        done = expanded
        line.show(expanded, f"{expanded:,} jobs")

    try:
        with ProgressLine(None) as line:
            jobs = calls_of(client).follow(upgrade.to_first(calls_of(client).clock, show))
    except (LeaseholdError, KeyboardInterrupt) as error:
        if not done or "WRONGTYPE" in str(error):
            raise
        why = "Interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        raise Refusal(f"{why} after {counted(done, 'job')}; `leasehold upgrade --back` goes on") from error
    say(f"done: the namespace has layout 1, with {counted(jobs, 'job')}; Leasehold 0.1 can use it")
