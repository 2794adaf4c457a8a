"""How property tests draw their cases: CI the same ones each time, a developer new ones."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline per case: the machine may be busy, and nothing here is a timed test.
settings.register_profile("local", deadline=None)
settings.register_profile(
    "continuous-integration",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    max_examples=200,
)
REPEATABLE = os.environ.get("CI") or os.environ.get("TESTS_REPEATABLE")
settings.load_profile("continuous-integration" if REPEATABLE else "local")
