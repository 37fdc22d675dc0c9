from __future__ import annotations

import pathlib

import pytest

from tests.inputs.conversion import samples


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the images of the samples."""
    samples.write_images(tmp_path / "images")
    return tmp_path
