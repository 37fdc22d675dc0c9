"""Imports a published detector: checkpoint, configuration, label map and report in a folder."""

from __future__ import annotations

import os
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det import files
from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline, plugins
from estimator_det.config.text import nearest
from estimator_det.console.printing import counted, escaped
from estimator_det.errors import RunError, UsageError
from estimator_det.files import ownership
from estimator_det.protos import model_pb2, pipeline_pb2
from exporters.formats import FORMATS, places, tf2_checkpoint
from exporters.formats.base import ExportFormat
from exporters.image_files import list_images
from exporters.importing.anchor_order import ORDER_2017, find_order, layouts_of, permute_heads
from exporters.importing.mapping import COPIED, MISSING, OTHER_SHAPE, REBUILT, Mapped, map_variables
from exporters.importing.matching import align_names
from exporters.importing.own_model import OwnModel, build_own_model, calibrate
from exporters.importing.proposal import explain_shapes
from exporters.reading.published import Published, read_checkpoint, refuse_not_finite
from inputs.datasets.writer import write_label_map
from model_fn.checkpoints.object_based import check_line
from model_fn.checkpoints.repair import write_state
from model_fn.checkpoints.variables import NEUTRAL_STATISTICS, SLOT, VALUE_SUFFIX

VERB = "import"
CHECKPOINT = "checkpoint"  # in --from, beside the formats of exports
CHECKPOINTS = (CHECKPOINT, tf2_checkpoint.NAME)
CHECKPOINT_NAME = "model.ckpt"
LABEL_MAP_FILE = "label_map.pbtxt"
REPORT_FILE = "import_report.txt"
_LISTED = 5  # variables in an error
_MEANINGS = {
    COPIED: "as in the file",
    REBUILT: "from batch norm that is folded in the file",
    OTHER_SHAPE: "in the file with another shape; not in the checkpoint",
    MISSING: "not in the file; not in the checkpoint",
}


class Imported(NamedTuple):
    """Files that an import has written, and a summary."""

    checkpoint: str  # prefix
    pipeline_config: str
    label_map: Optional[str]  # None if the file contains none
    report: str
    summary: List[str]
    warnings: List[str]


def import_model(
    published: Published,
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    output_dir: str,
    *,
    anchor_order: Optional[str] = None,
    calibration_images: Sequence[str] = (),
    overwrite: bool = False,
) -> Imported:
    """Writes the weights of a published model as a checkpoint with the names of our variables.

    Args:
        published: Result of `read_published`.
        pipeline_config: A `TrainEvalPipelineConfig` that describes it.
        output_dir: A new or empty folder, or with `overwrite` an earlier import.
        anchor_order: `LAST` or `ORDER_2017`; None for the order of the anchors in the file, or
            else `LAST`.
        calibration_images: Image files or folders; recompute the statistics of folded batch norm.

    Raises:
        UsageError: if an option or the model of the configuration is not valid.
        FileExistsError: if `output_dir` contains something else.
        RunError: if the file has numbers that are not finite, or no weights of the model.
    """
    images = list_images(calibration_images)
    ownership.refuse_inputs(output_dir, [published.path, os.path.dirname(published.path)])
    # An import without marker has its report.
    is_earlier = tf.io.gfile.exists(os.path.join(output_dir, REPORT_FILE))
    ownership.check_folder(output_dir, VERB, overwrite=overwrite, is_earlier=is_earlier)
    refuse_not_finite(published)
    model = build_own_model(pipeline_config)
    published, slots = _under_own_names(published, model, pipeline_config.model)
    published, naming = align_names(published, model.structure)
    mapped = map_variables(model, published)
    if not mapped.values:
        raise RunError(
            f"{published.path} has no weights of the model in the configuration: of "
            f"{counted(len(mapped.rows), 'variable')} none is found, such as "
            f"{mapped.rows[0].variable}. Give the configuration of this model, or the right format "
            "with --from"
        )
    notes, warnings = _apply_anchor_order(
        model, published, mapped, pipeline_config.model, anchor_order
    )
    notes = [*slots, *naming, *notes]
    warnings += _absent(mapped, published, pipeline_config.model) + _of_zeros(mapped, published)
    num_neutral = len(mapped.folded) + published.num_neutral
    if images and mapped.folded:
        notes.append(_recompute_statistics(model, mapped, num_neutral, images))
        num_neutral = 0
    else:
        warnings += _of_statistics(num_neutral, bool(mapped.folded), bool(images))
    ownership.mark(output_dir, VERB)
    write_checkpoint(os.path.join(output_dir, CHECKPOINT_NAME), mapped.values, num_neutral)
    return _write_beside(output_dir, published, mapped, notes, warnings, pipeline_config)


def _under_own_names(
    published: Published, model: OwnModel, config: model_pb2.DetectionModel
) -> Tuple[Published, List[str]]:
    """A checkpoint's content by the names of our variables, without slots, and notes about that.

    Other files stay as they are.
    """
    if published.objects is None and published.format not in CHECKPOINTS:
        return published, []
    is_object_based = check_line(published.path, model.detector, config)
    names = {}
    if is_object_based and published.objects is not None:
        names = {published.objects.key(path): name for name, path in model.object_paths.items()}
    kept = {
        names.get(key, key.removesuffix(VALUE_SUFFIX)): values
        for key, values in published.arrays.items()
        if not (is_object_based and SLOT.search(key))
    }
    left_out = len(published.arrays) - len(kept)
    notes = [f"{counted(left_out, 'slot')} of the optimizer left out"] if left_out else []
    return published._replace(arrays=kept), notes


def _recompute_statistics(
    model: OwnModel, mapped: Mapped, num_neutral: int, images: Sequence[str]
) -> str:
    """Recomputes the statistics of folded batch norm from the images; returns a note."""
    missing = [row.variable for row in mapped.rows if row.variable not in mapped.values]
    if missing:
        raise UsageError(
            f"--calibrate: runs the model, and the file lacks {counted(len(missing), 'variable')} "
            f"of it, such as {missing[0]}; import without it, or correct the configuration"
        )
    mapped.values.update(calibrate(model, mapped.values, mapped.folded, images))
    layers, photos = counted(num_neutral, "layer"), counted(len(images), "image")
    return f"statistics of {layers} recomputed from {photos}"


def read_published(source_format: str, path: str) -> Published:
    """The content of a model file, of a folder with a model, or of a checkpoint.

    Raises:
        UsageError: if the format is not known, or only exported.
        RunError: if the file is damaged, or not of the format.
    """
    importable = [name for name in FORMATS if FORMATS.get(name).read is not ExportFormat.read]
    known = sorted([CHECKPOINT, *importable])
    if source_format not in known:
        hint = nearest(source_format, known) or "."
        raise UsageError(
            f"--from: {source_format!r} is not a format that can be imported{hint} "
            f"Known: {', '.join(known)}. {plugins.HINT}"
        )
    if source_format in CHECKPOINTS:
        published = read_checkpoint(path)
    elif tf.io.gfile.exists(path):
        chosen = FORMATS.get(source_format)()
        published = chosen.read(_model_in(chosen, path))
    else:
        raise FileNotFoundError(f"no such model: {path}")
    return published._replace(format=source_format, path=published.path or path)


def _model_in(chosen: ExportFormat, path: str) -> str:
    """The model of a format in a folder or its subfolders; the path itself without one."""
    if not tf.io.gfile.isdir(path):
        return path
    inside = [os.path.join(path, name.rstrip("/")) for name in sorted(tf.io.gfile.listdir(path))]
    for folder in [path, *filter(tf.io.gfile.isdir, inside)]:
        for place in places(chosen, folder):
            if chosen.recognizes(place):
                return place
    return path


def _absent(mapped: Mapped, published: Published, model: model_pb2.DetectionModel) -> List[str]:
    rows = [row for row in mapped.rows if row.state in (MISSING, OTHER_SHAPE)]
    if not rows:
        return []
    shown = "; ".join(f"{row.variable} ({row.state}: {row.source})" for row in rows[:_LISTED])
    suffix = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    text = (
        f"{counted(len(rows), 'variable')} of the model "
        f"{'is' if len(rows) == 1 else 'are'} not in the checkpoint: {shown}{suffix}. "
        "Fine-tuning can start from it, evaluation and export cannot"
    )
    return [text, *explain_shapes(published, model)]


def _of_zeros(mapped: Mapped, published: Published) -> List[str]:
    rows = [row for row in mapped.rows if published.zeros.intersection(row.source.split(", "))]
    if not rows:
        return []
    return [
        f"{counted(len(rows), 'variable')} of zeros, since their constants have no content"
        f" in the file, such as {rows[0].variable}. TensorFlow leaves out zeros; if they are not "
        "meant to be zeros, get the file again"
    ]


def _of_statistics(num_neutral: int, has_folded: bool, calibrates: bool) -> List[str]:
    """A warning if statistics of batch norm are neutral, or calibration finds none to recompute."""
    layers = counted(num_neutral, "layer")
    if has_folded:
        return [
            f"batch norm of {layers} is rebuilt with neutral statistics: exact for "
            "inference, but training with it starts from a far too high loss. Import with "
            "--calibrate photos/ to fine-tune, or train with batch norm frozen"
        ]
    if num_neutral:
        return [
            f"batch norm of {layers} of this checkpoint has neutral statistics from "
            "an earlier import: training with it starts from a far too high loss. Import the"
            " published file with --calibrate photos/ to fine-tune"
        ]
    if calibrates:
        return [
            "--calibrate has no effect: no batch norm is folded in the file, so its "
            "statistics are taken as they are"
        ]
    return []


def _apply_anchor_order(
    own_model: OwnModel,
    published: Published,
    mapped: Mapped,
    model: model_pb2.DetectionModel,
    chosen: Optional[str],
) -> Tuple[List[str], List[str]]:
    """Permutes heads of the order of 2017; returns notes and warnings."""
    layouts = layouts_of(model, own_model.places)
    notes, warnings = [], []
    order = chosen
    if published.anchors is not None and own_model.anchors is not None:
        order, difference = find_order(published.anchors, own_model.anchors, layouts)
        if chosen and order not in (None, chosen):
            raise UsageError(
                f"--anchor_order {chosen}: the anchors in the file have the order {order}; leave "
                "the option out"
            )
        if order is None:
            counts = len(published.anchors), len(own_model.anchors)
            size = f"; they differ by up to {difference:.3g} of an image's side"
            warnings.append(
                f"the {counts[0]} anchors of the file are not the {counts[1]} anchors of the "
                f"configuration{size if counts[0] == counts[1] else ''}. Correct the "
                "anchor_generator or the image_resizer, or boxes are wrong"
            )
        else:
            notes.append(
                "anchors of the file and of the configuration are equal (largest "
                f"difference {difference:.1g} of an image's side); order of anchors: {order}"
            )
        order = chosen or order
    elif chosen is None and layouts is not None:
        notes.append(
            "anchors: the file contains none. If boxes are wrong, the model may be of 2017; "
            f"try --anchor_order {ORDER_2017}"
        )
    if order == ORDER_2017:
        permuted = permute_heads(mapped.values, layouts)
        notes.append(
            f"anchor order of 2017: {counted(len(permuted), 'variable')} of heads permuted"
        )
    return notes, warnings


def _write_beside(
    output_dir: str,
    published: Published,
    mapped: Mapped,
    notes: List[str],
    warnings: List[str],
    config: pipeline_pb2.TrainEvalPipelineConfig,
) -> Imported:
    """Writes label map, report and configuration beside the checkpoint."""
    label_map = os.path.join(output_dir, LABEL_MAP_FILE)
    if published.label_map:
        write_label_map(published.label_map, label_map)
    elif tf.io.gfile.exists(label_map):  # left by an earlier import
        tf.io.gfile.remove(label_map)
    counts = Counter(row.state for row in mapped.rows)
    summary = [
        f"{counts[state]} of {len(mapped.rows)} variables: {state}, {meaning}"
        for state, meaning in _MEANINGS.items()
        if counts[state]
    ]
    summary += notes
    report_file = os.path.join(output_dir, REPORT_FILE)
    files.write_text(report_file, _report_text(published, mapped, summary, warnings))
    return Imported(
        os.path.join(output_dir, CHECKPOINT_NAME),
        pipeline.save_pipeline(config, output_dir),
        label_map if published.label_map else None,
        report_file,
        summary,
        warnings,
    )


def _report_text(
    published: Published, mapped: Mapped, summary: Sequence[str], warnings: Sequence[str]
) -> str:
    lines = [f"Import of {published.format} {published.path}", "", *summary]
    lines += [f"warning: {text}" for text in warnings]
    lines += ["", "Variables: state, name, names in the file"]
    lines += [f"  {row.state:<8} {row.variable}: {row.source}" for row in mapped.rows]
    lines += ["", f"Layers whose batch norm is rebuilt: {len(mapped.folded)}"]
    lines += [f"  {each.name}" for each in mapped.folded]
    lines += ["", f"Arrays of the file that are not used: {len(mapped.unused)}"]
    lines += [f"  {name}" for name in sorted(mapped.unused)]
    return "\n".join(map(escaped, lines)) + "\n"


def write_checkpoint(prefix: str, values: Dict[str, np.ndarray], num_neutral: int) -> None:
    """Writes a checkpoint of step 0, with a mark if batch norm has neutral statistics."""
    tensors = {**values, tf1.GraphKeys.GLOBAL_STEP: np.asarray(0, np.int64)}
    if num_neutral:
        tensors[NEUTRAL_STATISTICS] = np.asarray(num_neutral, np.int64)
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names],
    )
    folder, name = os.path.split(prefix)
    write_state(folder, [name])
