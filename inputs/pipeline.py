"""The input functions of training and evaluation: records -> batches of features and labels.

The order of steps is the reference's: decode, augment, the detector's `preprocess`, one-hot
classes, padding; see `inputs.examples`. Records are shuffled while still encoded. Two runs with one
seed give the same batches; each image's augmentation has a seed of its own, from its sequence
number. So a resumed run can continue where the one before it ended: see `inputs.records.cursor`.

Bad records are handled as the reader's `bad_records` says, and reported to a `FaultLog`; see
`inputs.checks.guard`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.config.check_augmentation import check_augmentation
from estimator_det.config.check_model import predicts_masks
from estimator_det.config.context import check_context_reader, context_shape
from estimator_det.config.evaluated_model import evaluated_model
from estimator_det.config.problem import Problem
from estimator_det.config.ranges import refuse_absurd
from estimator_det.config.text import ConfigError
from estimator_det.images.resize import make_resizer
from estimator_det.protos import input_reader_pb2, model_pb2, pipeline_pb2
from inputs.augment import check_steps, make_steps
from inputs.bad_records.log import FaultLog
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.batch import CollateOptions, Preprocess
from inputs.checks.class_names import check_class_names
from inputs.checks.graph_guard import GraphGuard
from inputs.checks.guard import Guard
from inputs.checks.masks import check_masks
from inputs.examples import Recipe, make_examples, make_retry
from inputs.machine import available_cpus
from inputs.records import sharding, splits
from inputs.records.cursor import CursorState, DataCursor, order_fingerprint
from inputs.records.stream import FileGuard, Files, list_files, record_dataset

InputFn = Callable[..., tf.data.Dataset]
Params = Dict[str, Any]

DEFAULT_EVAL_SEED = 0  # evaluation shuffles, if at all, into the same order each time
TRAIN_READER = "train_input_reader."


def create_train_input_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    preprocess: Preprocess,
    seed: Optional[int] = None,
    fault_log: Optional[FaultLog] = None,
    *,
    cursor: Optional[DataCursor] = None,
    runs_elsewhere: bool = False,
    first_step: Optional[int] = 0,
    images_per_step: Optional[int] = None,
    shard: sharding.Shard = sharding.WHOLE,
    on_split: Optional[Callable[[sharding.Split], None]] = None,
    data_service: Optional[str] = None,
) -> InputFn:
    """Input function of training: shuffled, augmented, endless unless `num_epochs` is set.

    Args:
        pipeline_config: Its model, train_config and train_input_reader are read at the call.
        preprocess: The detector's: float32 [B, h, w, C] -> inputs [B, H, W, C], true_shapes [B, 3].
        seed: Makes order and augmentation repeatable; None draws another one at each call.
        fault_log: Receives all faults of the data; None for a log of its own.
        cursor: Has the state to start from, and receives it; None starts at the first record.
        runs_elsewhere: True if the dataset runs on another machine, without Python; see
            `inputs.checks.graph_guard`.
        first_step: Global step that uses the first batch, for steps with `stop_at_step`; None if
            it is not known.
        images_per_step: Images that one step uses, over all hosts; None for the batch size.
        shard: Number of workers that divide the records among them, and the index of this one; each
            has batches of the whole batch size. An `input_context` says it in its place.
        on_split: Receives the division of the records among several workers.
        data_service: Address of the dispatcher of a `tf.data` service whose workers read, decode
            and augment; each record once an epoch, see `inputs.records.splits`.

    Returns:
        `input_fn(params=None, input_context=None)` -> dataset of (features, labels);
        `params["batch_size"]`, if set, overrides `train_config.batch_size`. It raises ConfigError
        for settings that contradict each other, or for compressed files if `runs_elsewhere`, and
        FileNotFoundError if an input path matches nothing.
    """
    _model_of(pipeline_config)  # refuses an empty model
    train, reader = pipeline_config.train_config, pipeline_config.train_input_reader
    refuse_absurd(train, "train_config.")
    refuse_absurd(reader, TRAIN_READER)

    def input_fn(params: Optional[Params] = None, input_context: Any = None) -> tf.data.Dataset:
        whole_batch = _batch_size(params, train.batch_size)
        batch_size, part = _share(whole_batch, input_context, shard)
        images = (images_per_step or whole_batch) // (1 if input_context is None else part[0])
        recipe = _training_recipe(pipeline_config, preprocess, batch_size, first_step, images)
        stream = _Stream(
            part, sharding.seed_of_part(seed, part), num_epochs=reader.num_epochs or None,
            sample_1_of_n=reader.sample_1_of_n_examples, drop_remainder=reader.drop_remainder,
            runs_elsewhere=runs_elsewhere, cursor=cursor, on_split=on_split,
            data_service=data_service,
        )  # fmt: skip
        return _batches(recipe, fault_log, stream, predicts_masks(pipeline_config.model))

    return input_fn


def _path_of(reader: Any, pipeline_config: Any) -> str:
    for index, entry in enumerate(pipeline_config.eval_input_reader):
        if entry is reader or entry == reader:
            return f"eval_input_reader[{index}]."
    return TRAIN_READER


def create_eval_input_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    preprocess: Preprocess,
    input_config: Optional[input_reader_pb2.InputReader] = None,
    sample_1_of_n: Optional[int] = None,
    fault_log: Optional[FaultLog] = None,
) -> InputFn:
    """Input function of evaluation: in the same order each time, no augmentation.

    It ends after one pass, or after the `num_epochs` of an `eval_input_reader`.

    The last batch may be smaller, unless the reader itself sets `drop_remainder: true`.

    Args:
        pipeline_config: Its model and eval_config are read at the call.
        preprocess: That of `estimator_det.config.evaluated_model`.
        input_config: One of `eval_input_reader`, or `train_input_reader` to evaluate on training
            data; None for the first `eval_input_reader`.
        sample_1_of_n: Reads every n-th record; None for the reader's `sample_1_of_n_examples`.

    Returns:
        As `create_train_input_fn`, with `eval_config.batch_size`.

    Raises:
        ConfigError: if there is no eval_input_reader, or settings contradict each other.
    """
    _model_of(pipeline_config)  # refuses an empty model
    evaluation = pipeline_config.eval_config
    if input_config is None:
        if not pipeline_config.eval_input_reader:
            raise ConfigError("eval_input_reader is missing; add one to evaluate")
        input_config = pipeline_config.eval_input_reader[0]
    reader: input_reader_pb2.InputReader = input_config
    refuse_absurd(evaluation, "eval_config.")
    path = _path_of(reader, pipeline_config)
    refuse_absurd(reader, path)
    passes = 1 if path == TRAIN_READER else max(reader.num_epochs, 1)
    every = reader.sample_1_of_n_examples if sample_1_of_n is None else sample_1_of_n

    def input_fn(params: Optional[Params] = None, input_context: Any = None) -> tf.data.Dataset:
        options = _evaluation_options(pipeline_config, preprocess, reader)
        batch_size, part = _share(_batch_size(params, evaluation.batch_size), input_context)
        # A batch of one has no remainder: dropping it only makes the shape static.
        drop = batch_size == 1 or (reader.HasField("drop_remainder") and reader.drop_remainder)
        recipe = Recipe(reader, options, _policy(reader, options), batch_size=batch_size)
        stream = _Stream(
            part, DEFAULT_EVAL_SEED, num_epochs=passes, sample_1_of_n=every, drop_remainder=drop
        )
        return _batches(recipe, fault_log, stream, predicts_masks(pipeline_config.model))

    return input_fn


def _training_recipe(
    pipeline_config: Any,
    preprocess: Preprocess,
    batch_size: int,
    first_step: Optional[int],
    images_per_step: int,
) -> Recipe:
    model = _model_of(pipeline_config)
    train, reader = pipeline_config.train_config, pipeline_config.train_input_reader
    options = CollateOptions(
        preprocess=preprocess,
        resizer=make_resizer(model.image_resizer),
        num_classes=model.num_classes,
        max_boxes=_max_boxes(reader, train.max_number_of_boxes),
        retain_original_image=train.retain_original_images,
        merge_boxes=train.merge_multiple_label_boxes,
        use_multiclass_scores=train.use_multiclass_scores,
        context_shape=_context_shape(pipeline_config, reader),
    )
    _refuse(check_augmentation(train.data_augmentation_options, model.num_classes))
    links = make_steps(train.data_augmentation_options)
    check_steps(links, reader)
    policy = _policy(reader, options)
    return Recipe(reader, options, policy, links, batch_size, first_step, images_per_step)


def _evaluation_options(
    pipeline_config: Any, preprocess: Preprocess, reader: input_reader_pb2.InputReader
) -> CollateOptions:
    evaluation = pipeline_config.eval_config
    return CollateOptions(
        preprocess=preprocess,
        resizer=make_resizer(_detector(evaluated_model(pipeline_config)).image_resizer),
        num_classes=_model_of(pipeline_config).num_classes,
        max_boxes=_max_boxes(reader, reader.max_number_of_boxes),
        retain_original_image=evaluation.retain_original_images,
        retain_additional_channels=evaluation.retain_original_images
        and evaluation.retain_original_image_additional_channels,
        all_classes_labeled_by_default=evaluation.image_classes_field_map_empty_to_ones,
        context_shape=_context_shape(pipeline_config, reader),
    )


class _Stream(NamedTuple):
    """Order and sharding of records."""

    shard: sharding.Shard
    seed: Optional[int]
    num_epochs: Optional[int]
    sample_1_of_n: int
    drop_remainder: bool
    runs_elsewhere: bool = False
    cursor: Optional[DataCursor] = None
    on_split: Optional[Callable[[sharding.Split], None]] = None
    data_service: Optional[str] = None

    @property
    def runs_without_python(self) -> bool:
        """True on another machine."""
        return self.runs_elsewhere or self.data_service is not None


def _policy(reader: input_reader_pb2.InputReader, options: CollateOptions) -> BadRecordPolicy:
    return make_policy(reader, options.num_classes, options.max_boxes, options.context_shape[1])


def _find_files(recipe: Recipe, log: FaultLog, stream: _Stream, needs_masks: bool) -> Files:
    """The reader's files, if classes and masks of their first records suit the reader."""
    reader = recipe.reader
    files = list_files(reader, recipe.policy, log)
    check_class_names(reader, files.paths)
    if needs_masks and files.paths and reader.input_type != input_reader_pb2.TF_SEQUENCE_EXAMPLE:
        check_masks(files.paths[0])
    if stream.on_split is not None and stream.shard[0] > 1:
        stream.on_split(sharding.split(files.paths, files.stream_lengths, stream.shard[0]))
    return files


def _records(
    reader: input_reader_pb2.InputReader,
    guard: FileGuard,
    start: CursorState,
    files: Files,
    stream: _Stream,
) -> tf.data.Dataset:
    """Encoded records, of this worker's part or divided by a `tf.data` service."""
    reading: Dict[str, Any] = {
        "shuffle": reader.shuffle,
        "start": start,
        "num_epochs": stream.num_epochs,
        "sample_1_of_n": stream.sample_1_of_n,
    }
    if stream.data_service is not None:
        return splits.split_dataset(reader, guard, **reading)
    return record_dataset(
        reader, guard, stream_lengths=files.stream_lengths, shard=stream.shard, **reading
    )


def _batches(
    recipe: Recipe, fault_log: Optional[FaultLog], stream: _Stream, needs_masks: bool
) -> tf.data.Dataset:
    """The input pipeline: files, records, images, batches, in this order."""
    reader, is_here = recipe.reader, not stream.runs_without_python
    log = FaultLog() if fault_log is None else fault_log
    files = _find_files(recipe, log, stream, needs_masks)
    order = order_fingerprint(reader, files, stream.sample_1_of_n, stream.shard, stream.seed)
    start = (stream.cursor or DataCursor()).begin(stream.seed, order)
    # AUTOTUNE may decode too few images at once; but another machine's CPUs are not known here.
    at_once = available_cpus() if is_here else tf.data.AUTOTUNE
    at_once = decoded_at_once(reader, recipe.batch_size, at_once)
    guard = _make_guard(recipe, files, log, start, at_once) if is_here else GraphGuard(files.paths)

    # Shuffled files, read in turn; shuffled records; epochs.
    dataset = _records(reader, guard, start, files, stream)
    # Decode, augment, mix, preprocess, pad: a parallel map, whose errors the guard explains.
    dataset = make_examples(
        dataset, recipe, guard, start, ignore_errors=is_here, num_parallel_calls=at_once,
        number_of=None if stream.data_service is None else splits.number_of,
    )  # fmt: skip
    dataset = dataset.batch(recipe.batch_size, drop_remainder=stream.drop_remainder)
    dataset = guard.check_batches(
        dataset, start=start, drop_remainder=stream.drop_remainder,
        is_endless=stream.num_epochs is None, keep_source_id=reader.include_source_id,
    )  # fmt: skip
    if stream.data_service is not None:
        dataset = splits.distributed(dataset, stream.data_service)
    dataset = dataset.prefetch(reader.num_prefetch_batches)
    options = tf.data.Options()
    options.autotune.enabled = not is_here
    return dataset.with_options(options)


def _make_guard(
    recipe: Recipe, files: Files, log: FaultLog, start: CursorState, decoded: int
) -> Guard:
    retry = make_retry(recipe, start)
    num_waiting = recipe.num_waiting + 2 * decoded  # half of them in the buffer of the map
    return Guard(files.paths, recipe.policy, log, retry, num_waiting=num_waiting)


def decoded_at_once(reader: input_reader_pb2.InputReader, batch_size: int, default: int) -> int:
    """How many images are decoded in parallel: `num_parallel_batches` of them, if it is set."""
    if reader.HasField("num_parallel_batches"):
        return max(1, reader.num_parallel_batches * batch_size)
    return default


def _model_of(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> Any:
    """The message of the detector, which has num_classes and image_resizer."""
    return _detector(pipeline_config.model)


def _detector(model: model_pb2.DetectionModel) -> Any:
    kind = model.WhichOneof("model")
    if kind is None:
        raise ConfigError("model is empty; set ssd or faster_rcnn")
    return getattr(model, kind)


def _max_boxes(reader: input_reader_pb2.InputReader, old_style: int) -> int:
    """The reader's own number, else the deprecated train_config.max_number_of_boxes."""
    if reader.HasField("max_number_of_boxes"):
        return reader.max_number_of_boxes
    return old_style


def _context_shape(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, reader: input_reader_pb2.InputReader
) -> Tuple[Optional[int], Optional[int]]:
    path = _path_of(reader, pipeline_config).rstrip(".")
    _refuse(check_context_reader(reader, pipeline_config.model, path))
    return context_shape(pipeline_config.model) or (None, None)


def _refuse(problems: Iterator[Problem]) -> None:
    for problem in problems:
        raise ConfigError(f"{problem.field}: {problem.message}. Remedy: {problem.remedy}")


def _batch_size(params: Optional[Any], configured: int) -> int:
    batch_size = params.get("batch_size") if params is not None else None
    size = configured if batch_size is None else int(batch_size)
    if size < 1:
        raise ConfigError(f"batch_size is {size}; it must be positive")
    return size


def _share(
    batch_size: int, input_context: Any, shard: sharding.Shard = sharding.WHOLE
) -> Tuple[int, sharding.Shard]:
    """Batch size of one replica, and its part of the records."""
    if input_context is None:
        return batch_size, shard
    per_replica = input_context.get_per_replica_batch_size(batch_size)
    return per_replica, (input_context.num_input_pipelines, input_context.input_pipeline_id)
