"""A worker acts upon each kind of mail. Without a server."""

import pytest

from supervisor.engine.model.queue_order import Queues
from supervisor.engine.worker.mail_reader import MailReader
from supervisor.engine.worker.served_queues import ServedQueues


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"queues", ["names"]),
        (b"serve", ["requests"]),
        (b"ask", ["requests"]),
        (b"doors", ["doors"]),
        (b"lost 7", [7, "lease"]),
        (b"lost", [None, "lease"]),
        (b"lost " + b"9" * 5000, [None, "lease"]),
        (b"klass", ["lease"]),
        (b"of a later release", []),
        (b"", []),
    ],
)
def test_mail_has_its_subject_looked_up(message, expected):
    done = []
    serving = ServedQueues(Queues(["*"]))
    assert serving.asks_for_names(leasing=False, now_at=0.0)
    MailReader(serving, lambda: done.append("lease"), done.append, lambda: done.append("doors")).read(message)
    done += ["names"] * serving.asks_for_names(leasing=False, now_at=0.0) + ["requests"] * serving.asks_for_requests()
    assert done == expected
