"""A session of a model's service of the real catalogue, with an origin on loopback."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.setup.catalogue import FileCatalogue
from tests.rigs import policies

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "api.anthropic.com"
MESSAGES = "/v1/messages"

POLICY = """[services.own]
use = "anthropic"
secret = "file:/nowhere"
"""


@contextlib.contextmanager
def real_catalogue() -> Iterator[None]:
    """Within, policies of tests use the real catalogue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "WORLD", replace(policies.WORLD, catalogue=FileCatalogue()))
        yield
