"""What is learned here is learned from what a test wrote, unless it hands a package in itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from predictor_service.retraining import retraining_run


@pytest.fixture(scope="package", autouse=True)
def _no_package() -> Iterator[None]:
    """The program comes without models: a retraining before the first start would add those of others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retraining_run, "read_public_version", lambda: None)
        yield
