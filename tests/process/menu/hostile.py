"""Handlers that send messages in their child's name, and write into foreign files."""

import gc
import os

import menu
from supervisor import handler, messages
from supervisor.child.child import Child

_TROUBLE = messages.pack_trouble(messages.Trouble("x", "y", "A FORGED TRACEBACK"))


def _say(job, verb, body=b""):
    """Send a message as the child would."""
    talk = next(each for each in gc.get_objects() if isinstance(each, Child))._talk
    talk.send(messages.pack_outcome(verb, job.token, 0.0, body))


@handler
def overflow_and_return(job):
    menu.enter(job)
    _say(job, messages.Verb.OVERFLOWED, _TROUBLE)


@handler
def overflow_for_ever(job):
    """Overflows again and again: each overflow might delay the end."""
    menu.enter(job)
    while True:
        _say(job, messages.Verb.OVERFLOWED, _TROUBLE)


@handler
def write_stacks_and_return(job):
    """Writes into the file from which the master takes the stack of a failure."""
    menu.enter(job)
    os.write(messages.STACKS_FD, b"STACK OF ANOTHER JOB")


@handler(on_error="fail")
def fail_of_its_own(job):
    menu.enter(job)
    raise ValueError("mine")


@handler
def exit_3(job):
    menu.enter(job)
    os._exit(3)
