"""What a test does where the host lacks something: it is skipped, but in CI it fails."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def give_up(why: object) -> NoReturn:
    """`make setup` installs everything in CI; elsewhere a test may do without."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(why))
    pytest.skip(str(why))
