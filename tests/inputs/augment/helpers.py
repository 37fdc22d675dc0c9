from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs.augment import make_steps
from inputs.augment.base import apply_steps, split_seed
from inputs.sample import Sample

# Pixel rectangles (ymin, xmin, ymax, xmax) on an image of 24 x 32.
RECTANGLES = [(3, 4, 15, 20), (12, 16, 24, 32), (0, 24, 6, 32)]


def step(text: str) -> Any:
    return text_format.Parse(text, preprocessor_pb2.PreprocessingStep())


def make_augmentation(steps: Sequence[Any]) -> Callable[[Sample, tf.Tensor], Sample]:
    """A function that applies steps in order, as the input pipeline does."""
    chain = make_steps(steps)

    @tf.autograph.experimental.do_not_convert
    def augment(sample: Sample, seed: tf.Tensor) -> Sample:
        return apply_steps(chain, sample, split_seed(seed, len(chain)) if chain else [])

    return augment


def config_of(text: str) -> Any:
    message = step(text)
    return getattr(message, message.WhichOneof("preprocessing_step"))


def sample_of(kind: str = "full", dtype: Any = np.uint8) -> Sample:
    """A sample with all fields ("full"), all of them but no boxes ("empty") or few ("bare")."""
    random = np.random.default_rng(3)
    image = random.integers(0, 256, (24, 32, 3)).astype(dtype)
    boxes = (np.array(RECTANGLES) / [24, 32, 24, 32]).astype(np.float32)
    sample = Sample(
        image=tf.constant(image),
        boxes=tf.constant(boxes),
        classes=tf.constant([1, 2, 3], tf.int64),
        weights=tf.constant([1.0, 0.5, 0.25]),
    )
    if kind == "bare":
        return sample
    masks = np.zeros((len(RECTANGLES), 24, 32), np.float32)
    for mask, (ymin, xmin, ymax, xmax) in zip(masks, RECTANGLES):
        mask[ymin:ymax, xmin:xmax] = 1
    keypoints = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2 + [[0, 0], [0.01, 0], [0, 0.02]]
    keypoints[0, 2] = np.nan
    sample = sample._replace(
        confidences=tf.constant([0.9, 0.8, 0.7]),
        multiclass_scores=tf.constant(random.random((3, 4)), tf.float32),
        masks=tf.constant(masks),
        keypoints=tf.constant(keypoints, tf.float32),
        keypoint_visibilities=tf.constant(~np.isnan(keypoints[..., 0])),
        area=tf.constant([192.0, 192.0, 48.0]),
        is_crowd=tf.constant([False, True, False]),
        difficult=tf.constant([True, False, False]),
        group_of=tf.constant([False, False, True]),
        image_level={"groundtruth_image_classes": tf.constant([7], tf.int64)},
    )
    if kind == "full":
        return sample
    assert kind == "empty"
    return Sample(
        *(
            value if name in ("image", "image_level") else value[:0]
            for name, value in zip(Sample._fields, sample)
        )
    )


def arrays(sample: Sample) -> Dict[str, Optional[np.ndarray]]:
    """Fields that are tensors, as arrays; None stays None."""
    return {
        name: None if value is None else np.array(value)
        for name, value in sample._asdict().items()
        if name != "image_level"
    }


def small_sample(dtype: Any = np.uint8) -> Sample:
    """An image of 2 x 4 with one box and one keypoint."""
    return Sample(
        image=tf.constant(np.arange(24).reshape(2, 4, 3).astype(dtype)),
        boxes=tf.constant([[0.1, 0.2, 0.5, 0.6]]),
        classes=tf.constant([1], tf.int64),
        weights=tf.constant([1.0]),
        masks=tf.constant(np.arange(8).reshape(1, 2, 4), tf.float32),
        keypoints=tf.constant([[[0.1, 0.2], [0.5, 0.6]]]),
        keypoint_visibilities=tf.constant([[True, False]]),
        area=tf.constant([8.0]),
    )


def run_step(text: str, sample: Sample) -> Sample:
    """The sample after one step, always with the same seed."""
    return make_augmentation([step(text)])(sample, tf.constant([3, 4]))


def in_graph(
    change: Callable[[Sample, tf.Tensor], Sample], like: Sample
) -> Callable[[Sample, List[int]], Dict[str, Optional[np.ndarray]]]:
    """A function (sample, seed) that runs `change` in one graph, for samples with the same fields.

    The graph knows the numbers of channels and keypoints, but no other sizes.
    """
    fields = [name for name, value in arrays(like).items() if value is not None]

    def spec(name: str) -> tf.TensorSpec:
        value = getattr(like, name)
        open_axes = {"image": 2, "masks": 3}.get(name, 1)
        return tf.TensorSpec([None] * open_axes + list(value.shape[open_axes:]), value.dtype)

    def run(seed: tf.Tensor, *values: tf.Tensor) -> List[tf.Tensor]:
        result = change(like._replace(**dict(zip(fields, values))), seed)
        return [getattr(result, name) for name in fields]

    signature = [tf.TensorSpec([2], tf.int64), *(spec(name) for name in fields)]
    graph = tf.function(run, autograph=False).get_concrete_function(*signature)

    def call(sample: Sample, seed: List[int]) -> Dict[str, Optional[np.ndarray]]:
        values = [getattr(sample, name) for name in fields]
        found = dict(zip(fields, graph(tf.constant(seed, tf.int64), *values)))
        return {
            name: np.array(found[name]) if name in found else None
            for name in Sample._fields
            if name != "image_level"
        }

    return call
