"""Draws images before and after one augmentation step, with boxes, masks and keypoints."""

from __future__ import annotations

import functools
import itertools
from typing import Any, List, Mapping, NamedTuple, Sequence

import numpy as np
from PIL import Image

from estimator_det.compat import failures, tf
from estimator_det.config.rules import check
from estimator_det.config.text import parse_message
from estimator_det.console.printing import quoted
from estimator_det.errors import UsageError, raise_errors
from estimator_det.protos import input_reader_pb2, preprocessor_pb2
from inputs.augment import AUGMENTATIONS, check_mixtures, make_steps
from inputs.augment.base import STEPS, AugmentationStep
from inputs.augment.mixing import ONLY_AFTER
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.checks.examine import examine_record
from inputs.decoding.decoder import make_decoder
from inputs.records import stream
from inputs.sample import Sample
from model_fn.drawing import batch_grid
from model_fn.drawing.batch_grid import GridCell
from model_fn.drawing.boxes import rgb

SHUFFLED = 1000  # records from which the drawn ones are chosen


def find_step(text: str, configured: Sequence[Any]) -> Any:
    """The `PreprocessingStep` that a text means: `NAME` or `NAME: SETTINGS`.

    With settings it is the step with these. Without them it is the first of `configured` steps with
    this name, or else the step with its defaults.
    """
    name, has_settings, settings = (part.strip() for part in text.partition(":"))
    if name not in AUGMENTATIONS and name != "custom":  # a step of a plug-in
        what, remedy = AUGMENTATIONS.refusal(name)
        raise UsageError(f"augmentation {what}. Remedy: {remedy}")
    if not has_settings:
        for step in configured:
            if step.WhichOneof("preprocessing_step") == name:
                return step
    step = preprocessor_pb2.PreprocessingStep()
    message = getattr(step, name)
    message.SetInParent()
    parse_message(settings, message, f"settings of augmentation {quoted(name)}")
    return step


class Samples(NamedTuple):
    """Decoded records."""

    samples: List[Sample]  # pixels as stored, as in training
    num_unusable: int  # records before the last of the samples
    rotated: List[str]  # source ids of samples whose EXIF data rotate the image


def read_samples(reader: input_reader_pb2.InputReader, count: int, seed: int) -> Samples:
    """The first `count` samples of a reader in random order, or all of them."""
    decode = make_decoder(reader)
    paths = stream.list_files(reader).paths
    files = (tf.data.TFRecordDataset(path, stream.compression_of(path)) for path in paths)
    records = functools.reduce(tf.data.Dataset.concatenate, files)
    policy = make_policy(reader)
    samples: List[Sample] = []
    rotated: List[str] = []
    num_unusable, last_error = 0, ""
    for serialized in records.shuffle(SHUFFLED, seed):
        try:
            samples.append(decode(serialized, tf.constant([seed, len(samples)], tf.int64)))
        except tf.errors.InvalidArgumentError as error:
            num_unusable, last_error = num_unusable + 1, failures.reason(error)
            continue
        rotated += rotated_names(serialized.numpy(), policy)
        if len(samples) == count:
            break
    if not samples:
        raise UsageError(
            f"train_input_reader: none of {num_unusable} records can be used; the last one: "
            f"{last_error}. estimator-det check-data reports all faults"
        )
    return Samples(samples, num_unusable, rotated)


def rotated_names(serialized: bytes, policy: BadRecordPolicy) -> List[str]:
    """The source id of a record whose EXIF data rotate its image; empty for other records."""
    examined = examine_record(serialized, policy)
    is_rotated = any(fault.kind == "exif_rotation" for fault in examined.faults)
    return [examined.source_id or "(no source_id)"] if is_rotated else []


def draw_step(
    step: preprocessor_pb2.PreprocessingStep,
    samples: Sequence[Sample],
    reader: input_reader_pb2.InputReader,
    names: Mapping[int, str],
    *,
    num_rows: int,
    num_after: int,
    seed: int,
) -> Image.Image:
    """A row for each of the first samples: the sample, its partners, and the step's results.

    Args:
        samples: At least one; the partners of a mixture are the next ones, then the first ones.
        reader: The `InputReader` that they come from.
        num_after: Results of each, with different seeds.
    """
    raise_errors([*check(step, STEPS), *check_mixtures([step], reader)])
    (link,) = make_steps([step])
    count = link.num_records
    cells: List[GridCell] = []
    for row in range(min(num_rows, len(samples))):
        row_samples = list(itertools.islice(itertools.cycle(samples), row, row + count))
        cells += [cell_of(sample, names) for sample in row_samples]
        for number in range(num_after):
            before = row_samples if count > 1 else row_samples[0]
            after_seed = tf.constant([seed + number, row], tf.int64)
            after = link.function(before, after_seed, link.config)
            caption = f"after, seed {seed + number}"
            cells.append(_result(after, row_samples[0], names, link, caption))
    settings = " ".join(str(link.config).split())
    title = f"{link.name} {{ {settings} }}" if settings else link.name
    return batch_grid.draw_grid(cells, title=title, columns=count + num_after)


def cell_of(sample: Sample, names: Mapping[int, str], caption: str = "") -> GridCell:
    """A sample with pixels of 0 to 255 as a cell; the caption is its name unless given."""
    image = rgb(np.array(sample.image))
    classes = [int(number) for number in np.array(sample.classes)]
    texts = [names.get(number, str(number)) for number in classes]
    if not caption:
        level = sample.image_level or {}
        caption = batch_grid.caption_of(
            level[key].numpy() for key in batch_grid.NAMES if key in level
        )
    return GridCell(
        pixels=np.clip(np.rint(image.astype(np.float64)), 0, 255).astype(np.uint8),
        true_size=image.shape[:2],
        boxes=np.array(sample.boxes),
        labels=batch_grid.with_weights(texts, np.array(sample.weights).tolist()),
        classes=classes,
        name=caption,
        masks=None if sample.masks is None else np.array(sample.masks),
        keypoints=None if sample.keypoints is None else np.array(sample.keypoints),
    )


def _result(
    after: Sample, before: Sample, names: Mapping[int, str], link: AugmentationStep, caption: str
) -> GridCell:
    if link.name == ONLY_AFTER:  # its boxes are in pixels
        size = tf.cast(tf.shape(after.image)[:2], tf.float32)
        keypoints = None if after.keypoints is None else after.keypoints / size
        after = after._replace(boxes=after.boxes / tf.tile(size, [2]), keypoints=keypoints)
    image = np.array(after.image)
    was_dark = float(np.max(np.array(before.image))) <= 2
    if image.min() < 0 or image.max() > 255.5 or (image.max() <= 2 and not was_dark):
        caption += f" ({image.min():.3g} to {image.max():.3g}, drawn as 0 to 255)"
        after = after._replace(image=batch_grid.scaled_to_range(image))
    return cell_of(after, names, caption)
