"""Measures one step: what running its graph costs, and the kernels in it.

Both measurements apply the step to the same image with the same seeds, on one processor: a kernel
shares its work with the thread that starts it, and on two processors would seem to take half as
long.

* The step: processor time of the graph for each image, less that of returning its input.
* Its kernels: the time between the start and the end of each kernel, summed over all nodes of the
  step's graph. The difference is what starting kernels costs, and what frees memory.

Of repeated measurements of the step, and of each kernel, the smallest counts: whatever else the
machine does only adds time.
"""

from __future__ import annotations

import collections
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.protos import preprocessor_pb2
from inputs.augment import AUGMENTATIONS, make_steps
from inputs.augment.base import AugmentationStep, count_records
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
    (link,) = make_steps([step])
    sample = make_sample(
        *size, num_boxes, masks=masks or name in NEEDS_MASKS, scores=name in NEEDS_SCORES
    )
    seconds, kernels, ran = _seconds(sample, _on_tensors(link), images, repeats)
    return Figures(
        name,
        step_us=1e6 * max(seconds, 0.0) / images,
        kernels_us=1e6 * kernels / images,
        num_kernels=ran / images,
    )


def names() -> List[str]:
    """All registered steps."""
    return sorted(AUGMENTATIONS)


# (tensors by field, seed) -> tensors by field
Change = Callable[[Dict[str, Any], Any], Dict[str, Any]]


def _on_tensors(link: AugmentationStep) -> Change:
    """The step as a function of named tensors; a mixture takes the same sample several times."""

    def change(given: Dict[str, Any], seed: Any) -> Dict[str, Any]:
        samples = [Sample(**given)] * count_records(link)
        result = link.function(samples if len(samples) > 1 else samples[0], seed, link.config)
        return {name: getattr(result, name) for name in given}

    return change


def _unshaped(name: str, tensor: Any) -> Any:
    """The shape that the decoder gives: of each image another one."""
    if name == "image":
        return [None, None, tensor.shape[2]]
    if name == "masks":
        return [None, None, None]
    return [None, *tensor.shape[1:]] if name in PER_BOX_FIELDS else tensor.shape


def _seconds(sample: Sample, change: Change, images: int, repeats: int) -> Tuple[float, float, int]:
    """Processor time of `images` images, that of their kernels, and how many kernels ran.

    The sample is in variables: feeding it would take longer than many steps. Only what the step
    changes is returned from the graph, and the time to return the same unchanged is subtracted.
    """
    given = {name: value for name, value in sample._asdict().items() if value is not None}
    with tf.Graph().as_default():
        seed = tf1.placeholder(tf.int64, [2])
        variables = {
            name: tf.Variable(one.numpy(), dtype=one.dtype, shape=_unshaped(name, one))
            for name, one in given.items()
        }
        inputs = {name: one.read_value() for name, one in variables.items()}
        outputs = change(inputs, seed)
        changed = [name for name in given if outputs[name] is not inputs[name]]
        results, same = ([tensors[name] for name in changed] for tensors in (outputs, inputs))
        options = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        options.experimental.disable_thread_spinning = True  # Waiting would count as work.
        with tf1.Session(config=options) as session:
            session.run([one.initializer for one in variables.values()])
            whole, kernels, count = 0.0, 0.0, 0
            for number in range(images):
                feeds = {seed: np.array([number, 7])}
                if not number:  # The first run also prepares the graph.
                    session.run(results, feeds)
                    session.run(same, feeds)
                runs = [
                    (_run(session, results, feeds), _run(session, same, feeds))
                    for _ in range(repeats)
                ]
                whole += min(busy for busy, _ in runs) - min(idle for _, idle in runs)
                traces = [_trace(session, results, feeds) for _ in range(repeats)]
                kernels += sum(min(one[name] for one in traces) for name in traces[0])
                count += len(traces[0])
    return whole, kernels, count


def _run(session: Any, results: Any, feeds: Any) -> float:
    """Processor time of a run."""
    start = time.process_time()
    session.run(results, feeds)
    return time.process_time() - start


def _trace(session: Any, results: Any, feeds: Any) -> Dict[Tuple[str, int], float]:
    """Seconds from the start to the end of each kernel that ran.

    A kernel that runs several times, in a loop, has a number for each of its runs.
    """
    metadata = tf1.RunMetadata()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    session.run(results, feeds, options=options, run_metadata=metadata)
    found: Dict[Tuple[str, int], float] = {}
    runs: Dict[str, int] = collections.Counter()
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    for node in sorted(nodes, key=lambda node: node.all_start_micros):
        name = node.node_name
        found[name, runs[name]] = 1e-9 * (node.op_end_rel_nanos - node.op_start_rel_nanos)
        runs[name] += 1
    return found
