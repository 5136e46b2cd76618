"""Puts jobs without end, and writes down what it was told of each. Ends when its stdin does.

`python producer.py URL NAMESPACE ACKNOWLEDGE NAME FILE`. Each line of the file is a jid and one of
acknowledged, unknown, refused.
"""

import os
import select
import sys
import time

from supervisor import Client, LeaseholdError, OutcomeUnknown

#: The producer pauses while so many jobs wait. Supervisors do fewer during an election.
_MOST_WAITING = 300
_BATCH = 20


def _put(queue, jid, number):
    """Put a job, and return in a word what is known of it."""
    try:
        queue.put(f"chaos.{'short' if number % 2 else 'nap'}", jid=jid, at_most_once=jid.startswith("once"))
    except OutcomeUnknown:
        return "unknown"
    except LeaseholdError:
        time.sleep(0.02)  # no event tells that there is a primary again
        return "refused"
    return "acknowledged"


def _is_full(queue):
    try:
        return queue.counts().waiting > _MOST_WAITING
    except LeaseholdError:
        return False


def main():
    url, namespace, acknowledge, name, path = sys.argv[1:]
    told = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    number = 0
    with Client(url, namespace, acknowledge=int(acknowledge)) as client:
        queue = client.queue("default")
        while not select.select([sys.stdin], [], [], 0)[0]:
            if number % _BATCH == 0 and _is_full(queue):
                time.sleep(0.02)  # no event tells that others have taken jobs
                continue
            jid = f"{'often' if number % 5 else 'once'}-{name}-{number}"
            os.write(told, f"{jid} {_put(queue, jid, number)}\n".encode())
            number += 1


if __name__ == "__main__":
    main()
