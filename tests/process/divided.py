"""A namespace of several shards: jobs are put by commands, each into the shard of its jid."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import redis
from supervised import Pool, Stage

from supervisor.engine.commands import dividing, job_queries, putting, settings, workers
from supervisor.engine.commands.command import Command
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.shards import shard_of


@dataclass
class Shards:
    """A namespace of `count` shards, and the stage on which supervisors serve it.

    `server(shard)` returns a connection to the server that has a shard.
    """

    stage: Stage
    server: Callable[[int], "redis.Redis"]
    count: int = 4

    # commands

    def run(self, command: Command[Any], shard: int) -> Any:
        """Run a command in a shard, as a caller that knows how many there are."""
        return self._run(command, Namespace(self.stage.namespace, shard, self.count))

    def run_undivided(self, command: Command[Any]) -> Any:
        """Run a command in the first shard, as a caller that knows of no other."""
        return self._run(command, Namespace(self.stage.namespace))

    def _run(self, command: Command[Any], place: Namespace) -> Any:
        return command.parse(self.server(place.shard).execute_command(*command.wire_with_script(*place.keys)))

    def divide(self) -> "Shards":
        self.run_undivided(dividing.divide(self.count))
        return self

    def set_mark(self, mark: str) -> None:
        """Say how many shards there are, as the move of the jobs does."""
        self.server(0).set(f"{self.stage.prefix}config", mark)

    def configure(self, option: str, value: str) -> None:
        for shard in range(self.count):
            self.run(settings.configure(option, None, value), shard)

    # jobs

    def jid_in(self, shard: int, number: int = 0) -> str:
        """Return a jid that lies in this shard."""
        key = next(key for key in map(str, range(10_000)) if shard_of(key, self.count) == shard)
        return f"{number}{{{key}}}"

    def put(self, klass: str, jid: str, data: Any = None, **options: Any) -> str:
        new = new_job("put", "default", klass, data, {"jid": jid, **options})
        assert self.run(putting.put([new]), shard_of(jid, self.count)) == [True]
        return jid

    def put_in_all(self, klass: str, data: Any = None, times: int = 1) -> list[str]:
        """Put so many jobs into each shard. Return their jids."""
        jids = [self.jid_in(shard, number) for number in range(times) for shard in range(self.count)]
        return [self.put(klass, jid, data) for jid in jids]

    def job(self, jid: str) -> Any:
        [job] = self.run(job_queries.jobs([jid]), shard_of(jid, self.count))
        return job

    def states(self, jids: Iterable[str]) -> set[str]:
        return {self.job(jid).state for jid in jids}

    # workers

    def workers(self) -> list[set[str]]:
        """Return by shard the names of the workers that it knows."""
        return [{worker.name for worker in self.run(workers.read(), shard)} for shard in range(self.count)]

    def deregister(self, worker: str, *shards: int) -> None:
        for shard in shards:
            self.run(workers.deregister(worker), shard)

    def drain(self, pool: Pool) -> None:
        """Drain the pool. Check that no shard knows it any more."""
        assert pool.drain() == 0
        assert self.workers() == [set()] * self.count
