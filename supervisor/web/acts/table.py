"""Lists all acts. Runs in the web server's process."""

from typing import Final

from supervisor.web.acts import bulk, jobs, settings, supervisors, work
from supervisor.web.acts.act import WebAct

ACTS: Final[tuple[WebAct, ...]] = (*jobs.ACTS, *bulk.ACTS, *settings.ACTS, *supervisors.ACTS, *work.ACTS)
