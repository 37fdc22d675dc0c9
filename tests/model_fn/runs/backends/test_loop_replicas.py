"""A run of the TF2 loop on two replicas whose images differ: what it saves, reports and rejects.

Two logical CPUs must be made before TensorFlow starts, so the run has a process of its own.
"""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.errors import NotFiniteLossError
from estimator_det.nets import normalization
from inputs import pipeline as input_pipeline
from inputs import schema
from inputs.records.cursor import DataCursor
from model_fn.checkpoints import positions
from model_fn.debugging.replay import BATCH_FILE
from model_fn.runs.options import MIRRORED, CheckpointOptions, LoopOptions
from tests.arrays import assert_same
from tests.checkpoints import stored
from tests.model_fn import fake

STATISTICS = "FeatureExtractor/BatchNorm/moving_"
HUGE = 1e30  # finite, and its variance is not


def _batch(number: int) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Batch of two images for one replica; replica 0 takes the even numbers, 1 the odd ones.

    The last batch of the second step is too large for the statistics of batch norm.
    """
    features, labels = fake.arrays(seed=number)
    if number == 1:  # 2 boxes for replica 0, 1 for replica 1
        labels[schema.WEIGHTS][1] = 0
    if number == 3:
        features[schema.IMAGE] = features[schema.IMAGE] * np.float32(HUGE)
    places = np.arange(2 * number, 2 * number + 2, dtype=np.int64)
    features[schema.STREAM_INDEX] = places
    features[schema.AUGMENTATION_SEED] = np.stack([np.zeros_like(places), places], 1)
    return features, labels


def _make_input_fn(
    *_: Any, cursor: Optional[DataCursor], **__: Any
) -> Callable[..., tf.data.Dataset]:
    def input_fn(params: Any = None, input_context: Any = None) -> tf.data.Dataset:
        del params, input_context
        if cursor is not None:
            cursor.begin(0, "")
        dataset = tf.data.Dataset.from_tensors(_batch(0))
        for number in range(1, 4):
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(_batch(number)))
        return dataset

    return input_fn


def train(folder: str) -> None:
    """Takes one step; the second step is rejected."""
    patch = pytest.MonkeyPatch()
    fake.install(patch)
    # tf-slim's batch norm knows no replicas.
    patch.setattr(fake.slim, "batch_norm", normalization.batch_norm)
    patch.setattr(input_pipeline, "build_train_input_fn", _make_input_fn)
    config = fake.pipeline_config("train_config { batch_size: 4 }")
    loop = LoopOptions(MIRRORED, num_replicas=2)
    with pytest.raises(NotFiniteLossError, match="step 2: not finite: moving_averages"):
        fake.train(folder, 3, config, checkpoints=CheckpointOptions(steps=1), loop=loop)


@pytest.fixture(scope="module")
def model_dir(forker: Any, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("replicas")
    run = forker.program(f"from {__name__} import train; train({str(folder)!r})")
    assert run.wait() == 0, run.output()
    return folder


def _statistics(*numbers: int) -> Dict[str, np.ndarray]:
    """Mean over batches of what batch norm with decay 0.5 makes of 0 and 1."""
    pixels = [_batch(number)[0][schema.IMAGE].mean(axis=(1, 2)) for number in numbers]
    return {
        STATISTICS + "mean": 0.5 * np.mean([each.mean(axis=0) for each in pixels], axis=0),
        STATISTICS + "variance": 0.5
        + 0.5 * np.mean([each.var(axis=0, ddof=1) for each in pixels], axis=0),
    }


def test_saved_statistics_are_means_over_replicas(model_dir):
    found = stored(str(model_dir / "model.ckpt-1"))
    for name, value in _statistics(0, 1).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
        assert np.abs(found[name] - _statistics(0)[name]).max() > 1e-4


def test_the_position_in_the_data_is_that_after_the_images_of_all_replicas(model_dir):
    position = positions.read(str(model_dir / positions.POSITION_FILE), 1)
    assert position is not None and position.count == 4


def test_reported_counts_are_means_over_replicas(model_dir):
    assert fake.figures(model_dir)["Counted/boxes"] == [(1, 1.5)]


def test_a_step_that_one_replica_rejects_changes_no_replica(model_dir):
    (folder,) = model_dir.glob("faults/bad_step-2")
    before, after = stored(str(model_dir / "model.ckpt-1")), stored(str(folder / "model.ckpt"))
    assert_same(after, before, rtol=0, atol=0)
    with np.load(folder / BATCH_FILE) as batch:
        expected = np.concatenate([_batch(2)[0][schema.IMAGE], _batch(3)[0][schema.IMAGE]])
        np.testing.assert_array_equal(batch["features/image"], expected)
