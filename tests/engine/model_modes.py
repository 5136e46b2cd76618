"""Modes: later puts of a unique key change the job that holds it. Part of the model; no Redis."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.engine.model_jobs import Job

if TYPE_CHECKING:
    from tests.engine.model import Model


class Mode(NamedTuple):
    """The mode of a put. `most`: of a job that collects."""

    name: str
    span_ms: int
    most: int


def answer(model: "Model", mode: Mode, queue: str, claim: Any, put: dict[str, Any]) -> str | None:
    """Return the jid that answers a put, which is done then; None if the job is to be put."""
    holder, jid = model.claims.get((queue, claim)), put["jid"]
    job = model.jobs[holder] if holder else None
    other = holder if holder != jid else None
    if mode.name == "throttle":
        over, first = model.throttled.get((queue, claim), (0, ""))
        return other if holder else first if model.now < over else None
    if job is None or job.mode != mode.name:
        return other
    lies = model.state(job) in ("waiting", "parked", "scheduled") and job.waits_for is None
    if mode.name == "debounce":
        return _replace(model, job, lies, put)
    if job.collected and lies and not job.came_back:
        return _add(model, job, put["data"], mode.most)
    if other:
        _give_up_key(model, job)
    return None


def _replace(model: "Model", job: Job, lies: bool, put: dict[str, Any]) -> str | None:
    if job.jid == put["jid"]:
        return None
    if lies:
        return model.put(**{**put, "jid": job.jid})
    _give_up_key(model, job)
    return None


def _add(model: "Model", job: Job, data: list[Any], most: int) -> str | None:
    if job.collected < most:
        job.data = [*job.data, *data]
        job.collected += 1
        added = job.jid
    else:
        added = None
    if job.collected >= most:
        _give_up_key(model, job)
        if job.state == "scheduled":
            model.go_now(job)
    return added


def _give_up_key(model: "Model", job: Job) -> None:
    model.release_claim(job)
    job.claim = None


def begin(model: "Model", job: Job, mode: Mode | None, due_at: int) -> int:
    """Begin the mode of a job that is put. Return when it may run."""
    job.mode = mode and mode.name
    if mode and mode.name == "throttle":
        model.throttled[job.queue, job.claim] = model.now + mode.span_ms, job.jid
    if mode and mode.name == "collect":
        job.collected = 1
        if mode.most == 1:
            _give_up_key(model, job)
            return model.now
    return due_at


def cancelled(model: "Model", job: Job) -> None:
    """Let the next put of a throttled key run."""
    if job.mode == "throttle" and model.throttled.get((job.queue, job.claim), (0, ""))[1] == job.jid:
        del model.throttled[job.queue, job.claim]
