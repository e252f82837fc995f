"""Settings of all tests."""

import os
import signal

from hypothesis import settings

from tests import real_data

assert real_data.FOLDER  # it has read POWERPOOL_DATA; without that variable, data sets are those of a fresh clone
os.environ.pop("POWERPOOL_DATA", None)

# A shell starts jobs in the background with interrupts ignored, and all that they start inherits that: tests that send
# one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-xdist tells its workers to be 80 wide: tables would be broken otherwise than without it.
os.environ.pop("COLUMNS", None)

# A failure must come back on the next run, and a slow machine is no failure; `make stress` draws anew each time.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fresh", deadline=None)
settings.load_profile("repeatable")
