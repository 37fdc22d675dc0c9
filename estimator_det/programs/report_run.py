"""The run that a report is about: its files, and the evaluation that the page shows.

A checkpoint that was never evaluated, or by an earlier version, is evaluated once.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.files import json_lines, ownership
from estimator_det.programs import console, report_pictures
from model_fn.checkpoints import writing
from model_fn.checkpoints.find import find_checkpoint
from model_fn.evaluation import details, history, score_thresholds
from model_fn.evaluation.best_checkpoints import BEST_FILE, BEST_FOLDER
from model_fn.evaluation.history import Evaluation
from model_fn.evaluation.readers import evaluation_folder, named_readers
from model_fn.events import PROGRESS_FILE
from model_fn.runs import evaluator

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2


class Run(NamedTuple):
    """Files of a run, read once."""

    name: str
    folder: str
    config: pipeline_pb2.TrainEvalPipelineConfig
    reader: str  # the evaluation reader that the page is about; "" if there is none
    progress: List[Dict[str, Any]]  # lines of progress.jsonl
    evaluations: Dict[str, List[Evaluation]]  # by reader, in order of steps
    chosen: Optional[Evaluation] = None  # the best one, or the last
    is_best: bool = False
    table: Any = None  # `score_thresholds.ThresholdTable` of the chosen evaluation
    details: Mapping[str, Any] = {}  # empty without an evaluation
    missing: str = ""  # why there is no evaluation
    damaged: str = ""  # why the best evaluation is not known, if its file cannot be read


def read_run(folder: str) -> Run:
    """Reads a run; evaluates its checkpoint if that was not done."""
    folder = folder.rstrip("/") or folder
    path = os.path.join(folder, pipeline.PIPELINE_FILE)
    if not files.exists(path):
        runs = printing.holding(files.folders_with(folder, pipeline.PIPELINE_FILE))
        raise FileNotFoundError(
            f"there is no training run in {folder}, for it has no {pipeline.PIPELINE_FILE}; give "
            f"the model_dir of a run{runs and f'; {runs}'}"
        )
    if files.exists(os.path.join(folder, ownership.marker("export"))):
        raise UsageError(
            f"{folder} is an export, and a report is about a training run: give the folder of its "
            f"run, or evaluate it: estimator-det evaluate {shlex.quote(folder)} --output_dir DIR"
        )
    config = console.load_config(path, is_trusted=False)
    readers = list(named_readers(config)) if config.eval_input_reader else []
    run = Run(
        name=os.path.basename(folder if files.is_remote(folder) else os.path.abspath(folder)),
        folder=folder,
        config=config,
        reader=readers[0] if readers else "",
        progress=json_lines.read(os.path.join(folder, PROGRESS_FILE), ("step", "time")),
        evaluations={reader: history.read(folder, reader) for reader in readers},
    )
    if not readers:
        return run._replace(missing="the configuration has no eval_input_reader")
    return _with_evaluation(run)


def _with_evaluation(run: Run) -> Run:
    """Adds the best evaluation, or the last one, with its details."""
    steps = {evaluation.step: evaluation for evaluation in run.evaluations[run.reader]}
    # The best checkpoint is the one that people export, so the page is about it.
    best, damaged = _best_step(run.folder)
    run = run._replace(damaged=damaged)
    step: Optional[int] = best if best in steps else max(steps, default=None)
    folder = evaluation_folder(run.folder, run.reader)
    values = None if step is None else details.read(folder, step)
    if step is None or values is None:
        try:
            evaluation = _evaluate(run, step)
        except report_pictures.ABSENT as error:
            return run._replace(missing=str(error))
        step, steps = evaluation.step, {evaluation.step: evaluation}
        values = details.read(folder, step)
    table = score_thresholds.read(score_thresholds.path_for(folder, step))
    return run._replace(chosen=steps[step], is_best=step == best, table=table, details=values or {})


def _best_step(folder: str) -> Tuple[Optional[int], str]:
    """Step of the best checkpoint, None without one; why it is not known, or ""."""
    path = os.path.join(folder, BEST_FOLDER, BEST_FILE)
    if not files.exists(path):
        return None, ""
    try:
        return int(json.loads(files.read_text(path))["kept"][0]["step"]), ""
    except (ValueError, TypeError, LookupError) as error:
        return None, (
            f"{path} is damaged ({error!r}): which checkpoint is the best is not known, so this is "
            "the last evaluation. The next evaluation of a training with --best_metric writes "
            "the file again"
        )


def _evaluate(run: Run, step: Optional[int]) -> Evaluation:
    """Evaluates the checkpoint of a step, or the last one."""
    # The best checkpoint has a folder of its own; others may have been deleted by later ones.
    prefixes = [
        os.path.join(run.folder, *parts, f"model.ckpt-{step}") for parts in ((BEST_FOLDER,), ())
    ]
    kept = [prefix for prefix in prefixes if tf.io.gfile.exists(f"{prefix}.index")]
    checkpoint = kept[0] if kept else find_checkpoint(run.folder)
    with writing.writable_folder(run.folder, "folder of the run"):
        evaluations = evaluator.evaluate(run.config, run.folder, checkpoint=checkpoint)
    return next(each for each in evaluations if each.reader == run.reader)
