"""Limits and label maps of SavedModels."""

import pathlib

import pytest

from estimator_det.compat import tf, tf1
from model_fn.serving import saved_model
from tests.model_fn import fake


@pytest.mark.parametrize(
    ("dtype", "size", "fits"),
    [
        (tf.float32, 2**29 - 2**24 - 1, True),
        (tf.float32, 2**29 - 2**24, False),  # 2**31 bytes with the graph
        (tf.bfloat16, 2**29, True),
    ],
)
def test_a_file_has_less_than_two_gigabytes(dtype, size, fits):
    with tf.Graph().as_default():
        weights = tf1.get_variable("weights", [size], dtype)
        assert saved_model.fits_in_constants([weights]) == fits


def test_label_map_of_an_export(tmp_path, caplog):
    one, other, missing = (str(tmp_path / name) for name in ("one", "other", "missing"))
    for path in (one, other):
        pathlib.Path(path).write_text("item { id: 1 name: 'cat' }")
    config = fake.pipeline_config()
    for find in (saved_model.find_label_map, saved_model.find_readable_label_map):
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


def test_a_label_map_that_cannot_be_read_is_left_out_of_an_export(tmp_path, caplog):
    (tmp_path / "folder").mkdir()
    (tmp_path / "no_text").write_bytes(b"\xff\xff")
    (tmp_path / "no_label_map").write_text("item {")
    config = fake.pipeline_config()
    for name in ("folder", "no_text", "no_label_map"):
        caplog.clear()
        config.eval_input_reader[0].label_map_path = str(tmp_path / name)
        assert saved_model.find_readable_label_map(config) is None
        (warning,) = caplog.records
        assert f"without the label map {tmp_path / name}: " in warning.getMessage()
