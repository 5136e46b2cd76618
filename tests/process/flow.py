"""Handlers with types, whose results flow to dependents, or that collect.

In the menu, types would load pydantic for all tests, and a release before this one does not know each option.
"""

from menu import enter, wait_at

from supervisor import JobContext, JobFailed, handler


def shown(result):
    return [result.group, result.message] if isinstance(result, JobFailed) else result


@handler
def give(job: JobContext, result: object = None, gate: str | None = None) -> object:
    if gate:
        wait_at(gate)
    return result


@handler
def fail(job: JobContext) -> None:
    raise LookupError("there is no such thing")


@handler
def collect(job: JobContext, gate: str | None = None) -> list[object]:
    if gate:
        enter(job)
        wait_at(gate)
    return [[jid, shown(result)] for jid, result in job.results.items()]


@handler
def stopped(job: JobContext, gate: str) -> int:
    """Say what ends it while it waits for results."""
    enter(job)
    wait_at(gate)
    print("asking")
    try:
        return len(job.results)
    except BaseException as end:
        print(type(end).__name__)
        raise


@handler
def hand_on(job: JobContext) -> None:
    """Put the results into a queue that no supervisor serves."""
    job.put("elsewhere", "give", list(job.results.values()))


@handler
def digest(job: JobContext) -> list[object]:
    """Large results take many packets."""
    return [len(job.results), sum(len(result) for result in job.results.values()), *list(job.results)[:3]]


@handler
def add(job: JobContext, left: int, right: int) -> tuple[int, int]:
    return left, right


@handler
def typed(job: JobContext) -> list[object]:
    pair = add.result_of(job)
    assert isinstance(pair, tuple), pair
    return list(pair)


@handler(unique="numbers", collect="1h", most=10)
def numbers(job, numbers: list[int]):
    enter(job)
    return sum(numbers)
