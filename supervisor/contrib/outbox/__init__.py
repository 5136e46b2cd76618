"""A transactional outbox: jobs that a SQL transaction puts, or does not. Used in applications and `leasehold outbox`.

An application inserts an `entry` into the table `leasehold_outbox`, in its own transaction. A relay (relay.py) puts the
entries of committed transactions into their queues.
"""

from supervisor.contrib.outbox.entries import OutboxEntry, entry
from supervisor.contrib.outbox.schema import POSTGRESQL, SQLITE

__all__ = ["POSTGRESQL", "SQLITE", "OutboxEntry", "entry"]
