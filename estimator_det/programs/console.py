"""Shared parts of the programs: exit codes, errors printed in one line, and quiet logging.

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Tuple

import estimator_det
from estimator_det.console import printing
from estimator_det.errors import (
    ConfigError,
    FolderInUseError,
    FolderNotWritableError,
    MissingTaskError,
    NotFiniteLossError,
    Problem,
    RunError,
    UsageError,
    raise_errors,
)

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2
    from inputs.label_map import LabelMap
    from model_fn.runs.options import TrainOptions

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_MISSING = 3
EXIT_NOT_WRITABLE = 4
EXIT_IN_USE = 5
EXIT_NOT_FINITE = 6
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

EXIT_CODES_HELP = """exit codes:
  0    done
  1    the run failed, or some of its inputs could not be used
  2    wrong usage, or a configuration that cannot be run
  3    an input is missing: a configuration, record, checkpoint, model or image
  4    an output folder or file cannot be written to: no space, no permission, read-only
  5    another process trains in model_dir
  6    a loss became NaN or infinite
  130  interrupted from the keyboard (SIGINT); training has saved a checkpoint
  143  terminated (SIGTERM); training has saved a checkpoint
"""

_FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors of writing, for any file

FOR_TPU = ("train_config.use_bfloat16",)  # fields without effect elsewhere
DEBUG_VARIABLE = "ESTIMATOR_DET_DEBUG"

# Packages whose modules are imported where they are needed.
_PACKAGES = (
    "google-crc32c", "jinja2", "matplotlib", "pillow", "pooch", "pycocotools", "requests", "tqdm",
)  # fmt: skip
_NOT_UTF8 = "surrogates not allowed"  # Python's names for the bytes of a path that are not UTF-8
_ASSERTION = "assertion failed: ["  # how messages of tf.Assert begin; each value has its brackets


class _Output:
    """Form of the standard output of this process; `--json` sets it."""

    is_json = False


def use_json(is_json: bool) -> None:
    """Prints the result of a verb as JSON from now on, and no lines; or lines again."""
    _Output.is_json = is_json


def print_line(text: str, *, is_whole: bool = False) -> None:
    """Prints a line for the user at once, also into a pipe that its reader may close."""
    if not _Output.is_json:
        printing.report(text, whole=is_whole)


def report_result(document: Any) -> None:
    """Prints the result of a verb for other programs, with `--json`; its lines are for users."""
    if _Output.is_json:
        from estimator_det.files import json_lines

        printing.report(json_lines.dumps(document, indent=2), whole=True)


def quiet_logging(level: int = logging.INFO, *, of_libraries: bool = False) -> None:
    """Logs progress and warnings and drops TensorFlow's notes; call it before TensorFlow loads.

    Settings of the user's environment stay.

    Args:
        level: The least severe messages that are logged.
        of_libraries: Also log the messages of TensorFlow and other libraries.
    """
    # 0 is information, 1 warnings, 2 errors, 3 fatal errors.
    native = min(max(level // 10 - 2, 0), 3) if of_libraries else 3
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", str(native))
    handler = printing.LogHandler(sys.stderr)
    handler.setFormatter(printing.LogFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=level)
    # In a cloud job each line must be JSON; on a terminal Python prints warnings itself.
    logging.captureWarnings(printing.is_json())
    for noisy in ("tensorflow", "absl", "matplotlib", "PIL", "h5py"):
        logging.getLogger(noisy).setLevel(level if of_libraries else max(level, logging.ERROR))


def load_config(
    path: str,
    config_override: str = "",
    assignments: Sequence[str] = (),
    *,
    is_trusted: bool = True,
) -> Any:
    """A pipeline configuration with `--config_override` and then `--set` applied.

    Args:
        is_trusted: Import the plug-ins of the record beside it, and do not ask for `--import`.
    """
    from estimator_det import files
    from estimator_det.config import pipeline, plugins

    if not files.exists(path) and not files.special_kind(path):
        raise FileNotFoundError(f"no such configuration file: {path}")
    (plugins.load_record if is_trusted else plugins.require_record)(os.path.dirname(path))
    return change_config(pipeline.read_pipeline(path), config_override, assignments)


def change_config(
    config: pipeline_pb2.TrainEvalPipelineConfig, config_override: str, assignments: Sequence[str]
) -> Any:
    """The configuration with `--config_override` and then `--set` applied."""
    from estimator_det.config import pipeline

    if config_override:
        config = pipeline.merge_text(config, config_override)
    return pipeline.apply_overrides(config, assignments)


def check_config(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    depth: str = "files",
    *,
    ignore: Sequence[str] = (),
) -> Mapping[str, LabelMap]:
    """Prints the warnings about a configuration before a run starts; raises its errors.

    If these are only missing files, it is a FileNotFoundError, else a ConfigError.

    Args:
        depth: "names" if the run reads none of the files, else "files" (see `config_check`).
        ignore: Fields that the run does not use.

    Returns:
        The label maps that were read, by path.
    """
    from estimator_det.config.paths import missing_files
    from model_fn.checks import config_check

    def is_used(problem: Problem) -> bool:
        return not any(re.match(rf"{re.escape(field)}($|[.\[])", problem.field) for field in ignore)

    result = config_check.check(config, depth)
    problems = list(filter(is_used, result.problems))
    errors = [problem for problem in problems if problem.severity == "error"]
    for problem in problems[len(errors) :]:
        printing.report(problem, sys.stderr)
    if errors and {problem.field for problem in errors} <= set(missing_files(config)):
        raise FileNotFoundError(str(ConfigError(errors)))
    raise_errors(errors)
    return result.label_maps


def unused_in_evaluation(on_training_data: bool) -> Sequence[str]:
    """Configuration fields that an evaluation does not use; for `check_config`."""
    reader = "eval_input_reader" if on_training_data else "train_input_reader"
    return ("train_config", reader)


def check_training(
    config: pipeline_pb2.TrainEvalPipelineConfig, model_dir: str, options: TrainOptions
) -> Mapping[str, LabelMap]:
    """`check_config` of a configuration that is trained, with what its options do not use."""
    from estimator_det import files
    from model_fn.runs import cluster
    from model_fn.runs.roles import check_tpu
    from model_fn.training.train_op import FOR_CLUSTER

    if options.tpu is not None:
        for finding in check_tpu(config, model_dir, options.tpu):
            printing.report(finding, sys.stderr)
    unused = list(FOR_TPU) if options.is_for_tpu else []
    # A run that resumes starts from its own checkpoint.
    if files.exists(os.path.join(model_dir, "checkpoint")):
        unused.append("train_config.fine_tune_checkpoint")
    if not config.train_config.num_steps:
        unused.append("train_config.num_steps")  # The run itself warns that it has no end.
    if cluster.read_cluster().servers:
        unused += [f"train_config.{field}" for field in FOR_CLUSTER]
    return check_config(config, ignore=unused)


def say_metrics(title: str, metrics: Mapping[str, float], *, verbose: bool = False) -> None:
    """Prints the main metrics, or all of them; -1 means that no object counts for a metric."""
    from model_fn.evaluation.report import is_main

    shown = [name for name in sorted(metrics) if verbose or is_main(name)] or sorted(metrics)
    print_line(title)
    for name in shown:
        value = metrics[name]
        text = "no such objects" if value == -1 else f"{value:.4f}"
        print_line(f"  {name:<56} {int(value) if name == 'global_step' else text}")
    if len(shown) < len(metrics):
        print_line(
            f"  in the event files: {len(metrics) - len(shown)} more; "
            "train and evaluate print them with --verbose"
        )


def say_findings(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: str,
    reader: str,
    step: int,
    metrics: Mapping[str, float],
) -> None:
    """Prints what the metrics of an evaluation mean."""
    from model_fn.checks.findings import findings

    for line in findings(config, model_dir, reader, step, metrics):
        print_line(line)


def run(main: Callable[[], Optional[int]]) -> int:
    """Runs a program body, which may return an exit code; prints errors a user can fix in a line.

    SIGTERM interrupts it as SIGINT does, unless it handles signals itself. Errors of other kinds
    are bugs and keep their traceback. With ESTIMATOR_DET_DEBUG=1 every error does.
    """
    from estimator_det.console import bars, signals

    estimator_det.is_program = True
    # Python would search all that TensorFlow made for garbage while graphs are built, 0.1 s, and
    # before the process ends: 0.2 s.
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)
    try:
        with bars.closed_at_end(), signals.StopSignals(signals.Stop()):
            return main() or EXIT_OK
    except signals.Stopped as stop:
        with signals.default_handlers():
            printing.report(stop, sys.stderr)
        return signals.exit_code(stop.signal_number)
    except KeyboardInterrupt:
        printing.report("interrupted", sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        code = _exit_code(error)
        # Not an error of the user: the traceback is the report of a defect.
        if code is None:
            if not printing.is_json():
                raise
            printing.report(traceback.format_exc(), sys.stderr, severity="CRITICAL")
            return EXIT_FAILED
        if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
            printing.report(traceback.format_exc(), sys.stderr)
        text = f"error: {error_text(error)}"
        if isinstance(error, MissingTaskError):  # The process must end, even if nobody reads.
            printing.report_at_once(printing.printable(text), "ERROR")
        else:
            printing.report(text, sys.stderr, severity="ERROR")
        return code


def error_text(error: BaseException) -> str:
    """The message of an error without the noise TensorFlow adds (node names, stack, codes)."""
    # The text of an OpError repeats the source lines of its node, its message does not.
    text = str(error)
    if hasattr(error, "node_def"):
        from estimator_det.compat import failures  # imports TensorFlow, which raised the error

        text = failures.without_sources((getattr(error, "message", "") or "").split("\n\t [[")[0])
    text = text or type(error).__name__
    if isinstance(error, MemoryError):
        text = (
            f"memory ran out ({text}). Free memory, or raise the limit of this process (ulimit -v)"
        )
    elif isinstance(error, UnicodeEncodeError):
        text = (
            f"{error.object}: a name has bytes that are not UTF-8, and TensorFlow takes no others. "
        )
        text += "Rename the file or folder"
    elif package := _not_installed(error):
        text = f"{package} is not installed. Remedy: pip install {package}"
    elif isinstance(error, FileNotFoundError) and error.filename is not None:
        text = f"{error.filename}: no such file or folder"
    elif isinstance(error, OSError) and error.errno in _FULL_OR_READ_ONLY:
        reason = os.strerror(error.errno).lower()
        text = f"{error.filename or 'a file'} cannot be written to: {reason}. Free space there, or "
        text += "choose another folder, then run the same command again"
    text = text.split("\n\nOriginal stack trace")[0].split("\n\t [[")[0].strip()
    _, failed, values = text.partition(_ASSERTION)
    if failed and values.endswith("]"):
        # TensorFlow writes C escapes, and escapes UTF-8 byte by byte.
        text = values[:-1].replace("] [", " ").encode().decode("unicode_escape")
        return text.encode("latin-1").decode("utf-8", "replace")
    return text


def _not_installed(error: BaseException) -> str:
    """The package of PyPI that a failed import misses; "" if it is none that this one requires."""
    name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    package = name.partition(".")[0].replace("PIL", "pillow").replace("_", "-")
    return package if package in _PACKAGES else ""


def _exit_code(error: Exception) -> Optional[int]:
    """The exit code of an error that a user can fix; None for a bug."""
    if _not_installed(error):
        return EXIT_FAILED
    if isinstance(error, UnicodeEncodeError) and error.reason == _NOT_UTF8:
        return EXIT_USAGE
    # A version of TensorFlow or another package that does not work here.
    if isinstance(error, ImportError) and error.name == "estimator_det.compat":
        return EXIT_FAILED
    codes: List[Tuple[Any, int]] = [
        (NotFiniteLossError, EXIT_NOT_FINITE),
        (FolderNotWritableError, EXIT_NOT_WRITABLE),
        (FolderInUseError, EXIT_IN_USE),
        ((UsageError, FileExistsError), EXIT_USAGE),
        (FileNotFoundError, EXIT_MISSING),
        ((RunError, PermissionError, MemoryError), EXIT_FAILED),
    ]
    # Importing it only to compare types would take seconds.
    if "tensorflow" in sys.modules:
        tf = sys.modules["tensorflow"]
        codes.append((tf.compat.v1.train.NanLossDuringTrainingError, EXIT_NOT_FINITE))
        codes += [(tf.errors.NotFoundError, EXIT_MISSING), (tf.errors.OpError, EXIT_FAILED)]
    for kind, code in codes:
        if isinstance(error, kind):
            return code
    if not isinstance(error, OSError) or error.errno is None:
        return None
    return EXIT_NOT_WRITABLE if error.errno in _FULL_OR_READ_ONLY else EXIT_FAILED
