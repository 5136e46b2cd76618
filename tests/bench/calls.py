"""Runs the commands of a client, and names the modules that build them: of this code, and of the code of before."""

from typing import Any

try:
    from supervisor.engine.client.sync_calls import calls_of as calls_of
except ModuleNotFoundError:  # the client of before has the calls itself

    def calls_of(client: Any) -> Any:
        return client


try:
    from supervisor.engine.commands import job_changes as job_changes
    from supervisor.engine.commands import leasing as leasing
    from supervisor.engine.commands import putting as putting
    from supervisor.engine.commands import settling as settling
    from supervisor.engine.model.new_jobs import new_job as new_job
except ImportError:  # before, one module had all calls that change something
    from supervisor.engine.commands import writes
    from supervisor.engine.model.jobs import new_job as new_job

    job_changes = leasing = putting = settling = writes
