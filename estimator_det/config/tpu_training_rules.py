"""Rules for TPU about training and its input: one synchronous, fixed batch from Cloud Storage."""

from __future__ import annotations

from typing import Any, Iterator, Tuple

from estimator_det.config.check import named_paths, readers
from estimator_det.config.problem import Problem
from estimator_det.config.tpu_rules import Config, Target, is_placeholder, rule, setting, unless

# From this batch size on, learning rates are so high that training needs a warm-up.
LARGE_BATCH = 64
TILE = 8  # TPUs pad a dimension of what they compute on to a multiple of this
LEAST_STATISTICS = 8  # images, below which batch norm's statistics are mostly noise
LEAST_READERS = 8
LEAST_PREFETCHED = 2
REMOTE = "gs://"
LABEL_FILES = (".label_map_path", ".label_hierarchy_path")


@rule("batch-size")
def _batch_size(config: Config, target: Target) -> Iterator[Problem]:
    train, shards = config.train_config, target.num_shards
    path = "train_config.batch_size"
    remedy = "or choose another --num_shards; scale the learning rate too"
    uneven = list(_uneven(path, train.batch_size, shards, remedy=remedy))
    if uneven:
        yield from uneven
        return
    per_core = train.batch_size // shards
    ssd = config.model.ssd
    learning = config.model.HasField("ssd") and not ssd.freeze_batchnorm
    alone = not ssd.feature_extractor.conv_hyperparams.HasField("sync_batch_norm")
    if learning and alone and per_core < LEAST_STATISTICS:
        yield Problem(
            "advice",
            path,
            f"gives batch norm the statistics of {per_core} images only",
            remedy="use sync_batch_norm in conv_hyperparams, which takes those of all cores",
        )
    elif per_core % TILE:
        yield Problem(
            "advice",
            path,
            f"gives {per_core} images to each core, which the TPU pads to a multiple of {TILE}",
            remedy=f"a multiple of {TILE * shards} wastes nothing",
        )


@rule("evaluation-batch")
def _evaluation_batch(config: Config, target: Target) -> Iterator[Problem]:
    if target.inference:
        size = config.eval_config.batch_size
        yield from _uneven("eval_config.batch_size", size, target.num_shards, safe=True)


def _uneven(path: str, size: int, shards: int, **details: Any) -> Iterator[Problem]:
    if size % shards or not size:
        edit = f"{path}={max(1, round(size / shards)) * shards}"
        text = f"{size} images do not divide by {shards} cores"
        yield Problem("error", path, text, edits=(edit,), **details)


@rule("warm-up")
def _warm_up(config: Config, _: Target) -> Iterator[Problem]:
    train = config.train_config
    kind = train.optimizer.WhichOneof("optimizer")
    if train.batch_size < LARGE_BATCH or kind is None:
        return
    rate = getattr(train.optimizer, kind).learning_rate
    schedule = rate.WhichOneof("learning_rate")
    if schedule is None or _warms_up(schedule, getattr(rate, schedule)):
        return
    path = f"train_config.optimizer.{kind}.learning_rate"
    edits, remedy = _warm_up_edits(path, schedule, getattr(rate, schedule), train.num_steps)
    yield Problem(
        "warning",
        f"{path}.{schedule}",
        f"has no warm-up, without which a batch of {train.batch_size} easily diverges",
        edits=edits,
        remedy=remedy,
    )


def _warms_up(schedule: str, rate: Any) -> bool:
    if schedule == "cosine_decay_learning_rate":
        return bool(rate.warmup_steps)
    if schedule == "manual_step_learning_rate":
        return bool(rate.warmup and rate.schedule)
    if schedule == "exponential_decay_learning_rate":
        return bool(rate.burnin_steps and rate.burnin_learning_rate)
    return False


def _warm_up_edits(path: str, schedule: str, rate: Any, steps: int) -> Tuple[Tuple[str, ...], str]:
    """Assignments that add a warm-up, and what to mind."""
    here = f"{path}.{schedule}"
    if schedule == "cosine_decay_learning_rate":
        return (
            f"{here}.warmup_steps={max(1, rate.total_steps // 20)}",
            f"{here}.warmup_learning_rate={rate.learning_rate_base / 3:g}",
        ), "a twentieth of the steps is usual"
    if schedule == "manual_step_learning_rate" and rate.schedule:
        return (f"{here}.warmup=true",), (
            "the rate then rises from initial_learning_rate to the first of the schedule: put an "
            "entry with the full rate first"
        )
    if schedule == "exponential_decay_learning_rate":
        return (
            f"{here}.burnin_steps={max(1, steps // 20)}",
            f"{here}.burnin_learning_rate={rate.initial_learning_rate / 3:g}",
        ), "a twentieth of the steps is usual"
    base = getattr(rate, "learning_rate", 0.0) or getattr(rate, "initial_learning_rate", 0.0)
    total = max(steps, 1)
    return (
        f"{path}={{ cosine_decay_learning_rate {{ learning_rate_base: {base:g} "
        f"total_steps: {total} warmup_learning_rate: {base / 3:g} "
        f"warmup_steps: {max(1, total // 20)} }} }}",
    ), "choose the base rate for the batch size"


setting(
    "bfloat16",
    "train_config.use_bfloat16=true",
    "the network in bfloat16 takes half the memory and is faster; losses and statistics of batch "
    "norm stay in float32",
    "advice",
    safe=False,
)
setting(
    "summaries",
    "train_config.summarize_gradients=false",
    "summaries cannot be written from within a TPU's train step",
    remedy="losses, learning rate and the norm of the gradients reach TensorBoard anyway",
)


@rule("max-boxes")
def _max_boxes(config: Config, _: Target) -> Iterator[Problem]:
    for name, reader in readers(config):
        path, most = f"{name}.max_number_of_boxes", reader.max_number_of_boxes
        if reader.HasField("max_number_of_boxes"):
            if most < 1:
                yield Problem(
                    "error",
                    path,
                    f"is {most}",
                    edits=(f"{path}=100",),
                    remedy="more boxes are cut off",
                )
            continue
        old = config.train_config
        if name == "train_input_reader" and old.HasField("max_number_of_boxes"):
            most = old.max_number_of_boxes
        yield Problem(
            "warning",
            path,
            f"is not set: boxes beyond {most} in an image are cut off",
            edits=(f"{path}={most}",),
            safe=True,
            remedy="set it to what the records need; memory for targets grows with it",
        )


@rule("whole-batches")
def _whole_batches(config: Config, target: Target) -> Iterator[Problem]:
    for name, reader in readers(config):
        path, training = f"{name}.drop_remainder", name == "train_input_reader"
        stated = reader.HasField("drop_remainder") and reader.drop_remainder
        if training:
            yield from unless(config, f"{path}=true", "the last batch is smaller than the others")
        elif target.inference and not stated:
            yield Problem(
                "warning",
                path,
                "is not true: a TPU takes whole batches only, so that images of the last one are "
                "not evaluated",
                edits=(f"{path}=true",),
                remedy="or take a batch size that divides the number of images",
            )


@rule("unused-features")
def _unused_features(config: Config, target: Target) -> Iterator[Problem]:
    """Text and second images, which the host makes and a TPU does not take."""
    for name, _ in readers(config):
        if name != "train_input_reader" and not target.inference:
            continue
        for field in ("include_source_id", "load_context_image_ids"):
            why = "a TPU takes numbers only, and this is text"
            yield from unless(config, f"{name}.{field}=false", why, "warning")
    yield from unless(
        config,
        "train_config.retain_original_images=false",
        "the host makes every image twice, and the TPU has no use for the second",
        "warning",
    )


@rule("masks")
def _masks(config: Config, _: Target) -> Iterator[Problem]:
    model = config.model
    ssd_without = model.HasField("ssd") and not model.ssd.HasField("mask_head_config")
    if ssd_without or (model.HasField("faster_rcnn") and model.faster_rcnn.number_of_stages < 3):
        yield from unless(
            config,
            "train_input_reader.load_instance_masks=false",
            f"{config.train_input_reader.max_number_of_boxes} masks of the image's size travel "
            "with every image, and the model predicts none",
            "warning",
        )


@rule("reading")
def _reading(config: Config, _: Target) -> Iterator[Problem]:
    """An input pipeline that keeps up with the TPU."""
    if not config.HasField("train_input_reader"):
        return
    reader, batch = config.train_input_reader, config.train_config.batch_size
    for field, least, why in (
        ("num_readers", LEAST_READERS, "few files are read at once"),
        ("num_prefetch_batches", LEAST_PREFETCHED, "the TPU waits for its next batch"),
    ):
        if 0 <= getattr(reader, field) < least:
            yield Problem(
                "warning",
                f"train_input_reader.{field}",
                f"is {getattr(reader, field)}: {why}",
                edits=(f"train_input_reader.{field}={least}",),
                safe=True,
            )
    if reader.shuffle and reader.shuffle_buffer_size < batch:
        path = "train_input_reader.shuffle_buffer_size"
        yield Problem(
            "warning",
            path,
            f"is {reader.shuffle_buffer_size}, less than a batch of {batch}: batches hardly differ "
            "between epochs",
            edits=(f"{path}={2 * batch}",),
            safe=True,
        )
    inputs = list(reader.tf_record_input_reader.input_path)
    if len(inputs) == 1 and not any(mark in inputs[0] for mark in "*?["):
        yield Problem(
            "advice",
            "train_input_reader.tf_record_input_reader.input_path[0]",
            f"{inputs[0]!r} is a single file, which a single reader reads",
            remedy="split the records over many files and give a pattern, such as "
            "train.record-?????-of-00100",
        )


@rule("paths")
def _paths(config: Config, target: Target) -> Iterator[Problem]:
    for field, path in (("--model_dir", target.model_dir or ""), *named_paths(config)):
        # These are read by the program itself, wherever it runs.
        anywhere = target.local_files or field.endswith(LABEL_FILES)
        if is_placeholder(path):
            yield Problem("placeholder", field, f"is still {path!r}", edits=(f"{field}={REMOTE}…",))
        elif path and not path.startswith(REMOTE) and not anywhere:
            folder = field.startswith("--")
            yield Problem(
                "error",
                field,
                f"{path!r} is not in Cloud Storage, where the machine of the TPU reads and writes",
                edits=() if folder else (f"{field}={REMOTE}YOUR_BUCKET/…",),
                remedy=f"give a folder {REMOTE}YOUR_BUCKET/…"
                if folder
                else "copy it there (gsutil cp), or check with --local_files if the TPU's own "
                "machine has it",
            )
