"""How long tests are, and how long they wait. TEST_FULL=1 runs the long ones at full length, without it they are what a
CI run can spare. TEST_PATIENCE=4 lets each wait last four times as long, beside other work on the machine.
"""

import os
import time

FULL = os.environ.get("TEST_FULL") == "1"
#: Also in `.ci/run --full`: what takes minutes there, not hours.
LONG = FULL or bool(os.environ.get("CI_FULL"))
#: Which cases of a test marked `sampled` run: others each day. All processes of a run have the number of the first.
SAMPLE = int(os.environ.setdefault("TEST_SAMPLE", str(int(time.time()) // 86_400)))
#: Many tests would pass without the event that they wait for, if they waited longer: so no test waits longer unasked.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
#: Seconds for an event that should come at once. Long, because a loaded machine is slow.
SOON_S = 20.0 * PATIENCE
