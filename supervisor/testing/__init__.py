"""A test kit for applications: handlers run in the process of their tests. A plugin of pytest; runs in its process."""

from supervisor.testing.crash_points import every_crash_point
from supervisor.testing.leasehold import Leasehold
from supervisor.testing.pool import RunningPool
from supervisor.testing.recording import RecordingContext
from supervisor.testing.run import Run

__all__ = ["Leasehold", "RecordingContext", "Run", "RunningPool", "every_crash_point"]
