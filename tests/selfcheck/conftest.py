"""One battery for all tests: its right answers in 50 digits take seconds."""

import pytest

from powerpool.selfcheck.battery import Battery


@pytest.fixture(scope="session")
def battery() -> Battery:
    return Battery(seed=0)
