"""Says to which shards of a namespace a command goes, and makes one answer of theirs. Runs in applications.

Must not do I/O. A route is asked only in a namespace of several shards. A command without a route is refused there.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.shards import shard_of, shard_of_token

if TYPE_CHECKING:
    from supervisor.engine.commands.command import Command

T = TypeVar("T")
V = TypeVar("V")
#: Yields commands for shards, which may be carried out at the same time, receives their answers or the exception of
#: one, and returns the answer of the call.
Asking = Generator[Sequence[tuple[int, "Command[Any]"]], list[Any], T]
#: Takes the command, and the number of shards.
Route = Callable[["Command[Any]", int], Asking[Any]]

#: The shard that has what the whole namespace shares, and the guests.
FIRST: Final = 0


def home(command: "Command[T]", _shards: int) -> Asking[T]:
    """Go to the first shard, which has what the whole namespace shares."""
    [answer] = yield [(FIRST, command)]
    return answer  # type: ignore[no-any-return]


def to(name: str, is_missing: Callable[[Any], bool] | None = None) -> Route:
    """Go to the shard of a jid, a limit or a batch.

    If `is_missing` says so of the answer, go to the first shard: a guest may be there.
    """

    def ask(command: "Command[Any]", shards: int) -> Asking[Any]:
        shard = shard_of(name, shards)
        [answer] = yield [(shard, command)]
        if is_missing is not None and shard != FIRST and is_missing(answer):
            [guest] = yield [(FIRST, command)]
            return answer if is_missing(guest) else guest
        return answer

    return ask


def is_nothing(answer: object) -> bool:
    """Return whether an answer says that there is no such thing: None, False, 0 or empty."""
    return not answer


def is_none(answer: object) -> bool:
    return answer is None


def everywhere(join: Callable[[list[Any]], Any]) -> Route:
    """Go to all shards. `join` makes one answer of theirs, in the order of the shards."""

    def ask(command: "Command[Any]", shards: int) -> Asking[Any]:
        answers = yield [(shard, command) for shard in range(shards)]
        return join(answers)

    return ask


def repeated(command: "Command[T]", shards: int) -> Asking[T]:
    """Go to all shards, which then have the same: first to the first, which answers for them.

    A call that was cut off in between may be repeated.
    """
    [answer] = yield [(FIRST, command)]
    yield [(shard, command) for shard in range(1, shards)]
    return answer  # type: ignore[no-any-return]


def each(
    names: Sequence[str],
    build: Callable[[Sequence[str]], "Command[Sequence[V]]"],
    missing: Callable[[V], bool] | None = None,
) -> Route:
    """Divide names over their shards. `build` makes the command for some of them, which answers one value for each.

    A value that is `missing` is asked of the first shard: it may be of a guest. Answers a list in the order of `names`.
    """

    def ask(_command: "Command[Any]", shards: int) -> Asking[list[V]]:
        answers: dict[str, V] = {}
        parts = _parts(names, shards)
        for part, found in zip(parts.values(), (yield [(s, build(part)) for s, part in parts.items()]), strict=True):
            answers |= zip(part, found, strict=True)
        guests = [name for name in names if missing and missing(answers[name]) and shard_of(name, shards) != FIRST]
        if guests:
            [found] = yield [(FIRST, build(guests))]
            answers |= zip(guests, found, strict=True)
        return [answers[name] for name in names]

    return ask


def by_tokens(tokens: Sequence[int], build: Callable[[Sequence[int]], "Command[Sequence[V]]"]) -> Asking[list[V]]:
    """Divide leases over the shards that have granted them. `build` takes the indexes of some of them."""
    parts: dict[int, list[int]] = {}
    for index, token in enumerate(tokens):
        parts.setdefault(shard_of_token(token), []).append(index)
    answers: dict[int, V] = {}
    for part, found in zip(parts.values(), (yield [(s, build(part)) for s, part in parts.items()]), strict=True):
        answers |= zip(part, found, strict=True)
    return [answers[index] for index in range(len(tokens))]


def divided(
    names: Sequence[str], build: Callable[[Sequence[str]], "Command[T]"], join: Callable[[list[T]], T]
) -> Route:
    """Divide names over their shards, each of which answers for its part. Guests are asked for beside those of the
    first shard: it passes over what it does not have.
    """

    def ask(_command: "Command[Any]", shards: int) -> Asking[T]:
        parts = _parts(names, shards)
        guests = [name for name in names if shard_of(name, shards) != FIRST]
        answers = yield [(shard, build(part)) for shard, part in parts.items()]
        if guests:
            answers += yield [(FIRST, build(guests))]
        return join(answers)

    return ask


def _parts(names: Iterable[str], shards: int) -> dict[int, list[str]]:
    parts: dict[int, list[str]] = {}
    for name in dict.fromkeys(names):
        parts.setdefault(shard_of(name, shards), []).append(name)
    return parts


def paged(
    offset: int,
    count: int,
    build: Callable[[int, int], "Command[Sequence[V]]"],
    key: Callable[[V], Any],
    newest_first: bool = False,
) -> Route:
    """Answer a page of a list that each shard has. `key`: by which the list is sorted. The rest as `beginnings`."""
    return beginnings(offset, count, build, lambda answers: page_of(answers, offset, count, key, newest_first))


def beginnings(
    offset: int, count: int, build: Callable[[int, int], "Command[T]"], join: Callable[[list[T]], T]
) -> Route:
    """Go to all shards for the beginning of a list, up to the end of a page of it. `join` makes that page.

    `build(offset, count)` makes the command. Raises ValueError for a page that ends behind 1,000: each shard would have
    to answer as much.
    """

    def ask(_command: "Command[Any]", shards: int) -> Asking[T]:
        if offset + count > MOST:
            raise ValueError(
                f"offset and count must be at most {MOST} together in a namespace of several shards, not"
                f" {offset + count}"
            )
        command = build(0, offset + count)
        answers = yield [(shard, command) for shard in range(shards)]
        return join(answers)

    return ask


def page_of(
    lists: Iterable[Iterable[V]], offset: int, count: int, key: Callable[[V], Any], newest_first: bool = False
) -> list[V]:
    """Return a page of the lists of all shards. Each keeps its own order, and its next row goes by the key.

    So a longer beginning of each list has the same pages.
    """
    return list(islice(merge(*lists, key=key, reverse=newest_first), offset, offset + count))


def in_turn(parts: Callable[[int], Iterable[tuple[int, "Command[T]"]]], join: Callable[[list[T]], T]) -> Route:
    """Ask shards one after the other. `parts(shards)` yields each with its command."""

    def ask(_command: "Command[Any]", shards: int) -> Asking[T]:
        answers: list[T] = []
        for part in parts(shards):
            answers += yield [part]
        return join(answers)

    return ask


# joining the answers of several shards


def any_of(answers: list[Any]) -> bool:
    return any(answers)


def united(answers: list[list[V]]) -> list[V]:
    """Return what any of them names, each once, in the order of the shards."""
    return list(dict.fromkeys(value for part in answers for value in part))


def concatenated(answers: list[Any]) -> list[Any]:
    return [value for part in answers for value in part]


def summed(answers: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
    """Return the sums of numbers by their names."""
    found: dict[Hashable, int] = {}
    for part in answers:
        for name, number in part.items():
            found[name] = found.get(name, 0) + number
    return found


def joined(join: Callable[[list[V]], V]) -> Callable[[Sequence[Mapping[Any, V]]], dict[Any, V]]:
    """Return what joins values by their names, in the order of the shards."""

    def join_all(answers: Sequence[Mapping[Any, V]]) -> dict[Any, V]:
        found: dict[Any, list[V]] = {}
        for part in answers:
            for name, value in part.items():
                found.setdefault(name, []).append(value)
        return {name: join(values) for name, values in found.items()}

    return join_all
