"""How long the long tests are: TEST_FULL=1 runs them at full length, without it they are what a CI run can spare."""

import os

FULL = os.environ.get("TEST_FULL") == "1"
#: Also in `.ci/run --full`: what takes minutes there, not hours.
LONG = FULL or bool(os.environ.get("CI_FULL"))
