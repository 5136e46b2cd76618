"""`leasehold config`: the options in Redis. Runs in the command's process.

Must not interpret them: the engine's table of options does.
"""

import argparse

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Subparsers, UsageError
from supervisor.cli.lib.shown import option_words
from supervisor.cli.lib.terminal import say, say_json, table

EXAMPLES = """\
examples:
  leasehold config                             # everything
  leasehold config heartbeat                   # one option
  leasehold config heartbeat 60
  leasehold config heartbeat-emails 5m         # of queue emails alone
  leasehold config heartbeat-emails --unset    # back to the default

They hold for all supervisors of the namespace, from the next lease on. Times are seconds, or like 30s, 5m, 2h, 7d."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("config", description="The options in Redis: look, set, unset.", epilog=EXAMPLES)
    parser.add_argument("option", metavar="OPTION", nargs="?", help="its name, or <name>-<queue>")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="set it to this")
    parser.add_argument("--unset", action="store_true", help="back to the default")
    add_json(parser, "values by option")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Show or change options. An unknown option or a bad value is refused before anything is sent."""
    if args.unset and (args.option is None or args.value is not None):
        raise UsageError("--unset needs OPTION, and no VALUE")
    if args.json and (args.unset or args.value is not None):
        raise UsageError("--json is for looking")
    if args.option is None:
        return _all(args)
    return _change(args) if args.unset or args.value is not None else _one(args)


def _all(args: argparse.Namespace) -> int:
    from supervisor.engine.model.options import checked_option

    with connect(args) as client:
        values = client.config.all()
    if args.json:
        say_json(values)
    else:
        rows = [(name, option_words(value), checked_option(name)[0].meaning) for name, value in values.items()]
        table(("option", "value", "meaning"), rows)
    return 0


def _one(args: argparse.Namespace) -> int:
    from supervisor.engine.model.options import checked_option

    with arguments():
        checked_option(args.option)
    with connect(args) as client:
        value = client.config.get(args.option)
    if args.json:
        say_json({args.option: value})
    else:
        say(option_words(value))
    return 0


def _change(args: argparse.Namespace) -> int:
    from supervisor.engine.model.options import checked_option, value_of_text

    with arguments():
        option, _ = checked_option(args.option)
        value = None if args.unset else value_of_text(option, args.value)
    with connect(args) as client:
        if args.unset:
            client.config.unset(args.option)
        else:
            client.config.set(args.option, value)
        now = client.config.get(args.option)
    say(f"{args.option} is {option_words(now)}{' again' if args.unset else ''}")
    return 0
