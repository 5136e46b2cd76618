"""Sets how long tests are and how long they wait.

TEST_FULL=1 runs the long tests at full length. Without it they take what a CI run can spare. `.ci/run --full`
runs those at full length that take no more than a few minutes. TEST_PATIENCE=4 lets each wait last four times as long,
for a machine that does other work.
"""

import os
import time

FULL = os.environ.get("TEST_FULL") == "1"
#: True also in `.ci/run --full`, for tests that take minutes at full length, not hours.
LONG = FULL or bool(os.environ.get("CI_FULL"))
#: The day by which cases of long tests take turns; None: all of them run, as with TEST_SAMPLE=all. All processes of a
#: run have the day of the first.
_SAMPLE = os.environ.setdefault("TEST_SAMPLE", str(int(time.time()) // 86_400))
SAMPLE = None if LONG or _SAMPLE == "all" else int(_SAMPLE)
#: Many tests would pass without the event that they wait for, if they waited longer: so no test waits longer unasked.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
#: Seconds for an event that should come at once. Long, because a loaded machine is slow.
SOON_S = 20.0 * PATIENCE
