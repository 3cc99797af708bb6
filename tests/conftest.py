"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the code: examples have no deadline, the suite has.
settings.register_profile("keyhole", deadline=None)
settings.load_profile("keyhole")
