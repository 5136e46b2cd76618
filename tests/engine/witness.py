"""A client that compares leases and outcomes with the raw keys before and after (INV-3).

Reads the keys of lua/README.md by itself, and shares nothing with the scripts.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands.command import Command
from supervisor.engine.model.outcomes import ENDLESS, LATER, REFUSED, TOO_MANY_QUEUES
from tests.engine.invariants import read_record

#: The number of arguments of an outcome behind its verb, jid and token.
ARGUMENTS = {
    "complete": 1,
    "advance": 6,
    "retry": 4,
    "fail": 4,
    "release": 3,
    "suspend": 2,
    "died": 3,
    "unknown": 1,
    "misfit": 2,
    "return": 0,
}
PUT_ARGUMENTS, SHORT_PUT = 9, 3  # of a follow-up, before its options; of one in short
ENDS_A_STAGE = ("complete", "advance", "return")
REFUSALS = (ENDLESS, REFUSED, TOO_MANY_QUEUES, LATER)


class Told(NamedTuple):
    """One outcome of a settle."""

    verb: str
    jid: str
    token: int
    puts: bool  # it has follow-ups


class WitnessedClient(Client):
    """A client that raises AssertionError where a token or an answer breaks INV-3."""

    def __init__(self, server: Any, namespace: str, clock: Any) -> None:
        super().__init__(server.url, namespace, clock)
        self._redis = server.redis
        self._key_prefix = f"{{{namespace}}}:"
        self._ended_stages: set[tuple[str, str]] = set()
        self.accepted = 0
        calls = calls_of(self)
        self._run, calls.run = calls.run, self._witnessed  # type: ignore[method-assign]

    def _witnessed(self, command: Command[Any]) -> Any:
        if command.script.name == "lease":
            return self._run_lease(command)
        if command.script.name == "settle" and command.args[2] == "":  # without a number, so it is not sent again
            return self._run_settle(command)
        return self._run(command)

    def _run_lease(self, command: Command[Any]) -> Any:
        before = self._last_token()
        grant = self._run(command)
        after, tokens = self._last_token(), [lease.token for lease in grant.leases]
        assert tokens == sorted(set(tokens)), f"tokens do not grow: {tokens}"
        assert all(before < token <= after for token in tokens), f"{tokens} were not drawn from {before} to {after}"
        for lease in grant.leases:
            assert self._token_of(lease.worker, lease.jid) == lease.token, f"{lease} is not held"
        return grant

    def _run_settle(self, command: Command[Any]) -> Any:
        worker, sent = str(command.args[1]), list(_outcomes(command.args))
        order: list[int] = command.parse.args[0]  # type: ignore[attr-defined]  # a partial: of each its index
        outcomes = [one for _, one in sorted(zip(order, sent, strict=True))]
        held = {one.jid: self._token_of(worker, one.jid) for one in outcomes}
        stages = {one.jid: self._stage_of(one.jid) for one in outcomes}
        answers = self._run(command)
        was_put = False
        for one, answer in zip(outcomes, answers, strict=True):
            is_stale = answer is False or answer is None
            assert is_stale or held[one.jid] == one.token, f"{one} is answered {answer}, and {worker} did not hold it"
            assert not is_stale or held[one.jid] != one.token or was_put, f"{one} is stale, and {worker} held it"
            if is_stale or answer in REFUSALS:
                continue
            self.accepted += 1
            held[one.jid] = None
            was_put = was_put or one.puts
            if one.verb in ENDS_A_STAGE and answer is True and not self._is_persistent(one.jid):
                assert stages[one.jid] not in self._ended_stages, f"{one} ended a stage that had ended"
                self._ended_stages.add(stages[one.jid])
        for one in outcomes:
            if held[one.jid] is None:
                assert self._token_of(worker, one.jid) is None, f"{one} was accepted, and its lease is still held"
        return answers

    def _last_token(self) -> int:
        return int(self._redis.get(f"{self._key_prefix}token") or 0)

    def _token_of(self, worker: str, jid: str) -> int | None:
        token = self._redis.zscore(f"{self._key_prefix}held:{worker}", jid)
        return None if token is None else int(token)

    def _record(self, jid: str) -> dict[str, str]:
        return read_record(self._redis, f"{self._key_prefix}job:{jid}")

    def _stage_of(self, jid: str) -> tuple[str, str]:
        """Return what names a stage: each put, and each return to a queue, draws a new sequence."""
        return jid, self._record(jid).get("seq", "")

    def _is_persistent(self, jid: str) -> bool:
        return "persistent" in self._record(jid)


def _outcomes(args: Sequence[Any]) -> Iterator[Told]:
    n, at = args[3], 4
    for i in range(4, 4 + n):  # completions in short
        yield Told("complete", args[i], args[i + n], False)
    if n:
        at += 2 * n
        at += 1 + 3 * args[at]  # groups
        at += 1 + 2 * args[at]  # results
    while at < len(args):
        verb, jid, token = args[at : at + 3]
        at += 3 + ARGUMENTS[verb]
        first = at
        while at < len(args) and args[at] == "follow":
            is_short = "\n" in args[at + 1]
            at += 1 + (SHORT_PUT if is_short else PUT_ARGUMENTS + 2 * args[at + PUT_ARGUMENTS])
        yield Told(verb, jid, token, at > first)
