"""Fixtures that all test files share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture
def seed() -> int:
    """The one seed of the statistical tests; sweep it with DPKERNEL_TEST_SEED=0 .. 99."""
    return int(os.environ.get("DPKERNEL_TEST_SEED", "0"))


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Calibrations found by tests are never kept in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp()
        folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # for all workers
        patch.setenv("DPKERNEL_CACHE", str(folder / "calibrations"))
        yield


@pytest.fixture(autouse=True, scope="session")
def clock_that_stands_still() -> Iterator[None]:
    """The time that is left is told only if a fit takes long; tests must not depend on that."""
    from dpkernel.estimators import progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_now", lambda: 0.0)
        yield


@pytest.fixture(scope="session")
def browser() -> str:
    """A Chromium that runs; a package of that name may be an empty shell."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        found = shutil.which(name)
        if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    pytest.skip("no Chromium runs on this machine: nothing is looked at in a browser")
