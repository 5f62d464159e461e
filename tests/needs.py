"""What a test needs of the machine it runs on."""

import os

import pytest


def missing(reason: str):
    """Ends a test that cannot run here. It is skipped by name; in CI, which is made for the tests, it has failed."""
    pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
