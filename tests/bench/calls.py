"""Runs the commands of a client: of this code, and of the code of before."""

from typing import Any

try:
    from supervisor.engine.client.sync_calls import calls_of as calls_of
except ModuleNotFoundError:  # the client of before has the calls itself

    def calls_of(client: Any) -> Any:
        return client
