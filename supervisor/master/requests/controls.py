"""Does what operators ask of a running supervisor, by a signal or by a command. Runs in the master.

Owns the effect of each request in each state, and the sentence that tells it, whose subject is the supervisor. `Drain`
decides how a drain goes on, and `Scaling` how many processes there may be. A request that is impossible now raises
ValueError, with a sentence.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from supervisor import clock
from supervisor.master.drain import Drain
from supervisor.master.jobs.placing import Placing
from supervisor.master.model.reload_log import Reloaded
from supervisor.master.model.signals import By
from supervisor.master.model.slots import Slots
from supervisor.master.processes.process_manager import ProcessManager
from supervisor.master.processes.scaling import Scaling
from supervisor.master.redis.own_acts import OwnActs
from supervisor.ops.events import Events

#: A second TERM or INT within this time is part of the first request, because inits and shells send it twice.
_SAME_REQUEST_S: Final = 1.0

Answer = Mapping[str, Any]


class Controls:
    def __init__(
        self,
        drain: Drain,
        processes: ProcessManager,
        scaling: Scaling,
        placing: Placing,
        lease_soon: Callable[[], None],
        slots: Slots,
        own_acts: OwnActs,
        events: Events,
    ) -> None:
        """`lease_soon()` has the supervisor lease as soon as a child can take a job."""
        self._drain = drain
        self._processes = processes
        self._scaling = scaling
        self._placing = placing
        self._lease_soon = lease_soon
        self._slots = slots
        self._own_acts = own_acts
        self._events = events

    def _check_serving(self) -> None:
        if self._drain.has_begun:
            raise ValueError("it drains")

    # drain

    def drain(self, by: By) -> str:
        """Idempotent."""
        if self._drain.has_begun:
            return "nothing: it drains already"
        left_s = self._drain.begin(by).left_s(clock.monotonic())
        return f"drains: {_jobs(self._slots.busy)} running, it ends within {left_s:g} s"

    def drain_or_hurry(self, by: By, asked_at: float) -> str:
        """Begin to drain; if the supervisor drains already, hurry. `asked_at`: when it was asked (monotonic s)."""
        schedule = self._drain.schedule
        if schedule is None:
            return self.drain(by)
        if asked_at <= schedule.began_at + _SAME_REQUEST_S:
            return "nothing: within a second it is the same request"
        return self.hurry(by)

    def hurry(self, by: By) -> str:
        """Kill what runs, and hand everything back."""
        left_s = self._drain.hurry(by).left_s(clock.monotonic())
        return f"hurries: what runs is killed, it ends within {left_s:g} s"

    # pause

    def pause(self, by: By) -> str:
        """Start no job until `resume`, and hand back what has not started. Idempotent."""
        self._check_serving()
        if not self._placing.pause():
            return "nothing: it is paused already"
        self._own_acts.note("pause", by)
        self._events.emit("master.paused", **by.fields, running=self._slots.busy)
        return f"is paused: it starts no job; running, and going on: {self._slots.busy}"

    def resume(self, by: By) -> str:
        """Idempotent."""
        self._check_serving()
        if not self._placing.resume():
            return "nothing: it is not paused"
        self._lease_soon()
        self._own_acts.note("resume", by)
        self._events.emit("master.resumed", **by.fields)
        return "starts jobs again"

    # reload

    def reload(self, by: By, on_done: Callable[[Answer], None] | None = None) -> str:
        """`on_done` is called once, with the result."""
        self._check_serving()
        self._scaling.refresh(by)
        self._own_acts.note("reload", by)
        self._processes.reload(str(by), None if on_done is None else lambda done: on_done(self._result(done)))
        return "loads the handlers anew; until the new ones have proved themselves nothing changes"

    def _result(self, done: Reloaded) -> Answer:
        """A traceback, even an empty one, tells that the new code is at fault. It is not if a drain came between."""
        if not done.message:
            return {"did": f"runs the new code, in zygote {done.zygote}", "zygote": done.zygote}
        if self._drain.has_begun:
            return {"error": done.message}
        return {"error": done.message, "traceback": done.traceback}

    # scale

    def more(self, by: By) -> str:
        self._check_serving()
        return self._scaled(self._scaling.more(by), by)

    def fewer(self, by: By) -> str:
        self._check_serving()
        return self._scaled(self._scaling.fewer(by), by)

    def _scaled(self, scaled: Answer, by: By) -> str:
        now, before = scaled["now"], scaled["before"]
        if now == before:
            return f"nothing: it stays at {now}"
        self._own_acts.note("scale", by, {name: scaled[name] for name in ("fewest", "most")})
        return f"goes from {before} to {now} processes"

    def scale(self, fewest: int | None, most: int, by: By) -> Answer:
        """`fewest` None: as many as the machine has room for."""
        self._check_serving()
        return self._scaling.automatic(by) if fewest is None else self._scaling.set(fewest, most, by)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
