"""Fixtures of the programs' tests."""

from __future__ import annotations

from typing import Iterator

import pytest

from tests.programs.forking import Forker


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    """One process that has imported everything; what it forks starts at once."""
    made = Forker(str(tmp_path_factory.mktemp("logs")))
    yield made
    made.close()
