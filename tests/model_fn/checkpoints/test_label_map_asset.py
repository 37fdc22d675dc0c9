"""Which label map goes along with an export."""

from __future__ import annotations

import pathlib

import pytest

from model_fn.checkpoints import label_map_asset
from tests.model_fn import fake


def test_the_first_that_is_there(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other, missing = (str(tmp_path / name) for name in ("one", "other", "missing"))
    for path in (one, other):
        pathlib.Path(path).write_text("item { id: 1 name: 'cat' }")
    config = fake.pipeline_config()
    for find in (label_map_asset.find_label_map, label_map_asset.find_readable_label_map):
        for evaluation, training, found in (
            (one, other, one),
            (missing, other, other),
            ("", other, other),
            ("", "", None),
            (missing, missing, None),
        ):
            config.eval_input_reader[0].label_map_path = evaluation
            config.train_input_reader.label_map_path = training
            assert find(config) == found
    # Looking for one is silent; a training's export tells that the one it should carry is missing.
    (warning,) = caplog.records
    assert f"without the label map {missing}: " in warning.getMessage()
