"""The input functions of training and evaluation: records -> batches of features and labels.

`_batches` is the whole pipeline in its order: list files, shuffle, repeat, read, decode, augment,
resize, pad, batch, prefetch. The steps of one image are in `inputs.examples`, reading is in
`inputs.records.stream`.

Two runs with one seed have the same batches; the augmentation of each image has a seed of its own,
from its sequence number. So a resumed run continues with the next record: see
`inputs.records.cursor`. Bad records are handled as the reader's `bad_records` says, and reported to
a `FaultLog`: see `inputs.guard`.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, Union

from estimator_det.compat import tf
from estimator_det.config.derived_models import evaluated_model
from estimator_det.config.facts import context_shape, predicts_masks, readers
from estimator_det.config.field_rules import no_effect
from estimator_det.config.rules import check, require, rules
from estimator_det.console.printing import counted
from estimator_det.errors import ConfigError, Problem, error, raise_errors, warning
from estimator_det.images.resize import make_resizer
from estimator_det.protos import input_reader_pb2, model_pb2, pipeline_pb2
from inputs.augment import make_steps
from inputs.bad_records.log import FaultLog
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.batch import CollateOptions, Features, Preprocess
from inputs.checks.first_records import check_cache, check_class_names, check_masks
from inputs.examples import ExampleOptions, ExampleSteps
from inputs.guard import GraphGuard, Guard
from inputs.label_map import LabelMap
from inputs.machine import available_cpus
from inputs.records import sharding, splits
from inputs.records.cursor import OF_WORKER, DataCursor, derived_seed, order_fingerprint
from inputs.records.stream import Files, Order, list_files, record_dataset
from inputs.records.tfrecord import file_size

InputFn = Callable[..., tf.data.Dataset]
Params = Dict[str, Any]

DEFAULT_EVAL_SEED = 0  # evaluation shuffles, if at all, into the same order each time
TRAIN_READER = "train_input_reader"
# Fields of train_config that its input uses.
_TRAIN_FIELDS = (
    "train_config.batch_size",
    "train_config.data_augmentation_options",
    "train_config.max_number_of_boxes",
    "train_config.use_multiclass_scores",
)


@dataclasses.dataclass(frozen=True)
class InputPlace:
    """Place of a dataset in its run; the default is one process that starts at step 0."""

    cursor: Optional[DataCursor] = None  # state to start from, updated; None: the first record
    # The dataset runs on another machine, without Python; see `inputs.guard`.
    runs_elsewhere: bool = False
    first_step: Optional[int] = 0  # global step of the first batch; None: unknown
    images_per_step: Optional[int] = None  # over all hosts; None: the batch size
    # Number of workers that divide the records, and the index of this one; each has batches of the
    # whole batch size. An `input_context` replaces it.
    shard: sharding.Shard = sharding.WHOLE
    on_split: Optional[Callable[[sharding.WorkerParts], None]] = None  # receives that division
    # Address of the dispatcher of a `tf.data` service, whose workers read, decode and augment each
    # record once an epoch: see `inputs.records.splits`.
    data_service: Optional[str] = None

    @property
    def has_python(self) -> bool:
        """True if the dataset runs in this process, whose Python explains bad records."""
        return not self.runs_elsewhere and self.data_service is None


def create_train_input_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    preprocess: Preprocess,
    seed: Optional[int] = None,
    fault_log: Optional[FaultLog] = None,
    **options: Any,
) -> InputFn:
    """Input function of training: shuffled, augmented, endless unless `num_epochs` is set.

    Args:
        pipeline_config: Its model, train_config and train_input_reader are read at the call.
        preprocess: The detector's: float32 [B, h, w, C] -> inputs [B, H, W, C], true_shapes [B, 3].
        seed: Makes order and augmentation repeatable; None draws another one at each call.
        **options: Fields of `InputPlace`.

    Returns:
        `input_fn(params=None, input_context=None)` -> dataset of (features, labels);
        `params["batch_size"]`, if set, overrides `train_config.batch_size`. It raises ConfigError
        for settings that contradict each other, or for compressed files if `runs_elsewhere`, and
        FileNotFoundError if an input path matches nothing.
    """
    require(pipeline_config, *_model_fields(pipeline_config), TRAIN_READER, *_TRAIN_FIELDS)
    return build_train_input_fn(pipeline_config, preprocess, seed, fault_log, **options)


def _model_fields(config: pipeline_pb2.TrainEvalPipelineConfig) -> Tuple[str, ...]:
    """Fields of the model that its input uses."""
    kind = config.model.WhichOneof("model")
    return (f"model.{kind}.num_classes", f"model.{kind}.image_resizer") if kind else ("model",)


def build_train_input_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    preprocess: Preprocess,
    seed: Optional[int] = None,
    fault_log: Optional[FaultLog] = None,
    label_map: Optional[LabelMap] = None,
    **options: Any,
) -> InputFn:
    """`create_train_input_fn` without checks; `label_map` is the reader's, if read before."""
    place = InputPlace(**options)
    train, reader = pipeline_config.train_config, pipeline_config.train_input_reader

    def input_fn(params: Optional[Params] = None, input_context: Any = None) -> tf.data.Dataset:
        batch_size = _batch_size(params, train.batch_size)
        images = place.images_per_step or batch_size
        batch_size, shard = _share(batch_size, input_context, place.shard)
        # If the reader has no number, the deprecated field of train_config counts.
        limits = reader if reader.HasField("max_number_of_boxes") else train
        collate = _collate_options(
            pipeline_config,
            pipeline_config.model,
            preprocess,
            max_boxes=limits.max_number_of_boxes,
            retain_original_image=train.retain_original_images,
            merge_boxes=train.merge_multiple_label_boxes,
            use_multiclass_scores=train.use_multiclass_scores,
        )
        examples = ExampleOptions(
            reader,
            collate,
            _policy(reader, collate, label_map),
            make_steps(train.data_augmentation_options),
            batch_size,
            first_step=place.first_step,
            images_per_step=images if input_context is None else images // shard[0],
        )
        order = Order(
            derived_seed(seed, OF_WORKER, shard[1]), reader.num_epochs or None,
            reader.sample_1_of_n_examples, shard, reader.drop_remainder,
        )  # fmt: skip
        return _batches(examples, order, fault_log, place, predicts_masks(pipeline_config.model))

    return input_fn


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_readers(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """Readers exist, and load what the model learns from."""
    block = "{ tf_record_input_reader { input_path } label_map_path }"
    if not config.HasField("train_input_reader"):
        yield error("train_input_reader", "is missing", f"add train_input_reader {block}")
    if not config.eval_input_reader:
        message = "is missing: nothing can be evaluated"
        yield warning("eval_input_reader", message, f"add eval_input_reader {block}")
    for index, reader in enumerate(config.eval_input_reader):
        if reader.HasField("num_epochs") and not reader.num_epochs:
            path = f"eval_input_reader[{index}].num_epochs"
            yield no_effect(path, "0 means no limit, but an evaluation ends")
    for path, reader in readers(config):
        if predicts_masks(config.model) and not reader.load_instance_masks:
            edit = f"{path}.load_instance_masks=true"
            message = "is false, and the model learns masks"
            yield Problem("error", f"{path}.load_instance_masks", message, edits=(edit,))
        yield from _check_keypoints(reader, config.model, path)
        yield from _check_context(reader, config.model, path)
    if (
        config.train_config.use_multiclass_scores
        and not config.train_input_reader.load_multiclass_scores
    ):
        yield error(
            "train_config.use_multiclass_scores",
            "is true, but the training reader does not load the scores",
            "set train_input_reader.load_multiclass_scores=true",
        )


def _check_keypoints(
    reader: input_reader_pb2.InputReader, model: model_pb2.DetectionModel, path: str
) -> Iterator[Problem]:
    """An error if the reader does not load the keypoints that the model learns."""
    coder, path = model.ssd.box_coder, f"{path}.num_keypoints"
    count = coder.keypoint_box_coder.num_keypoints
    if coder.HasField("keypoint_box_coder") and reader.num_keypoints != count:
        message = f"is {reader.num_keypoints}, and the model learns {counted(count, 'keypoint')}"
        yield Problem("error", path, message, edits=(f"{path}={count}",))
    elif model.center_net.keypoint_estimation_task and not reader.num_keypoints:
        remedy = "set it to the number of keypoints of a box in the records"
        yield error(path, "is 0, and the model learns keypoints", remedy)


def _check_context(
    reader: input_reader_pb2.InputReader, model: model_pb2.DetectionModel, path: str
) -> Iterator[Problem]:
    """An error if the reader and the model disagree about context features."""
    if context_shape(model) is None:
        for field in ("load_context_features", "load_context_image_ids"):
            if getattr(reader, field):
                yield error(
                    f"{path}.{field}",
                    "the model takes no context features: it has no context_config with "
                    "use_long_term_attention",
                    "remove it",
                )
    elif not reader.load_context_features:
        yield error(
            f"{path}.load_context_features",
            "is not set, and the model needs context features",
            "set it to true; context_config without use_long_term_attention needs none",
        )


def create_eval_input_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    preprocess: Preprocess,
    input_config: Optional[input_reader_pb2.InputReader] = None,
    sample_1_of_n: Optional[int] = None,
    fault_log: Optional[FaultLog] = None,
) -> InputFn:
    """Input function of evaluation: in the same order each time, no augmentation.

    It ends after one pass, or after the `num_epochs` of an `eval_input_reader`. The last batch may
    be smaller, unless the reader itself sets `drop_remainder: true`.

    Args:
        preprocess: The `preprocess` of a detector for `derived_models.evaluated_model`.
        input_config: An `eval_input_reader`, or `train_input_reader` to evaluate on training data;
            None for the first `eval_input_reader`.
        sample_1_of_n: Reads every n-th record; None for the reader's `sample_1_of_n_examples`.
    """
    if input_config is None:
        if not pipeline_config.eval_input_reader:
            raise ConfigError.at("eval_input_reader", "is missing", "add one to evaluate")
        input_config = pipeline_config.eval_input_reader[0]
    require(pipeline_config, *_model_fields(pipeline_config), "eval_config.batch_size")
    path, model = _evaluated_path(input_config, pipeline_config), pipeline_config.model
    raise_errors([*check(input_config, path), *_check_context(input_config, model, path)])
    return build_eval_input_fn(pipeline_config, preprocess, input_config, sample_1_of_n, fault_log)


def build_eval_input_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    preprocess: Preprocess,
    reader: input_reader_pb2.InputReader,
    sample_1_of_n: Optional[int] = None,
    fault_log: Optional[FaultLog] = None,
    label_map: Optional[LabelMap] = None,
) -> InputFn:
    """`create_eval_input_fn` of a configuration and a reader without errors."""
    evaluation = pipeline_config.eval_config
    path = _evaluated_path(reader, pipeline_config)
    passes = 1 if path == TRAIN_READER else max(reader.num_epochs, 1)
    every = reader.sample_1_of_n_examples if sample_1_of_n is None else sample_1_of_n
    read_once = copy.deepcopy(reader)
    read_once.ClearField("cache")  # Training data may be evaluated, too: each image once.

    def input_fn(params: Optional[Params] = None, input_context: Any = None) -> tf.data.Dataset:
        batch_size, shard = _share(_batch_size(params, evaluation.batch_size), input_context)
        collate = _collate_options(
            pipeline_config,
            evaluated_model(pipeline_config),
            preprocess,
            max_boxes=reader.max_number_of_boxes,
            retain_original_image=evaluation.retain_original_images,
            retain_additional_channels=evaluation.retain_original_images
            and evaluation.retain_original_image_additional_channels,
            all_classes_labeled_by_default=evaluation.image_classes_field_map_empty_to_ones,
        )
        policy = _policy(reader, collate, label_map)
        examples = ExampleOptions(read_once, collate, policy, batch_size=batch_size)
        # A batch of one has no remainder: dropping it only makes the shape static.
        drops = batch_size == 1 or (reader.HasField("drop_remainder") and reader.drop_remainder)
        order = Order(DEFAULT_EVAL_SEED, passes, every, shard, drops)
        needs_masks = predicts_masks(pipeline_config.model)
        return _batches(examples, order, fault_log, InputPlace(), needs_masks)

    return input_fn


def _batches(
    examples: ExampleOptions,
    order: Order,
    fault_log: Optional[FaultLog],
    place: InputPlace,
    needs_masks: bool,
) -> tf.data.Dataset:
    """The input pipeline, step by step."""
    reader, log = examples.reader, FaultLog() if fault_log is None else fault_log

    # List the files, and find the place to start from.
    files = list_files(reader, examples.policy, log)
    _check_first_records(examples, files, needs_masks, place)
    if place.on_split is not None and order.shard[0] > 1:
        place.on_split(sharding.WorkerParts(order.shard[0], list(filter(None, files.streams))))
    fingerprint = order_fingerprint(reader, files, order)
    start = (place.cursor or DataCursor()).begin(order.seed, fingerprint)

    # AUTOTUNE may decode too few images at once; but another machine's CPUs are not known here.
    cpus = available_cpus() if place.has_python else tf.data.AUTOTUNE
    num_decoded = decoded_at_once(reader, examples.batch_size, cpus)
    steps = ExampleSteps(examples, start)
    guard: Union[Guard, GraphGuard] = (
        Guard(files.paths, examples.policy, log, steps.retry)
        if place.has_python
        else GraphGuard(files.paths)
    )

    # Shuffle the files, read them, shuffle their records, and repeat; records stay encoded.
    if place.data_service is None:
        records = record_dataset(reader, files, guard.read_rest, order, start)
        # The number of a record is the seed of its augmentation.
        dataset = tf.data.Dataset.zip((guard.numbers(start.count, num_decoded), records))
    else:
        dataset = splits.split_dataset(reader, files, guard.read_rest, order, start)
        dataset = dataset.map(lambda *record: (splits.number_of(*record), record))

    # Decode, augment, resize, pad: one map, which loses bad records. Mix what it returns.
    dataset = guard.decode(dataset, steps.read, num_decoded)
    if steps.mixes:
        dataset = steps.mix(dataset, num_decoded)

    @tf.autograph.experimental.do_not_convert
    def check(features: Features, labels: Features) -> Tuple[Features, Features]:
        return steps.without_names(guard.check(steps.finish_batch(features))), labels

    # Batch, report corrected boxes, prefetch. One call at a time, but beside the other stages.
    dataset = dataset.batch(examples.batch_size, drop_remainder=order.drop_remainder)
    dataset = dataset.map(check, num_parallel_calls=1, deterministic=True)
    if place.data_service is not None:
        dataset = splits.distributed(dataset, place.data_service)
    dataset = dataset.prefetch(reader.num_prefetch_batches)
    options = tf.data.Options()
    options.autotune.enabled = not place.has_python
    # The first images are read while TensorFlow saves a checkpoint and prepares the graph.
    options.experimental_warm_start = True
    return dataset.with_options(options)


def _check_first_records(
    examples: ExampleOptions, files: Files, needs_masks: bool, place: InputPlace
) -> None:
    """Raises an error if a sample of the records shows that label map or masks cannot be right."""
    reader = examples.reader
    check_class_names(reader, files.paths, examples.policy.label_map)
    if not files.paths or reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE:
        return
    if needs_masks:
        check_masks(files.paths)
    if reader.cache == input_reader_pb2.MEMORY:
        if not place.has_python:
            raise ConfigError.at(
                f"{TRAIN_READER}.cache",
                "is MEMORY, and the images are decoded on other machines",
                "leave it out",
            )
        num_bytes = sum(map(file_size, files.paths))
        check_cache(files.paths, num_bytes, examples.collate.resizer, reader.fast_jpeg)


def decoded_at_once(reader: input_reader_pb2.InputReader, batch_size: int, default: int) -> int:
    """Number of images decoded in parallel: `num_parallel_batches` of them, if it is set."""
    if reader.HasField("num_parallel_batches"):
        return max(1, reader.num_parallel_batches * batch_size)
    return default


def _collate_options(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    model: model_pb2.DetectionModel,
    preprocess: Preprocess,
    **options: Any,
) -> CollateOptions:
    """`model` has the resizer of the network's input; `options` are other fields."""
    return CollateOptions(
        preprocess=preprocess,
        resizer=make_resizer(_detector(model).image_resizer),
        num_classes=_detector(pipeline_config.model).num_classes,
        context_shape=context_shape(pipeline_config.model) or (None, None),
        **options,
    )


def _policy(
    reader: input_reader_pb2.InputReader, collate: CollateOptions, label_map: Optional[LabelMap]
) -> BadRecordPolicy:
    context_length = collate.context_shape[1]
    return make_policy(reader, collate.num_classes, collate.max_boxes, context_length, label_map)


def _evaluated_path(
    reader: input_reader_pb2.InputReader, pipeline_config: pipeline_pb2.TrainEvalPipelineConfig
) -> str:
    """Path of the reader of an evaluation; a reader of the caller is an evaluation reader."""
    paths = {f"eval_input_reader[{i}]": r for i, r in enumerate(pipeline_config.eval_input_reader)}
    paths[TRAIN_READER] = pipeline_config.train_input_reader
    # Equal readers, of a copied configuration for example, only after this very reader.
    same = [path for path, each in paths.items() if each is reader]
    equal = [path for path, each in paths.items() if each == reader]
    return next(iter(same + equal), "eval_input_reader")


def _detector(model: model_pb2.DetectionModel) -> Any:
    """The message of the detector, which has num_classes and image_resizer."""
    return getattr(model, str(model.WhichOneof("model")))


def _batch_size(params: Optional[Any], configured: int) -> int:
    override = params.get("batch_size") if params is not None else None
    size = configured if override is None else int(override)
    if size < 1:
        raise ValueError(f"batch_size is {size}; it must be positive")
    return size


def _share(
    batch_size: int, input_context: Any, shard: sharding.Shard = sharding.WHOLE
) -> Tuple[int, sharding.Shard]:
    """Batch size of one replica, and its part of the records."""
    if input_context is None:
        return batch_size, shard
    per_replica = input_context.get_per_replica_batch_size(batch_size)
    return per_replica, (input_context.num_input_pipelines, input_context.input_pipeline_id)
