"""What a training run will need and start from, found out before it runs.

The training graph is built, on placeholders of the batch's real shapes, and looked at; nothing is
computed.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.files import is_remote
from estimator_det.config.problem import Problem, error, warning
from estimator_det.detectors.base import make_detector
from estimator_det.extractors.ssd.recipe import ignored_fields
from estimator_det.images.resize import make_resizer
from inputs import schema
from inputs.machine import available_memory
from inputs.records import stream as records
from model_fn.checkpoints.errors import RunError
from model_fn.model_fn import create_model_fn
from model_fn.preflight import data_problems
from model_fn.training import warm_start

# What TensorFlow holds before there is a batch, and what each operation of the graph adds to it in
# the session, measured on networks of 4,600 to 15,400 operations.
BASE_BYTES = 0.5e9
OPERATION_BYTES = 45e3
SAMPLED_RECORDS = 64
LABEL_MAP = ".label_map_path"
_FILES_AT_ONCE = 16
# tf.data runs at most this many images at once, and holds what each is made of.
_COPIES_IN_FLIGHT = 3


class Memory(NamedTuple):
    """Bytes that training takes."""

    graph: int  # TensorFlow's own
    parameters: int  # of the model
    slots: int  # of the optimizer and moving averages
    gradients: int
    activations: int  # that the backward pass needs
    batch: int  # features and labels of one batch
    images: int  # of the batch

    @property
    def training(self) -> int:
        """The peak of a training process, without its input pipeline."""
        step = self.parameters + self.slots + self.gradients + self.activations + 2 * self.batch
        return self.graph + step


class InputMemory(NamedTuple):
    """Bytes that the input pipeline takes on the host."""

    shuffled: int  # encoded records in the shuffle buffer
    in_flight: int  # images being decoded and augmented
    prefetched: int  # batches that wait

    @property
    def total(self) -> int:
        """All of it."""
        return self.shuffled + self.in_flight + self.prefetched


class Preflight(NamedTuple):
    """What `examine` finds."""

    memory: Optional[Memory]
    warm_start: Optional[warm_start.RestoreTable]
    num_variables: int
    num_operations: int
    problems: List[Problem]


def examine(pipeline_config: Any) -> Preflight:
    """Builds the training graph of a configuration and looks at it.

    A part that cannot be built is told as a problem. The checkpoint to fine-tune from is compared,
    and read for its checksums.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto; its image size must not depend on the
            image for `memory` to be known.
    """
    config = type(pipeline_config)()
    config.CopyFrom(pipeline_config)
    config.train_config.ClearField("fine_tune_checkpoint")
    config.ClearField("graph_rewriter")  # Looked at as a float model.
    for reader in (config.train_input_reader, *config.eval_input_reader):
        reader.ClearField("label_map_path")  # Names are of no use here; files may be missing.
    problems: List[Problem] = []
    try:
        problems += _without_effect(config)
        with tf.Graph().as_default() as graph:
            tf1.train.get_or_create_global_step()
            features, labels = placeholders(config)
            detector = make_detector(config.model, is_training=True)
            create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN)
            table = None
            if pipeline_config.train_config.fine_tune_checkpoint:
                table = _table(detector, pipeline_config.train_config, problems)
            static = all(features[schema.IMAGE].shape.as_list())
            memory = _memory(graph, {**features, **labels}) if static else None
            return Preflight(
                memory,
                table,
                len(tf1.global_variables()),
                len(graph.get_operations()),
                problems,
            )
    except (ValueError, NotImplementedError) as reason:
        # Whatever a part says of its options.
        text = str(reason).rstrip(".")
        problems.append(error("model", text, "choose what is supported, or remove it"))
        return Preflight(None, None, 0, 0, problems)


def _without_effect(config: Any) -> List[Problem]:
    """Options of the feature extractor that are set and that its type knows nothing of."""
    if config.model.WhichOneof("model") != "ssd":
        return []
    extractor = config.model.ssd.feature_extractor
    return [
        warning(
            f"model.ssd.feature_extractor.{field}",
            f"has no effect on {extractor.type}",
            "nothing, or remove it",
        )
        for field in ignored_fields(extractor)
    ]


def _table(
    detector: Any, train_config: Any, problems: List[Problem]
) -> Optional[warm_start.RestoreTable]:
    field = "train_config.fine_tune_checkpoint"
    try:
        table = warm_start.table_of(detector, train_config)
        warm_start.check_table(table, train_config)
    except (FileNotFoundError, RunError, ValueError, tf.errors.OpError) as reason:
        text = str(getattr(reason, "message", None) or reason).removeprefix(f"{field}: ")
        remedy = "correct the path and fine_tune_checkpoint_type, or leave both out"
        problems.append(error(field, text, remedy))
        return None
    if table.mismatched or table.missing:
        problems.append(
            warning(
                field,
                f"{len(table.mismatched)} variables are of another shape there and "
                f"{len(table.missing)} are missing; they start from their initializers",
                "nothing, if those are the heads for other classes",
            )
        )
    return table


def placeholders(config: Any) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
    """What the input function will hand over."""
    model = getattr(config.model, config.model.WhichOneof("model"))
    height, width = make_resizer(model.image_resizer).spatial_shape
    channels = 3 + config.train_input_reader.num_additional_channels
    sizes: Dict[str, Optional[int]] = {
        "B": config.train_config.batch_size or 1,
        "G": config.train_input_reader.max_number_of_boxes or 1,
        "K": model.num_classes,
        "H": height,
        "W": width,
        "C": channels,
        "P": config.train_input_reader.num_keypoints,
    }

    def make(name: str, spec: schema.Spec) -> tf.Tensor:
        shape = [int(axis) if axis.isdigit() else sizes[axis] for axis in spec.shape.split()]
        return tf1.placeholder(getattr(tf, spec.dtype), shape, name=name)

    given = {**schema.FEATURES, **schema.LABELS}
    features = [schema.IMAGE, schema.TRUE_IMAGE_SHAPE, schema.HASH]
    labels = [
        schema.NUM_BOXES,
        schema.BOXES,
        schema.CLASSES,
        schema.WEIGHTS,
        schema.CONFIDENCES,
        schema.IS_CROWD,
        schema.AREA,
        schema.DIFFICULT,
        schema.GROUP_OF,
    ]
    if config.train_input_reader.num_keypoints:
        labels += [schema.KEYPOINTS, schema.KEYPOINT_VISIBILITIES]
    if config.train_input_reader.load_instance_masks:
        labels.append(schema.MASKS)
    return (
        {name: make(name, given[name]) for name in features},
        {name: make(name, given[name]) for name in labels},
    )


def _size(tensor: tf.Tensor) -> int:
    count = tensor.shape.num_elements()
    return (
        0 if count is None or tensor.dtype in (tf.string, tf.resource) else count * _width(tensor)
    )


def _width(tensor: Any) -> int:
    return int(tensor.dtype.base_dtype.size)


def _memory(graph: tf.Graph, batch: Dict[str, tf.Tensor]) -> Memory:
    model = set(tf1.trainable_variables())
    statistics = {v for v in tf1.global_variables() if "/moving_" in v.op.name} - model

    def total(variables: Any) -> int:
        return sum(v.shape.num_elements() * _width(v) for v in variables)

    backward = {op for op in graph.get_operations() if op.name.startswith("gradients/")}
    kept = {
        tensor.ref(): tensor
        for op in backward
        for tensor in op.inputs
        # Reads of variables hand out the variable's own memory.
        if tensor.op not in backward and tensor.op.type not in ("ReadVariableOp", "Const")
    }
    # A gradient op frees its inputs one by one: the largest pair of them is alive at once.
    largest = max((_size(tensor) for op in backward for tensor in op.outputs), default=0)
    return Memory(
        graph=int(BASE_BYTES + OPERATION_BYTES * len(graph.get_operations())),
        parameters=total(model) + total(statistics),
        slots=total(set(tf1.global_variables()) - model - statistics),
        gradients=total(model),
        activations=sum(_size(tensor) for tensor in kept.values()) + 2 * largest,
        batch=sum(_size(tensor) for tensor in batch.values()),
        images=batch[schema.IMAGE].shape[0],
    )


def input_memory(pipeline_config: Any, memory: Memory, cores: int) -> InputMemory:
    """What the input pipeline of training takes on a host with so many cores.

    Encoded records and image sizes are measured on the first `SAMPLED_RECORDS` of the data.

    Raises:
        FileNotFoundError: if there are no records.
        ValueError: if there are files but no records in the first.
        tf.errors.OpError: if they cannot be read.
    """
    reader = pipeline_config.train_input_reader
    paths = [p for pattern in records.input_patterns(reader) for p in records.find_files(pattern)]
    sizes = [len(record) for record in _first_records(paths[0])]
    buffered = (reader.shuffle_buffer_size if reader.shuffle else 1) * sum(sizes) / len(sizes)
    per_image = memory.batch / memory.images
    return InputMemory(
        shuffled=int(min(buffered, sum(tf.io.gfile.stat(path).length for path in paths))),
        in_flight=int(cores * _COPIES_IN_FLIGHT * per_image),
        prefetched=int((reader.num_prefetch_batches + 1) * memory.batch),
    )


def check_memory(needed: int, batch_size: int) -> List[Problem]:
    """Whether this machine has as much memory as training needs."""
    present = available_memory()
    if needed <= present:
        return []
    return [
        warning(
            "train_config.batch_size",
            f"training takes about {needed / 1e9:.1f} GB at batch {batch_size}, this machine has "
            f"{present / 1e9:.1f}",
            "lower it, or image_resizer or shuffle_buffer_size, unless you train elsewhere",
        )
    ]


def _first_records(path: str) -> List[bytes]:
    dataset = tf.data.TFRecordDataset(path, records.compression_of(path)).take(SAMPLED_RECORDS)
    found = [record.numpy() for record in dataset]
    if not found:
        raise ValueError(f"{path}: the file has no records")
    return found


def check_files(pipeline_config: Any) -> List[Problem]:
    """Whether every file can be read, remote ones (gs://…) included, and label maps understood.

    That local ones exist, `config.check` tells without TensorFlow.
    """
    named = []
    train = pipeline_config.train_config
    if train.fine_tune_checkpoint and is_remote(train.fine_tune_checkpoint):
        named.append(("train_config.fine_tune_checkpoint", train.fine_tune_checkpoint + "*"))
    readers = [("train_input_reader", pipeline_config.train_input_reader)]
    readers += [
        (f"eval_input_reader[{i}]", reader)
        for i, reader in enumerate(pipeline_config.eval_input_reader)
    ]
    for name, reader in readers:
        if reader.label_map_path:
            named.append((name + LABEL_MAP, reader.label_map_path))
        for index, pattern in enumerate(reader.tf_record_input_reader.input_path):
            named.append((f"{name}.tf_record_input_reader.input_path[{index}]", pattern))
    problems = []
    for field, pattern in named:
        found = _unreadable(field, pattern)
        if not found and field.endswith(LABEL_MAP) and tf.io.gfile.exists(pattern):
            found = data_problems.read_map(field[: -len(LABEL_MAP)], pattern)[1]
        problems += found
    return problems


def _unreadable(field: str, pattern: str) -> List[Problem]:
    try:
        paths = tf.io.gfile.glob(pattern)
    except tf.errors.OpError as reason:
        return [_no_access(field, pattern, reason)]
    if not paths and is_remote(pattern):
        return [error(field, f"no file matches {pattern!r}", "correct the path")]

    def refusal(path: str) -> Optional[Problem]:
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.read(1)
        except tf.errors.OpError as reason:
            return _no_access(field, path, reason)
        return None

    # Each remote file takes its time, however short it is.
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return [problem for problem in pool.map(refusal, paths) if problem is not None]


def _no_access(field: str, path: str, reason: tf.errors.OpError) -> Problem:
    remedy = "check the path, and the rights and credentials of this process"
    return error(field, f"{path!r} cannot be read: {reason.message}", remedy)
