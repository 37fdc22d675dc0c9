"""Changes to a pipeline configuration from outside of its file.

Three ways, from coarse to fine: `merge_text` (a whole configuration text, as `--config_override`
takes it), `override` (the settings that programs and notebooks change most, by name) and
`apply_overrides` (any field by its path, as `--set` takes it). Each returns a changed copy.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from google.protobuf.message import Message

from estimator_det.config.assignments import assign, set_value
from estimator_det.config.field_rules import range_of
from estimator_det.config.text import entries, is_repeated, nearest, parse_message
from estimator_det.errors import ConfigError, UsageError
from estimator_det.protos import optimizer_pb2, pipeline_pb2

Config = pipeline_pb2.TrainEvalPipelineConfig


def merge_text(config: Config, text: str) -> Config:
    """`config` with the fields of a second configuration text merged over it.

    Singular fields replace, messages merge field by field, repeated fields append, and a member
    of a oneof group takes the place of another: protocol buffer merging, as in the Object Detection
    API.
    """
    changed = copy.deepcopy(config)
    changed.MergeFrom(parse_message(text, Config(), "config_override"))
    return changed


def apply_overrides(config: Config, assignments: Sequence[str]) -> Config:
    """`config` with assignments such as `train_config.batch_size=8` carried out in order.

    See `estimator_det.config.assignments` for the language.
    """
    changed = copy.deepcopy(config)
    for text in assignments:
        assign(changed, text)
    return changed


def set_values(config: Config, values: Iterable[Tuple[str, Any]]) -> Config:
    """`config` with pairs (path of a field, value); unlike `--set`, a text is taken as it is."""
    changed = copy.deepcopy(config)
    for path, value in values:
        set_value(changed, path, value)
    return changed


def override(config: Config, **settings: Any) -> Config:
    """`config` with some settings changed by name; a setting of None is left as it is.

    The settings:
        batch_size: Training batch size over all replicas, at least 1.
        eval_batch_size: Evaluation batch size, at least 1.
        num_train_steps: Steps to train; 0 trains until it is stopped.
        learning_rate: Initial (base) rate; the later rates of its schedule keep their proportion.
        momentum_optimizer_value: Momentum of the momentum or RMSProp optimizer.
        use_bfloat16: Whether the network computes in bfloat16 on TPU.
        fine_tune_checkpoint: Checkpoint prefix to start from; "" starts from scratch.
        fine_tune_checkpoint_type: "classification", "detection" or "full".
        label_map_path: Label map of all readers.
        train_input_path: One path or pattern of training records, or a list of them.
        eval_input_path: The same for every evaluation reader.
        mask_type: Name of an `InstanceMaskType`, for all readers.
        sample_1_of_n_eval_examples: Evaluate every n-th record only.
        eval_num_epochs: Passes over the evaluation records; 1 for one full evaluation.
        eval_with_moving_averages: Whether to evaluate the averaged variables.
        retain_original_images: Whether evaluation keeps the images as read, for pictures.
        retain_original_image_additional_channels: The same for channels beyond RGB.
        num_classes: Foreground classes of the model.
        classification_localization_weight_ratio: Weight of the classification loss; the weight of
            the localization loss becomes 1.
    """
    changed = copy.deepcopy(config)
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise UsageError(
                f"there is no setting {name!r}{nearest(name, list(_SETTINGS)) or '.'} Known: "
                f"{', '.join(sorted(_SETTINGS))}; any other field: apply_overrides"
            )
        # Callers pass flags as they are; a flag that is not given is None.
        if value is None:
            continue
        try:
            if name in _SETTERS:
                _SETTERS[name](changed, value)
            else:
                _set_paths(changed, _PATHS[name], value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"setting {name}={value!r}: {error}") from error
    return changed


def _set_paths(config: Config, paths: Sequence[str], value: Any) -> None:
    """Sets the fields at some paths, as `_PATHS` has them."""
    if paths[0].startswith("eval_input_reader.") and not config.eval_input_reader:
        # The default of the schema shuffles, which an evaluation does not need.
        reader = config.eval_input_reader.add(shuffle=False)
        reader.label_map_path = config.train_input_reader.label_map_path
    for path in paths:
        *above, field = path.split(".")
        messages: List[Message] = [config]
        for step in above:
            messages = [each for message in messages for each in _entered(message, step)]
        for message in messages:
            _set_field(message, field, value)


def _entered(message: Message, step: str) -> Sequence[Message]:
    """The messages one step of a path further."""
    if step == _CHOSEN:
        (group,) = message.DESCRIPTOR.oneofs
        step = _chosen(message, group.name)
    value = getattr(message, step)
    return list(value) if is_repeated(message.DESCRIPTOR.fields_by_name[step]) else [value]


def _chosen(message: Message, group: str) -> str:
    kind = message.WhichOneof(group)
    if kind is None:
        raise ValueError(f"{message.DESCRIPTOR.name} has no {group.replace('_', ' ')} chosen")
    return kind


def _set_field(message: Message, name: str, value: Any) -> None:
    """Sets a number in its range, a switch, a text, the name of a value, or a list of paths."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise ValueError(f"{message.DESCRIPTOR.name} has no {name}")
    if is_repeated(field):
        paths = [value] if isinstance(value, (str, os.PathLike)) else list(value)
        if not paths:
            raise ValueError("needs at least one path")
        getattr(message, name)[:] = [os.fspath(path) for path in paths]
        return
    if field.enum_type:
        known = list(field.enum_type.values_by_name)
        if value not in known:
            raise ValueError(f"must be one of {', '.join(known)}{nearest(value, known)}")
        value = field.enum_type.values_by_name[value].number
    allowed = range_of(field)
    if allowed and isinstance(value, (int, float)) and not allowed.contains(value):
        raise ValueError(f"allowed are {allowed.text()}")
    setattr(message, name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _set_loss_weight_ratio(config: Config, value: float) -> None:
    kind = config.model.WhichOneof("model")
    if kind == "ssd":
        # The ratio is defined with this weight at 1, like in the API.
        config.model.ssd.loss.localization_weight = 1.0
        config.model.ssd.loss.classification_weight = value
    elif kind == "faster_rcnn":
        config.model.faster_rcnn.second_stage_localization_loss_weight = 1.0
        config.model.faster_rcnn.second_stage_classification_loss_weight = value
    else:
        raise ValueError(f"is for ssd and faster_rcnn; the model is {kind or 'not chosen'}")


def _learning_rate(config: Config) -> optimizer_pb2.LearningRate:
    optimizer = config.train_config.optimizer
    rate: optimizer_pb2.LearningRate
    rate = getattr(optimizer, _chosen(optimizer, "optimizer")).learning_rate
    return rate


def _set_learning_rate(config: Config, value: float) -> None:
    rate = _learning_rate(config)
    kind = rate.WhichOneof("learning_rate")
    if kind == "constant_learning_rate":
        rate.constant_learning_rate.learning_rate = value
    elif kind == "exponential_decay_learning_rate":
        rate.exponential_decay_learning_rate.initial_learning_rate = value
    elif kind == "manual_step_learning_rate":
        manual = rate.manual_step_learning_rate
        ratio = _ratio(value, manual.initial_learning_rate)
        manual.initial_learning_rate = value
        # Later rates keep their proportion to the first one.
        for entry in manual.schedule:
            entry.learning_rate *= ratio
    elif kind == "cosine_decay_learning_rate":
        cosine = rate.cosine_decay_learning_rate
        ratio = _ratio(value, cosine.learning_rate_base)
        cosine.learning_rate_base = value
        # Else a lower base rate could begin below its own warm-up.
        cosine.warmup_learning_rate *= ratio
    else:
        raise ValueError("the optimizer has no learning rate schedule chosen")


def rescale_schedule(config: Config, num_steps: int) -> Config:
    """A copy with another number of steps, and a learning-rate schedule in the same proportion.

    In a shorter run, averages of weights and of batch norm are over fewer steps, too: else they
    would still contain their first values.
    """
    kind = config.train_config.optimizer.WhichOneof("optimizer")
    rate = getattr(config.train_config.optimizer, kind).learning_rate if kind else None
    if rate is None or rate.WhichOneof("learning_rate") is None:  # reported by `check`
        return override(config, num_train_steps=num_steps)
    # A cosine has its own length, which the run's may differ from; others are as long as the run.
    length = config.train_config.num_steps
    if rate.HasField("cosine_decay_learning_rate"):
        length = rate.cosine_decay_learning_rate.total_steps or length
    if not length:
        raise ConfigError.at(
            "train_config.num_steps",
            "is 0, so that a schedule has no proportion to it",
            "Set it to the number of steps that the schedule is made for",
        )
    # Warm-up and plateaus keep their share of the run.
    factor = num_steps / length
    changed = override(config, num_train_steps=num_steps)
    if factor < 1:
        _shorten_averages(changed, factor)
    rate = _learning_rate(changed)
    schedule = getattr(rate, _chosen(rate, "learning_rate"))
    for name in _STEPS_OF_SCHEDULES:
        if getattr(schedule, name, 0):
            setattr(schedule, name, max(1, round(getattr(schedule, name) * factor)))
    if rate.HasField("cosine_decay_learning_rate"):
        left = schedule.total_steps - 1  # the decay needs a step
        for name in ("warmup_steps", "hold_base_rate_steps"):
            if getattr(schedule, name) > left:
                setattr(schedule, name, left)
            left -= getattr(schedule, name)
    if rate.HasField("manual_step_learning_rate"):
        last = 0
        for entry in schedule.schedule:
            # Steps must rise, however short the training is.
            entry.step = last = max(last + 1, round(entry.step * factor))
    return changed


def _shorten_averages(config: Config, factor: float) -> None:
    def shorter(decay: float) -> float:
        return max(decay ** (1 / factor), min(decay, _LEAST_DECAY))

    for entry in entries(config.model):
        if entry.field.name == "batch_norm":
            entry.value.decay = shorter(entry.value.decay)
    optimizer = config.train_config.optimizer
    if optimizer.use_moving_average:
        optimizer.moving_average_decay = shorter(optimizer.moving_average_decay)


_LEAST_DECAY = 0.95  # An average over fewer than 20 steps is mostly noise.
_STEPS_OF_SCHEDULES = (
    "decay_steps", "burnin_steps", "total_steps", "warmup_steps", "hold_base_rate_steps",
)  # fmt: skip


def _ratio(new: float, old: float) -> float:
    if old == 0.0:
        raise ValueError("the schedule's initial rate is 0, so that nothing can be in proportion")
    return new / old


_CHOSEN = "*"  # in a path: the member of a message's oneof that is set

# Fields of a setting. A path through a repeated field is of each of its messages.
_PATHS: Dict[str, Tuple[str, ...]] = {
    "batch_size": ("train_config.batch_size",),
    "eval_batch_size": ("eval_config.batch_size",),
    "num_train_steps": ("train_config.num_steps",),
    "momentum_optimizer_value": ("train_config.optimizer.*.momentum_optimizer_value",),
    "use_bfloat16": ("train_config.use_bfloat16",),
    "fine_tune_checkpoint": ("train_config.fine_tune_checkpoint",),
    "fine_tune_checkpoint_type": ("train_config.fine_tune_checkpoint_type",),
    "label_map_path": ("train_input_reader.label_map_path", "eval_input_reader.label_map_path"),
    "train_input_path": ("train_input_reader.tf_record_input_reader.input_path",),
    "eval_input_path": ("eval_input_reader.tf_record_input_reader.input_path",),
    "mask_type": ("train_input_reader.mask_type", "eval_input_reader.mask_type"),
    "sample_1_of_n_eval_examples": ("eval_input_reader.sample_1_of_n_examples",),
    "eval_num_epochs": ("eval_input_reader.num_epochs",),
    "eval_with_moving_averages": ("eval_config.use_moving_averages",),
    "retain_original_images": ("eval_config.retain_original_images",),
    "retain_original_image_additional_channels": (
        "eval_config.retain_original_image_additional_channels",
    ),
    "num_classes": ("model.*.num_classes",),
}

_SETTERS: Dict[str, Callable[[Config, float], None]] = {
    "learning_rate": _set_learning_rate,
    "classification_localization_weight_ratio": _set_loss_weight_ratio,
}
_SETTINGS = (*_PATHS, *_SETTERS)
