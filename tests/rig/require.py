"""What a test says when its rig is missing: a visible skip on a user's machine, a failure in CI."""

import os
from typing import NoReturn

import pytest


def require_rig(reason: str) -> NoReturn:
    """Skip the test with `reason`; with REQUIRE_RIGS=1 fail it, because CI that skips in silence proves nothing."""
    if os.environ.get("REQUIRE_RIGS") == "1":
        pytest.fail(f"REQUIRE_RIGS=1 and a rig is missing: {reason}", pytrace=False)
    pytest.skip(reason)
