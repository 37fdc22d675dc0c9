"""Static checks of a pipeline configuration: what would stop a run or make it useless.

Nothing is built and TensorFlow is not imported. Names of components are not checked here;
`model_fn.checks.names` asks the registries for them.
"""

from __future__ import annotations

import copy
import glob
import os
import re
import sys
from typing import Any, Iterator, List, Sequence, Tuple

from google.protobuf.descriptor import FieldDescriptor

from estimator_det.config.assignments import set_value
from estimator_det.config.check_evaluation import check_evaluation
from estimator_det.config.check_model import check_context_reader, check_model, readers
from estimator_det.config.field_rules import (
    check_fields,
    check_ranges,
    no_effect,
    non_default_fields,
)
from estimator_det.config.files import is_remote
from estimator_det.config.problem import Problem, error, warning
from estimator_det.config.text import entries, is_repeated, nearest
from estimator_det.console.printing import quoted
from estimator_det.protos import input_reader_pb2, optimizer_pb2, pipeline_pb2

Config = pipeline_pb2.TrainEvalPipelineConfig

CHECKPOINT_FIELD = "train_config.fine_tune_checkpoint"
# Texts in sample configurations in place of a path of the user; the second one in those for TPU.
PLACEHOLDER = "PATH_TO_BE_CONFIGURED"
PLACEHOLDERS = (PLACEHOLDER, "YOUR_BUCKET")
_ENDLESS = sys.maxsize  # steps of a training that has no last one
CHECKPOINT_TYPES = ("classification", "detection", "full")
# Fields of train_config without effect outside a cluster.
FOR_CLUSTER = ("replicas_to_aggregate", "startup_delay_steps", "sync_replicas")
INTEGER_BITS = 8  # bits of the integers that TFLite computes with
# Fields of steps that contain ids of the label map.
LABEL_FIELDS = {
    "drop_label_probabilistically": ("label",),
    "remap_labels": ("original_labels", "new_label"),
}


def check(config: Config, *, check_files: bool = True) -> List[Problem]:
    """Everything that is wrong with `config`, as far as it shows without building the model.

    Errors come first. With `check_files`, local records and checkpoints must exist; label maps are
    for `model_fn.checks.files`.
    """
    problems = [
        *check_ranges(config),
        *check_model(config),
        *_check_training(config),
        *_check_readers(config),
        *check_evaluation(config),
        *_check_quantization(config),
        *_check_placeholders(config),
        *check_fields(config),
    ]
    if check_files:
        problems += _check_paths(config)
    return sorted(problems, key=lambda problem: problem.severity != "error")


def named_paths(config: Config) -> Iterator[Tuple[str, str]]:
    """(field, path) of the checkpoint, label maps, hierarchies and input paths that are set."""
    if config.train_config.fine_tune_checkpoint:
        yield CHECKPOINT_FIELD, config.train_config.fine_tune_checkpoint
    for name, reader in readers(config):
        if reader.label_map_path:
            yield f"{name}.label_map_path", reader.label_map_path
        if reader.label_hierarchy_path:
            yield f"{name}.label_hierarchy_path", reader.label_hierarchy_path
        for index, pattern in enumerate(reader.tf_record_input_reader.input_path):
            yield f"{name}.tf_record_input_reader.input_path[{index}]", pattern


def _check_training(config: Config) -> Iterator[Problem]:
    if not config.HasField("train_config"):
        yield error("train_config", "is missing", "add train_config { batch_size, optimizer, … }")
        return
    train = config.train_config
    if train.num_steps == 0 and not config.train_input_reader.num_epochs:
        yield warning(
            "train_config.num_steps",
            "is 0, and train_input_reader.num_epochs is not set: training never ends",
            "set one of them, or stop the run yourself",
        )
    for index, step in enumerate(train.data_augmentation_options):
        name = step.WhichOneof("preprocessing_step")
        stop = getattr(getattr(step, name), "stop_at_step", 0) if name else 0
        if 0 < train.num_steps <= stop:
            yield no_effect(
                f"train_config.data_augmentation_options[{index}].{name}.stop_at_step",
                f"training ends at step {train.num_steps}",
            )
    if train.use_bfloat16:
        yield no_effect("train_config.use_bfloat16", "only a TPU computes in bfloat16")
    for name in non_default_fields(train, FOR_CLUSTER):
        yield no_effect(f"train_config.{name}", "it is for a cluster with parameter servers")
    yield from _check_optimizer(train.optimizer, train.num_steps)
    yield from _check_fine_tuning(config)
    kind = config.model.WhichOneof("model")
    if kind is not None:
        num_classes = getattr(getattr(config.model, kind), "num_classes", 0)
        yield from check_augmentation(train.data_augmentation_options, num_classes)
    for name in ("freeze_variables", "update_trainable_variables"):
        for index, pattern in enumerate(getattr(train, name)):
            try:
                re.compile(pattern)
            except re.error as failure:
                yield error(
                    f"train_config.{name}[{index}]",
                    f"{quoted(pattern)} is not a regular expression: {failure}",
                    "variable names are matched with Python's re; escape special characters",
                )
    if train.use_multiclass_scores and not config.train_input_reader.load_multiclass_scores:
        yield error(
            "train_config.use_multiclass_scores",
            "is true, but the training reader does not load the scores",
            "set train_input_reader.load_multiclass_scores=true",
        )


def _check_optimizer(optimizer: optimizer_pb2.Optimizer, num_steps: int) -> Iterator[Problem]:
    path = "train_config.optimizer"
    kind = optimizer.WhichOneof("optimizer")
    if kind is None:
        yield error(
            path,
            "no optimizer is chosen",
            "add rms_prop_optimizer, momentum_optimizer or adam_optimizer",
        )
        return
    rate = getattr(optimizer, kind).learning_rate
    path = f"{path}.{kind}.learning_rate"
    schedule = rate.WhichOneof("learning_rate")
    if schedule is None:
        yield error(
            path,
            "no learning rate schedule is chosen",
            f"for example --set {path}.constant_learning_rate.learning_rate=0.002",
        )
        return
    path = f"{path}.{schedule}"
    last = num_steps or _ENDLESS
    if schedule == "exponential_decay_learning_rate":
        yield from _check_exponential(rate.exponential_decay_learning_rate, path, last)
    elif schedule == "manual_step_learning_rate":
        yield from _check_manual_steps(rate.manual_step_learning_rate, path, last)
    elif schedule == "cosine_decay_learning_rate":
        yield from _check_cosine(rate.cosine_decay_learning_rate, path, last)


def _check_exponential(
    schedule: optimizer_pb2.ExponentialDecayLearningRate, path: str, num_steps: int
) -> Iterator[Problem]:
    yield from _check_warmup(schedule.burnin_steps, f"{path}.burnin_steps", num_steps)
    if schedule.staircase and num_steps < schedule.decay_steps:
        yield warning(
            f"{path}.decay_steps",
            f"the rate stays {schedule.initial_learning_rate:g}: its first decay is at step "
            f"{schedule.decay_steps}, but training stops at {num_steps}",
            "train with --rescale_schedule or lower decay_steps, unless this is intended",
        )


def _check_manual_steps(
    schedule: optimizer_pb2.ManualStepLearningRate, path: str, num_steps: int
) -> Iterator[Problem]:
    steps = [entry.step for entry in schedule.schedule]
    if any(later <= earlier for earlier, later in zip([0, *steps], steps)):
        yield error(
            f"{path}.schedule",
            f"its steps {steps} do not increase from above 0",
            "sort them, each step once",
        )
    late = [step for step in steps if step >= num_steps]
    if late:
        yield warning(
            f"{path}.schedule",
            f"its steps {late} are never reached, because training stops at {num_steps}",
            "train with --rescale_schedule or lower them, unless this is intended",
        )


def _check_cosine(
    schedule: optimizer_pb2.CosineDecayLearningRate, path: str, num_steps: int
) -> Iterator[Problem]:
    if schedule.total_steps < schedule.warmup_steps:
        yield error(
            f"{path}.warmup_steps",
            f"{schedule.warmup_steps} are more than the total of {schedule.total_steps} steps",
            "lower warmup_steps or raise total_steps",
        )
    else:
        yield from _check_warmup(schedule.warmup_steps, f"{path}.warmup_steps", num_steps)
    if schedule.warmup_steps and schedule.learning_rate_base < schedule.warmup_learning_rate:
        yield error(
            f"{path}.warmup_learning_rate",
            f"{schedule.warmup_learning_rate:g} is above the base rate "
            f"{schedule.learning_rate_base:g}",
            "lower warmup_learning_rate",
        )
    total = schedule.total_steps
    if num_steps not in (_ENDLESS, total):
        schedule_text = f"the learning-rate schedule ends at step {total}"
        if total < num_steps:
            schedule_text = f"the learning rate is 0 from step {total} on"
        rescaling = f"train with --num_train_steps {num_steps} --rescale_schedule"
        remedy = f"{rescaling}, or --set {path}.total_steps={num_steps}"
        if schedule.warmup_steps > num_steps:
            remedy += f" --set {path}.warmup_steps={num_steps // 10}"
        yield warning(
            f"{path}.total_steps", f"{schedule_text}, but training stops at {num_steps}", remedy
        )


def _check_warmup(warmup_steps: int, path: str, num_steps: int) -> Iterator[Problem]:
    if warmup_steps >= num_steps:
        yield warning(
            path,
            f"training stops at step {num_steps}, within the {warmup_steps} steps of warm-up",
            "lower it, or train for longer",
        )


def _check_fine_tuning(config: Config) -> Iterator[Problem]:
    train = config.train_config
    kind = train.fine_tune_checkpoint_type
    path = "train_config.fine_tune_checkpoint_type"
    if kind and kind not in CHECKPOINT_TYPES:
        what = f"is not known{nearest(kind, list(CHECKPOINT_TYPES))}"
        if kind == "fine_tune":  # the reference has it, for TensorFlow 2 alone
            what = "is not supported yet"
        yield error(path, f"{quoted(kind)} {what}", f"use one of {', '.join(CHECKPOINT_TYPES)}")
    # The older field that says the same is reported among the deprecated ones.
    if train.fine_tune_checkpoint and not (kind or train.HasField("from_detection_checkpoint")):
        yield warning(path, "is not set; 'classification' is used", f"--set {path}=classification")


def check_reader(reader: Any, name: str) -> Iterator[Problem]:
    """Reports fields of an `InputReader` that need another one, or exclude it."""
    for field, needed in (
        ("expand_labels_hierarchy", "label_map_path"),
        ("use_keypoint_label_map", "label_map_path"),
        ("use_keypoint_label_map", "num_keypoints"),
    ):
        if getattr(reader, field) and not getattr(reader, needed):
            yield error(f"{name}.{field}", f"needs {name}.{needed}", "set it")
    for field in ("load_instance_masks", "num_additional_channels"):
        if reader.fast_jpeg and getattr(reader, field):
            message = f"does not go with {field}, which needs all pixels"
            yield error(f"{name}.fast_jpeg", message, "remove one of them")
    if reader.cache == input_reader_pb2.MEMORY:
        path = f"{name}.cache"
        if reader.num_additional_channels:
            yield error(path, "does not go with num_additional_channels", "remove one of them")
        if reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE:
            yield error(path, "does not go with sequences of images", "leave it out")
        if name.startswith("eval"):
            yield warning(path, "has no effect: an evaluation reads each image once", "remove it")


def _check_readers(config: Config) -> Iterator[Problem]:
    for name, reader in readers(config):
        kind = reader.WhichOneof("input_reader")
        path = f"{name}.tf_record_input_reader.input_path"
        if kind == "external_input_reader":
            continue
        inputs = list(reader.tf_record_input_reader.input_path)
        if not inputs or not all(inputs):
            yield error(path, "no input path is given", f"--set {path}=data/train-*.record")
        weights = len(reader.sample_from_datasets_weights)
        if weights and weights != len(inputs):
            yield error(
                f"{name}.sample_from_datasets_weights",
                f"{weights} weights for {len(inputs)} input paths",
                "give one weight to each input path, or none",
            )
        if not reader.label_map_path:
            yield warning(
                f"{name}.label_map_path",
                "is not set: classes have no names, and class names in records cannot be read",
                f"--set {name}.label_map_path=label_map.pbtxt",
            )
        yield from check_reader(reader, name)
        yield from check_context_reader(reader, config.model, name)
    if not config.HasField("train_input_reader"):
        yield error(
            "train_input_reader",
            "is missing",
            "add train_input_reader { tf_record_input_reader { input_path } label_map_path }",
        )
    if not config.eval_input_reader:
        yield warning(
            "eval_input_reader",
            "is missing: nothing can be evaluated",
            "add eval_input_reader { tf_record_input_reader { input_path } label_map_path }",
        )


def _check_placeholders(config: Config) -> Iterator[Problem]:
    for path, *_, value in entries(config):
        if isinstance(value, str) and PLACEHOLDER in value:
            yield error(path, f"is still the placeholder {quoted(value)}", f"--set {path}=…")


def is_placeholder(text: str) -> bool:
    """Whether a path is one that a sample configuration leaves to its user."""
    return any(mark in text for mark in PLACEHOLDERS)


def without_placeholders(config: Config) -> Config:
    """A copy without the paths that a sample configuration leaves to its user.

    For checks that read files.
    """
    changed = copy.deepcopy(config)
    for _, parent, field, value in list(entries(changed)):
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and is_placeholder(value):
            if is_repeated(field):
                getattr(parent, field.name).remove(value)
            else:
                parent.ClearField(field.name)
    return changed


def missing_files(config: Config) -> List[str]:
    """The fields whose local files do not exist: checkpoint, label maps, hierarchies, records."""
    return [field for field, path in named_paths(config) if _missing(path)]


def resolve_paths(config: Config, folder: str) -> Config:
    """A copy in which files that only exist relative to `folder` have paths that contain it."""
    changed = copy.deepcopy(config)
    for field, path in named_paths(config):
        beside = os.path.join(folder, path)
        if _missing(path) and not _missing(beside) and not is_remote(folder):
            set_value(changed, field, beside)
    return changed


def _missing(pattern: str) -> bool:
    """Whether no local file matches; remote and placeholder paths count as present."""
    if not pattern or is_remote(pattern) or PLACEHOLDER in pattern:
        return False
    # A checkpoint is named by the prefix of its files.
    paths = (pattern, f"{pattern}.index")
    return not any(map(os.path.exists, paths)) and not glob.glob(pattern)


def _check_paths(config: Config) -> Iterator[Problem]:
    for field, path in named_paths(config):
        if not _missing(path):
            continue
        if field == CHECKPOINT_FIELD:
            yield error(
                field,
                f"there is no checkpoint {quoted(path)}",
                "give its prefix, without .index or .data-…; empty to start from scratch",
            )
        elif ".input_path[" in field:
            yield error(
                field,
                f"no file matches {quoted(path)} (from {os.getcwd()}, or beside the file)",
                "correct the path; patterns such as train-*.record are allowed",
            )


def check_augmentation(steps: Sequence[Any], num_classes: int) -> Iterator[Problem]:
    """An error for each label in a `PreprocessingStep` that is not a class of the model."""
    for index, step in enumerate(steps):
        name = step.WhichOneof("preprocessing_step")
        for field in LABEL_FIELDS.get(name, ()):
            value = getattr(getattr(step, name), field)
            for label in [value] if isinstance(value, int) else value:
                if label > num_classes >= 1:
                    yield error(
                        f"train_config.data_augmentation_options[{index}].{name}.{field}",
                        f"{label} is not a class of the model, which has {num_classes}",
                        f"use ids of the label map from 1 to {num_classes}",
                    )


def _check_quantization(config: Any) -> Iterator[Problem]:
    """Warnings for a `graph_rewriter` that changes nothing, or not what it seems to."""
    if not config.HasField("graph_rewriter"):
        return
    path = "graph_rewriter.quantization"
    options = config.graph_rewriter.quantization
    if not config.graph_rewriter.HasField("quantization"):
        yield no_effect("graph_rewriter", "quantization is not set")
        return
    num_steps = config.train_config.num_steps
    if 0 < num_steps <= options.delay:
        yield warning(
            f"{path}.delay",
            f"is {options.delay}: training ends at step {num_steps}, before tensors are rounded, "
            "and only ranges are learned",
            "set it to a step before the end",
        )
    for field in ("weight_bits", "activation_bits"):
        bits = getattr(options, field)
        if bits != INTEGER_BITS:
            yield warning(
                f"{path}.{field}",
                f"is {bits}: TFLite computes with {INTEGER_BITS} bits",
                f"set it to {INTEGER_BITS}, unless this is an experiment",
            )
