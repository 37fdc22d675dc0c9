"""Measures one step: in an input pipeline, and the kernels that it runs.

Both measurements apply the step to the same image with the same seeds, on one thread.

* The step: processor time of a `Dataset.map` for each image, less that of a map that does nothing.
* Its kernels: the sum over all nodes of the step's graph of the time that TensorFlow records
  between the start and the end of a kernel. The difference is what starting kernels costs.

Of repeated measurements the smallest counts: whatever else the machine does only adds time.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, NamedTuple, Tuple

import numpy as np
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.protos import preprocessor_pb2
from inputs.augment import AUGMENTATIONS, make_links
from inputs.augment.base import Link, records_of
from inputs.schema import PER_BOX_FIELDS, Sample

# Steps that need more than an empty message.
SETTINGS = {
    "drop_label_probabilistically": "label: 2 drop_probability: 0.5",
    "normalize_image": "original_maxval: 255",
    "random_absolute_pad_image": "max_height_padding: 100 max_width_padding: 100",
    "random_patch_gaussian": "max_patch_size: 100",
    "random_resize_method": "target_height: 300 target_width: 300",
    "remap_labels": "original_labels: [1, 3] new_label: 2",
    "resize_image": "new_height: 300 new_width: 300",
    "subtract_channel_mean": "means: [123, 117, 104]",
}
NEEDS_MASKS = ("copy_paste",)
NEEDS_SCORES = ("convert_class_logits_to_softmax",)


class Figures(NamedTuple):
    """What a step costs."""

    name: str
    step_us: float  # processor time of an image
    kernels_us: float  # of which in kernels
    num_kernels: float  # that run for an image

    @property
    def ratio(self) -> float:
        """How many times the processor time of its kernels a step takes."""
        return self.step_us / max(self.kernels_us, 1e-9)


def make_sample(height: int, width: int, num_boxes: int, *, masks: bool, scores: bool) -> Sample:
    """An image of smooth colours with random boxes of a fifth to half of its sides."""
    random = np.random.default_rng(4)
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows + columns, 2 * rows, 3 * columns], axis=2) % 256
    near = random.uniform(0, 0.5, (num_boxes, 2))
    boxes = np.concatenate([near, near + random.uniform(0.2, 0.5, (num_boxes, 2))], axis=1)
    inside = np.zeros([num_boxes, height, width], np.float32)
    for mask, (ymin, xmin, ymax, xmax) in zip(inside, boxes * ([height, width] * 2)):
        mask[int(ymin) : int(ymax), int(xmin) : int(xmax)] = 1
    return Sample(
        image=tf.constant(image, tf.uint8),
        boxes=tf.constant(boxes, tf.float32),
        classes=tf.constant(1 + np.arange(num_boxes) % 3, tf.int64),
        weights=tf.ones([num_boxes]),
        area=tf.constant(inside.sum((1, 2))),
        is_crowd=tf.fill([num_boxes], False),
        masks=tf.constant(inside) if masks else None,
        multiclass_scores=tf.ones([num_boxes, 4]) if scores else None,
    )


def measure(
    name: str, size: Tuple[int, int], num_boxes: int, masks: bool, images: int, repeats: int
) -> Figures:
    """The cost of a registered step on images of `size`, height and width."""
    step = preprocessor_pb2.PreprocessingStep()
    text_format.Parse(f"{name} {{ {SETTINGS.get(name, '')} }}", step)
    (link,) = make_links([step])
    sample = make_sample(
        *size, num_boxes, masks=masks or name in NEEDS_MASKS, scores=name in NEEDS_SCORES
    )
    idle = _pipeline_seconds(_tensors(sample), lambda given, seed: given, images, repeats)
    busy = _pipeline_seconds(_tensors(sample), _on_tensors(link), images, repeats)
    kernel_seconds, num_kernels = _kernels(_tensors(sample), _on_tensors(link), images, repeats)
    return Figures(
        name,
        step_us=1e6 * max(busy - idle, 0.0) / images,
        kernels_us=1e6 * kernel_seconds / images,
        num_kernels=num_kernels / images,
    )


def names() -> List[str]:
    """All registered steps."""
    return sorted(AUGMENTATIONS)


# (names of fields and their tensors, seed) -> tensors
Change = Callable[[Any, Any], Any]


def _tensors(sample: Sample) -> Tuple[List[str], List[Any]]:
    fields = [name for name, value in sample._asdict().items() if value is not None]
    return fields, [getattr(sample, name) for name in fields]


def _on_tensors(link: Link) -> Change:
    """The step as a function of named tensors; a mixture takes the same sample several times."""

    def change(given: Any, seed: Any) -> Any:
        names_, tensors = given
        sample = Sample(**dict(zip(names_, tensors)))
        samples = [sample] * records_of(link)
        result = link.function(samples if len(samples) > 1 else sample, seed, link.config)
        return [getattr(result, name) for name in names_]

    return change


def _unshaped(name: str, tensor: Any) -> Any:
    """The shape that the decoder gives: of each image another one."""
    if name == "image":
        return [None, None, tensor.shape[2]]
    if name == "masks":
        return [None, None, None]
    return [None, *tensor.shape[1:]] if name in PER_BOX_FIELDS else tensor.shape


def _pipeline_seconds(given: Any, change: Change, images: int, repeats: int) -> float:
    """Processor time of `images` images."""
    fields, tensors = given
    source = tf.data.Dataset.from_tensors(tuple(tensors)).cache().repeat(images)
    numbered = tf.data.Dataset.zip((tf.data.Dataset.range(images), source))

    @tf.autograph.experimental.do_not_convert
    def apply(number: Any, known: Any) -> Any:
        hidden = [
            tf1.placeholder_with_default(one, _unshaped(field, one))
            for field, one in zip(fields, known)
        ]
        found = change((fields, hidden), tf.stack([number, 7]))
        return tuple(found[1] if isinstance(found, tuple) else found)

    # Only the last result leaves the pipeline.
    dataset = numbered.map(apply).skip(images - 1)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    return min(_processor_seconds(lambda: next(iter(dataset))) for _ in range(repeats + 1))


def _processor_seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _kernels(given: Any, change: Change, images: int, repeats: int) -> Tuple[float, int]:
    """Time in kernels, and how many ran, for the same images."""
    fields, tensors = given
    arrays = [tensor.numpy() for tensor in tensors]
    with tf.Graph().as_default():
        seed = tf1.placeholder(tf.int64, [2])
        inputs = [
            tf1.placeholder(array.dtype, _unshaped(field, array))
            for field, array in zip(fields, arrays)
        ]
        results = tf.group(*(one.op for one in change((fields, inputs), seed)))
        options = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        with tf1.Session(config=options) as session:
            feeds = dict(zip(inputs, arrays))
            total, count = 0.0, 0
            for number in range(images):
                feeds[seed] = np.array([number, 7])
                traces = [_trace(session, results, feeds) for _ in range(repeats)]
                seconds, ran = min(traces)
                total, count = total + seconds, count + ran
    return total, count


def _trace(session: Any, operation: Any, feeds: Any) -> Tuple[float, int]:
    metadata = tf1.RunMetadata()
    session.run(
        operation,
        feeds,
        options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE),
        run_metadata=metadata,
    )
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    return (
        1e-9 * sum(node.op_end_rel_nanos - node.op_start_rel_nanos for node in nodes),
        len(nodes),
    )
