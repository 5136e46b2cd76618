"""Lists all acts. Runs in the web server's process."""

from typing import Final

from supervisor.web.acts import bulk, config, doors, jobs, recurrences, settings, supervisors, work
from supervisor.web.acts.act import WebAct

ACTS: Final[tuple[WebAct, ...]] = (
    *jobs.ACTS, *bulk.ACTS, *settings.ACTS, *recurrences.ACTS, *config.ACTS, *doors.ACTS, *supervisors.ACTS,
    *work.ACTS,
)  # fmt: skip
