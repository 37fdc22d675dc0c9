"""Rules for TPU about training and its input: one synchronous, fixed batch from Cloud Storage."""

from __future__ import annotations

from typing import Any, Iterator, Tuple

from estimator_det.config.facts import predicts_masks, readers
from estimator_det.config.paths import is_placeholder, named_paths
from estimator_det.config.problem import Problem
from estimator_det.config.tpu_model_rules import Config, Target, unless
from estimator_det.protos import input_reader_pb2

# From this batch size on, learning rates are so high that training needs a warm-up.
LARGE_BATCH = 64
TILE = 8  # TPUs pad a dimension of what they compute on to a multiple of this
LEAST_STATISTICS = 8  # images, below which batch norm's statistics are mostly noise
LEAST_READERS = 8
LEAST_PREFETCHED = 2
REMOTE = "gs://"
LABEL_FILES = (".label_map_path", ".label_hierarchy_path")


def check_training(config: Config, target: Target) -> Iterator[Problem]:
    """Problems of the training, of its readers, and of an evaluation on the TPU."""
    yield from _check_batch_size(config, target.num_shards)
    size = config.eval_config.batch_size
    if target.inference and (size % target.num_shards or not size):
        yield _uneven("eval_config.batch_size", size, target.num_shards, safe=True)
    yield from _check_warm_up(config)
    yield from _check_switches(config)
    for name, reader in readers(config):
        yield from _check_max_boxes(config, name, reader)
        if name == "train_input_reader":
            yield from _check_reading(config)
        if name == "train_input_reader" or target.inference:
            yield from _check_reader(config, name, reader)
    yield from _check_paths(config, target)


def _check_batch_size(config: Config, shards: int) -> Iterator[Problem]:
    path, size = "train_config.batch_size", config.train_config.batch_size
    if size % shards or not size:
        yield _uneven(
            path, size, shards, "or choose another --num_shards; scale the learning rate too"
        )
        return
    per_core = size // shards
    ssd = config.model.ssd
    trains_batch_norm = config.model.HasField("ssd") and not ssd.freeze_batchnorm
    is_synchronous = ssd.feature_extractor.conv_hyperparams.HasField("sync_batch_norm")
    if trains_batch_norm and not is_synchronous and per_core < LEAST_STATISTICS:
        yield Problem(
            "advice",
            path,
            f"gives batch norm the statistics of {per_core} images only",
            "use sync_batch_norm in conv_hyperparams, which takes those of all cores",
        )
    elif per_core % TILE:
        yield Problem(
            "advice",
            path,
            f"gives {per_core} images to each core, which the TPU pads to a multiple of {TILE}",
            f"a multiple of {TILE * shards} wastes nothing",
        )


def _uneven(path: str, size: int, shards: int, remedy: str = "", safe: bool = False) -> Problem:
    edit = f"{path}={max(1, round(size / shards)) * shards}"
    text = f"{size} images do not divide by {shards} cores"
    return Problem("error", path, text, remedy, (edit,), safe)


def _check_warm_up(config: Config) -> Iterator[Problem]:
    train = config.train_config
    kind = train.optimizer.WhichOneof("optimizer")
    rates: Any = getattr(train.optimizer, kind).learning_rate if kind else None
    schedule = rates.WhichOneof("learning_rate") if kind else None
    if train.batch_size < LARGE_BATCH or schedule is None:
        return
    path, rate = f"train_config.optimizer.{kind}.learning_rate", getattr(rates, schedule)
    edits, remedy = _warm_up_edits(path, schedule, rate, max(train.num_steps, 1))
    if edits:
        yield Problem(
            "warning",
            f"{path}.{schedule}",
            f"has no warm-up, without which a batch of {train.batch_size} easily diverges",
            remedy,
            edits,
        )


def _warm_up_edits(path: str, schedule: str, rate: Any, steps: int) -> Tuple[Tuple[str, ...], str]:
    """Assignments that add a warm-up, and what to mind; none if the schedule has one."""
    here = f"{path}.{schedule}"
    base = getattr(rate, "learning_rate", 0.0) or getattr(rate, "initial_learning_rate", 0.0)
    if schedule == "manual_step_learning_rate" and rate.schedule:
        return () if rate.warmup else (f"{here}.warmup=true",), (
            "the rate then rises from initial_learning_rate to the first of the schedule: put an "
            "entry with the full rate first"
        )
    if schedule == "cosine_decay_learning_rate":
        name, has_one = "warmup", rate.warmup_steps
        base, steps = rate.learning_rate_base, rate.total_steps
    elif schedule == "exponential_decay_learning_rate":
        name, has_one = "burnin", rate.burnin_steps and rate.burnin_learning_rate
    else:
        return (
            f"{path}={{ cosine_decay_learning_rate {{ learning_rate_base: {base:g} "
            f"total_steps: {steps} warmup_learning_rate: {base / 3:g} "
            f"warmup_steps: {max(1, steps // 20)} }} }}",
        ), "choose the base rate for the batch size"
    edits = (
        f"{here}.{name}_steps={max(1, steps // 20)}",
        f"{here}.{name}_learning_rate={base / 3:g}",
    )
    return () if has_one else edits, "a twentieth of the steps is usual"


def _check_switches(config: Config) -> Iterator[Problem]:
    yield from unless(
        config,
        "train_config.use_bfloat16=true",
        "the network in bfloat16 takes half the memory and is faster; losses and statistics of "
        "batch norm stay in float32",
        "advice",
        safe=False,
    )
    yield from unless(
        config,
        "train_config.summarize_gradients=false",
        "summaries cannot be written from within a TPU's train step",
        remedy="losses, learning rate and the norm of the gradients reach TensorBoard anyway",
    )
    yield from unless(
        config,
        "train_config.retain_original_images=false",
        "the host makes every image twice, and the TPU has no use for the second",
        "warning",
    )
    if config.train_config.recompute == config.train_config.ON:
        yield Problem(
            "warning",
            "train_config.recompute",
            "has no effect on a TPU, whose compiler decides what to compute again",
            edits=("train_config.recompute=AUTO",),
            safe=True,
        )
    model = config.model
    ssd_without = model.HasField("ssd") and not model.ssd.HasField("mask_head_config")
    if ssd_without or (model.HasField("faster_rcnn") and not predicts_masks(model)):
        yield from unless(
            config,
            "train_input_reader.load_instance_masks=false",
            f"{config.train_input_reader.max_number_of_boxes} masks of the image's size travel "
            "with every image, and the model predicts none",
            "warning",
        )


def _check_max_boxes(
    config: Config, name: str, reader: input_reader_pb2.InputReader
) -> Iterator[Problem]:
    path, most = f"{name}.max_number_of_boxes", reader.max_number_of_boxes
    if reader.HasField("max_number_of_boxes"):
        return
    train = config.train_config
    if name == "train_input_reader" and train.HasField("max_number_of_boxes"):  # its older place
        most = train.max_number_of_boxes
    yield Problem(
        "warning",
        path,
        f"is not set: boxes beyond {most} in an image are cut off",
        "set it to what the records need; memory for targets grows with it",
        (f"{path}={most}",),
        safe=True,
    )


def _check_reader(
    config: Config, name: str, reader: input_reader_pb2.InputReader
) -> Iterator[Problem]:
    """Batches that are not whole, and texts, which the host makes and a TPU does not take."""
    for field in ("include_source_id", "load_context_image_ids"):
        why = "a TPU takes numbers only, and this is text"
        yield from unless(config, f"{name}.{field}=false", why, "warning")
    edit = f"{name}.drop_remainder=true"
    if name == "train_input_reader":
        yield from unless(config, edit, "the last batch is smaller than the others")
    elif not (reader.HasField("drop_remainder") and reader.drop_remainder):
        yield Problem(
            "warning",
            f"{name}.drop_remainder",
            "is not true: a TPU takes whole batches only, so that images of the last one are "
            "not evaluated",
            "or take a batch size that divides the number of images",
            (edit,),
        )


def _check_reading(config: Config) -> Iterator[Problem]:
    """Problems of an input pipeline that does not keep up with the TPU."""
    reader, batch = config.train_input_reader, config.train_config.batch_size
    for field, least, why in (
        ("num_readers", LEAST_READERS, "few files are read at once"),
        ("num_prefetch_batches", LEAST_PREFETCHED, "the TPU waits for its next batch"),
    ):
        value, path = getattr(reader, field), f"train_input_reader.{field}"
        if 0 <= value < least:
            text, edit = f"is {value}: {why}", f"{path}={least}"
            yield Problem("warning", path, text, edits=(edit,), safe=True)
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
            "split the records over many files and give a pattern, such as "
            "train.record-?????-of-00100",
        )


def _check_paths(config: Config, target: Target) -> Iterator[Problem]:
    for field, path in (("--model_dir", target.model_dir or ""), *named_paths(config)):
        # These are read by the program itself, wherever it runs.
        anywhere = target.local_files or field.endswith(LABEL_FILES)
        if is_placeholder(path):
            yield Problem("placeholder", field, f"is still {path!r}", edits=(f"{field}={REMOTE}…",))
        elif path and not path.startswith(REMOTE) and not anywhere:
            edit = f"{field}={REMOTE}YOUR_BUCKET/…"
            remedy = (
                "copy it there (gsutil cp), or check with --local_files if the TPU's own machine "
                "has it"
            )
            is_option = field.startswith("--")
            yield Problem(
                "error",
                field,
                f"{path!r} is not in Cloud Storage, where the machine of the TPU reads and writes",
                f"give a folder {REMOTE}YOUR_BUCKET/…" if is_option else remedy,
                () if is_option else (edit,),
            )
