"""Settings of all tests."""

from hypothesis import settings

# A failure must come back on the next run, and a slow machine is no failure; `make stress` draws anew each time.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fresh", deadline=None)
settings.load_profile("repeatable")
