"""Handlers that speak in their child's name, and into what is not theirs."""

import gc
import os

import menu
from supervisor import handler, messages
from supervisor.child.child import Child

_TROUBLE = messages.pack_trouble(messages.Trouble("x", "y", "A FORGED TRACEBACK"))


def _say(job, verb, body=b""):
    """As the child would."""
    talk = next(each for each in gc.get_objects() if isinstance(each, Child))._talk
    talk.send(messages.pack_outcome(verb, job.token, 0.0, body))


@handler
def overflow_and_return(job):
    menu.enter(job)
    _say(job, messages.Verb.OVERFLOWED, _TROUBLE)


@handler
def overflow_for_ever(job):
    """Each one might put off what ends it."""
    menu.enter(job)
    while True:
        _say(job, messages.Verb.OVERFLOWED, _TROUBLE)


@handler
def write_stacks_and_return(job):
    """Into the file from which its master takes what stands with a failure."""
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
