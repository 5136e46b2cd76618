"""Words for operations on many jobs, before and after. Runs in the processes of commands and of the web server."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.cli.lib.terminal import counted, local_time

if TYPE_CHECKING:
    from supervisor.engine.commands.choices import Choice


@dataclass(frozen=True, slots=True)
class Operation:
    """The words for an operation. `how` ends a sentence, for example with the target queue."""

    verb: str
    past: str
    how: str = ""


def chosen_words(jobs: Mapping[str, str], chosen: "Choice") -> str:
    """Return, for example, `1,234 jobs of queue emails (1,200 waiting, 34 running)`. `jobs`: the states by jid."""
    states = Counter(jobs.values())
    listed = ", ".join(f"{states[state]:,} {state}" for state in chosen.states if states[state])
    return f"{counted(len(jobs), 'job')}{choice_words(chosen)}" + (f" ({listed})" if listed else "")


def choice_words(chosen: "Choice") -> str:
    """Return, for example, ` of queue emails with tag red`."""
    parts = (
        ("of queue", chosen.queue), ("in lane", chosen.lane), ("with tag", chosen.tag), ("of group", chosen.group),
        ("of klass", chosen.klass), ("of batch", chosen.batch), ("put since", _moment(chosen.first_put_unix)),
        ("put until", _moment(chosen.last_put_unix)), ("with a jid like", chosen.part),
    )  # fmt: skip
    return "".join(f" {words} {name}" for words, name in parts if name is not None)


def _moment(unix: float | None) -> str | None:
    return None if unix is None else local_time(unix)


def past_words(done: int, total: int, operation: Operation) -> str:
    """Return, for example, `cancelled 3 of 4 jobs`."""
    of_all = f"{done:,} of {counted(total, 'job')}" if done < total else counted(done, "job")
    return f"{operation.past} {of_all}{operation.how}"


def perhaps_words(error: BaseException, under_way: int) -> str:
    """Say what is known about the step that was under way when an error ended it: nothing, or `, perhaps 250 more`."""
    from supervisor.engine.model.errors import StoreUnavailable

    is_unknown = under_way and not isinstance(error, StoreUnavailable)  # which means that nothing was sent
    return f", perhaps {under_way:,} more" if is_unknown else ""


def changed_words(count: int, operation: Operation) -> str:
    """Say why jobs that matched once were not changed."""
    if operation.verb == "retry":
        return f"{counted(count, 'job')} cannot be put back as it is, or had been put back meanwhile"
    return f"{counted(count, 'job')} had become something else meanwhile, and {'is' if count == 1 else 'are'} left"


def needed_words(jids: Sequence[str], operation: Operation) -> str:
    """Name the jobs that were left because others wait for them."""
    some = " ".join(jids[:10]) + (f" and {len(jids) - 10:,} more" if len(jids) > 10 else "")
    return f"not {operation.past}, for other jobs wait for {'it' if len(jids) == 1 else 'them'}: {some}"
