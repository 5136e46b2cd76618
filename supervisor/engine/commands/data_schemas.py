"""Builds the commands about the JSON schemas of data that workers take. Runs in workers and at the page. No I/O."""

from collections.abc import Iterable, Mapping
from itertools import islice

from supervisor.engine.commands.command import Command, now_ms, parse_names
from supervisor.engine.commands.routes import home
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import checked_name


def describe(shapes: Iterable[str], schemas: Mapping[str, str] | None = None) -> Command[list[str]]:
    """Store JSON schemas of data by their shapes, and keep those of `shapes` on; at most 1,000 of each.

    Answers those of `shapes` whose schemas Redis does not have. A schema expires max-worker-age after the last worker
    with its shape was seen.
    """
    kept = "\n".join(checked_name("shapes", shape) for shape in islice(shapes, MOST))
    pairs = islice((schemas or {}).items(), MOST)
    stored = [text for shape, schema in pairs for text in (checked_name("schemas", shape), schema)]
    return Command(scripts.DESCRIBE, (kept, *stored), parse_names)


def read(queue: str, klass: str, *, now: float | None = None) -> Command[list[bytes]]:
    """Read the JSON schemas of the data that the live workers take which have the klass and serve the queue.

    There are none if one of them takes data whose schema is unknown, or if they have more than 20.
    """
    args = now_ms(now), checked_name("queue", queue), checked_name("klass", klass)
    return Command(scripts.SCHEMAS, args, list, route=home)
