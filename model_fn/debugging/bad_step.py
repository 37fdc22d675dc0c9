"""Files of a step that was not finite: its batch, the variables, and a report.

The folder faults/bad_step-<number> of model_dir is all that `estimator-det replay` needs.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline as configuration
from estimator_det.console import printing
from estimator_det.files import atomic, json_lines
from estimator_det.protos import input_reader_pb2, pipeline_pb2
from inputs import schema
from inputs.records import stream as records
from model_fn.debugging.nan_tracer import FirstNonFinite
from model_fn.debugging.replay import BATCH_FILE, CHECKPOINT, Norms, bad_names, replay
from model_fn.events import FAULTS_FOLDER
from model_fn.training.train_op import MOVING_AVERAGES

FOLDER = os.path.join(FAULTS_FOLDER, "bad_step")
REPORT_JSON, REPORT_TEXT = "report.json", "report.txt"

_MOST_SHOWN = 8
_NO_BATCH = "the batch was not kept"
_LARGE = 1e4  # weights above are rarely meant
_LOSS = "Loss"  # scope in which detectors compute targets and losses


@dataclasses.dataclass(frozen=True)
class Place:
    """Place of a record."""

    file: str
    record: int  # number in the file from 0

    def sentence(self) -> str:
        return f"{self.file}, record {self.record}"


@dataclasses.dataclass(frozen=True)
class UsedRecord:
    """Origin of an image of the batch."""

    image: int  # number in the batch
    source_id: str
    file: str  # "" if the batch does not say
    record: int  # number in the file from 0; -1 if the batch does not say
    partners: Sequence[Place] = ()  # the records mixed with this one, by a mosaic for example

    def sentence(self) -> str:
        place = Place(self.file, self.record).sentence() if self.file else "file unknown"
        name = f"source_id {printing.quoted(self.source_id)}" if self.source_id else "no source_id"
        mixed = "; ".join(partner.sentence() for partner in self.partners)
        return f"image {self.image}: {place}, {name}" + (f", mixed with {mixed}" if mixed else "")


@dataclasses.dataclass(frozen=True)
class BadInput:
    """Values of the batch that are not finite though nothing allows that."""

    key: str
    image: int
    num_values: int


@dataclasses.dataclass(frozen=True)
class BadStepReport:
    """Facts about a bad step."""

    step: int
    not_finite: List[str]  # names of values
    values: Dict[str, float]  # loss terms, learning rate, gradient norm
    bad_variables: List[str]
    largest_variables: Norms  # by greatest absolute value
    bad_inputs: List[BadInput]
    batch: List[UsedRecord]
    not_replayed: str  # reason why the step could not be run again; "" if it was
    folder: str
    first_non_finite: Optional[FirstNonFinite] = None
    bad_gradients: Sequence[str] = ()  # variables whose gradients are not finite

    @property
    def causes(self) -> List[str]:
        """Likely causes with their remedies, the likeliest first."""
        return _causes(self)


def save_bad_step(
    training: Any,
    batch: Mapping[str, np.ndarray],
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: str,
    step: int,
    values: Dict[str, float],
) -> BadStepReport:
    """Writes the folder of a bad step.

    Args:
        training: `runs.backends.base.Training`, whose variables are as they were before the step.
        batch: Batch of the step; empty if it was not kept.
    """
    folder = os.path.join(model_dir, f"{FOLDER}-{step}")
    _save_batch(os.path.join(folder, BATCH_FILE), batch)
    configuration.save_pipeline(pipeline_config, folder)
    prefix = os.path.join(folder, CHECKPOINT)
    training.save(prefix)
    bad_variables, largest = _examine_variables(prefix, training.trained_names())
    report = BadStepReport(
        step=step,
        not_finite=bad_names(values),
        values=values,
        bad_variables=bad_variables,
        largest_variables=largest,
        bad_inputs=_bad_inputs(batch),
        batch=_records_of(batch, pipeline_config.train_input_reader),
        not_replayed="" if batch else _NO_BATCH,
        folder=folder,
    )
    if batch:
        _write(report)  # The rest takes a while.
        report = _replayed(report, pipeline_config)
    _write(report)
    return report


def _replayed(
    report: BadStepReport, pipeline_config: pipeline_pb2.TrainEvalPipelineConfig
) -> BadStepReport:
    """The report, completed by running the step again."""
    try:
        step = replay(pipeline_config, report.folder).steps[0]
    except (ValueError, tf.errors.OpError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return dataclasses.replace(report, not_replayed=reason)
    bad = [name for name, norm in step.gradient_norms if not math.isfinite(norm)]
    return dataclasses.replace(report, first_non_finite=step.first_non_finite, bad_gradients=bad)


def _write(report: BadStepReport) -> None:
    content = {**dataclasses.asdict(report), "causes": report.causes}
    # JSON has no numbers that are not finite.
    content["values"] = {k: x if math.isfinite(x) else str(x) for k, x in report.values.items()}
    for name, text in (
        (REPORT_JSON, json_lines.dumps(content, indent=1)),
        (REPORT_TEXT, printing.printable(report_text(report))),
    ):
        atomic.write(os.path.join(report.folder, name), text + "\n")


def _save_batch(path: str, batch: Mapping[str, np.ndarray]) -> None:
    # Texts come as objects, which only pickle could save.
    plain: Dict[str, Any] = {
        key: array.astype(np.bytes_) if array.dtype == object else array
        for key, array in batch.items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **plain)
    atomic.write(path, buffer.getvalue())


def _examine_variables(prefix: str, trained: Sequence[str]) -> Tuple[List[str], Norms]:
    """Names of all that are not finite, and the largest trained variables."""
    reader = tf1.train.load_checkpoint(prefix)
    bad: List[str] = []
    largest: Norms = []
    for name in sorted(reader.get_variable_to_shape_map()):
        value = np.asarray(reader.get_tensor(name))
        if value.dtype.kind != "f" or not value.size:
            continue
        if not np.isfinite(value).all():
            bad.append(name)
        elif name in trained:
            largest.append((name, float(np.abs(value).max())))
    return bad, sorted(largest, key=lambda pair: -pair[1])[:_MOST_SHOWN]


def _bad_inputs(batch: Mapping[str, np.ndarray]) -> List[BadInput]:
    return [
        BadInput(key, image, int((~np.isfinite(value)).sum()))
        for key, array in batch.items()
        # Keypoints that are absent are NaN by definition.
        if array.dtype.kind == "f" and key != f"labels/{schema.KEYPOINTS}"
        for image, value in enumerate(array)
        if not np.isfinite(value).all()
    ]


def _records_of(
    batch: Mapping[str, np.ndarray], reader: input_reader_pb2.InputReader
) -> List[UsedRecord]:
    count = len(batch.get(f"features/{schema.IMAGE}", ()))
    names = batch.get(f"features/{schema.SOURCE_ID}", [b""] * count)
    places = batch.get(f"features/{schema.RECORD}", np.full([count, 2], -1))
    partners = batch.get(f"features/{schema.PARTNER_RECORDS}", np.full([count, 0, 2], -1))
    paths = records.list_files(reader).paths if f"features/{schema.RECORD}" in batch else []
    records_of_batch = []
    for image in range(count):
        name = bytes(names[image]).decode("utf-8", "replace")
        file, number = places[image].tolist()
        path = paths[file] if 0 <= file < len(paths) else ""
        mixed = partners[image].tolist()
        others = [Place(paths[k], record) for k, record in mixed if 0 <= k < len(paths)]
        records_of_batch.append(UsedRecord(image, name, path, number if path else -1, others))
    return records_of_batch


def _causes(report: BadStepReport) -> List[str]:
    causes = []
    for bad in report.bad_inputs[:_MOST_SHOWN]:
        name = report.batch[bad.image].sentence() if report.batch else f"image {bad.image}"
        causes.append(
            f"the data: {bad.key} contains {bad.num_values} values that are not finite, of {name}. "
            "Correct or remove the record; estimator-det check-data finds others"
        )
    weights = [name for name in report.bad_variables if "moving_" not in name]
    if weights:
        causes.append(
            f"the variables were not finite before the step: {', '.join(weights[:3])}. If training "
            "began from a checkpoint, examine that one"
        )
    rate = report.values.get("learning_rate", math.nan)
    if not math.isfinite(rate):
        causes.append("the learning rate is not finite: examine the schedule")
    elif report.not_finite == [MOVING_AVERAGES]:
        causes.append(
            f"the learning rate {rate:.4g} is too high: activations have grown so large that their "
            "variance overflows; loss and gradients are finite because batch norm divides by it. "
            "Lower it, or add a warm-up, and resume from a checkpoint before the weights grew"
        )
    elif not report.bad_inputs and not weights:
        large = [name for name, size in report.largest_variables if size > _LARGE]
        first = report.first_non_finite
        if first and first.layer.split("/")[0] == _LOSS and not large:
            causes.append(
                "the loss: it is computed from finite predictions. Give its logarithms, roots and "
                "divisions a bound if the loss is yours, and examine the boxes of the batch"
            )
        else:
            verb = f"is too high (weights are large: {', '.join(large[:3])})"
            causes.append(
                f"the learning rate {rate:.4g} {verb if large else 'may be too high'}. Lower it, "
                "add a warm-up, or set train_config.gradient_clipping_by_norm (10 is usual), and "
                "resume from a checkpoint before the weights grew"
            )
        causes.append(
            "boxes without area, or far outside the image, in the records of this batch: "
            "estimator-det check-data finds them"
        )
    return causes


def report_text(report: BadStepReport) -> str:
    """The report for people."""
    lines = [
        f"Step {report.step} is not finite: {', '.join(report.not_finite)}.",
        "The variables were left as they were before the step. Statistics of batch norm are an "
        "exception where inplace_batchnorm_update is set: these move with the forward pass.",
        "",
        "values of the step",
        *(f"  {name:<32} {value:.6g}" for name, value in report.values.items()),
        "",
    ]
    if report.first_non_finite:
        lines.append(f"first tensor that is not finite: {report.first_non_finite.sentence()}")
    elif report.not_replayed:
        lines.append(f"the step could not be run again to find where: {report.not_replayed}")
    else:
        lines.append("first tensor that is not finite: unknown, all was finite when run once more")
    if report.bad_gradients:
        lines.append(
            f"gradients that are not finite ({len(report.bad_gradients)}): "
            f"{printing.listed(report.bad_gradients, _MOST_SHOWN)}"
        )
    bad = printing.listed(report.bad_variables, _MOST_SHOWN)
    lines.append(f"variables that are not finite: {bad or 'none'}")
    lines.append("largest absolute values of trained variables")
    lines += [f"  {size:<12.4g} {name}" for name, size in report.largest_variables]
    lines += ["", "batch", *(f"  {record.sentence()}" for record in report.batch)]
    lines += [
        f"  not finite: {bad.num_values} values of {bad.key}, image {bad.image}"
        for bad in report.bad_inputs
    ]
    lines += ["", "likely causes", *(f"  * {cause}" for cause in report.causes)]
    if report.not_replayed != _NO_BATCH:
        lines += ["", f"again: estimator-det replay {report.folder}"]
    return "\n".join(lines)


def summary_text(report: BadStepReport) -> str:
    """The message that training ends with."""
    parts = [f"step {report.step}: not finite: {', '.join(report.not_finite)}"]
    if report.first_non_finite:
        parts.append(f"first bad tensor: {report.first_non_finite.sentence()}")
    parts.append(f"likely cause: {report.causes[0]}")
    parts.append(
        f"The step was not applied. Report, batch and variables: {report.folder}; to run it again, "
        f"with --set to try a remedy: estimator-det replay {report.folder}"
        if report.not_replayed != _NO_BATCH
        else f"Report and variables: {report.folder}; {_NO_BATCH}"
    )
    return "\n".join(parts)
