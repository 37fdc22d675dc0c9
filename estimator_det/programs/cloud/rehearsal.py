"""Runs a job on this machine before it is paid for: its package, command, variables and data.

The source distribution is installed into a new virtual environment, and the command of the job runs
for a few steps on the first records, as one process for each replica.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from typing import TYPE_CHECKING, List

from estimator_det.console import printing
from estimator_det.errors import RunError
from estimator_det.programs import console
from estimator_det.programs.cloud import replicas
from estimator_det.programs.cloud.jobs import CONFIG_FILE, MODULE, Job
from estimator_det.programs.cloud.replicas import LAST_LINES, clean_environment

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

_FOLDERS = ("environment", "records", "work", "logs", "output")


def rehearse(
    job: Job,
    config: pipeline_pb2.TrainEvalPipelineConfig,
    package: pathlib.Path,
    folder: pathlib.Path,
    *,
    steps: int,
    num_records: int,
    reuses_packages: bool,
) -> None:
    """Installs and runs a job, whose configuration has local paths, below `folder`."""
    from estimator_det.config import pipeline

    started = time.monotonic()
    for name in _FOLDERS:  # left by an earlier rehearsal, whose run would resume
        shutil.rmtree(folder / name, ignore_errors=True)
    python = install(package, folder / "environment", reuses_packages)
    console.print_line(
        f"rehearsal: {package.name} is installed ({time.monotonic() - started:.0f} s)"
    )
    short = first_records(config, folder / "records", num_records)
    config_path = folder / CONFIG_FILE
    config_path.write_text(pipeline.format_pipeline(short), encoding="utf-8")
    output = folder / "output"
    arguments = _arguments(job, str(config_path), str(output), steps)
    replicas.run(job, [str(python), "-m", MODULE, *arguments], folder)
    console.print_line(
        f"rehearsal: {steps} steps with the package, command and variables of the job "
        f"succeeded ({time.monotonic() - started:.0f} s in total); logs: {folder / 'logs'}"
    )


def _arguments(job: Job, config_path: str, output: str, steps: int) -> List[str]:
    """The flags of the job with paths and a number of steps for this machine."""
    arguments = []
    # Not of a folder whose name only begins like this one.
    job_dir = re.compile(rf"{re.escape(job.job_dir)}(?![^/,])")
    for argument in job.arguments():
        argument = argument.replace(job.config_uri, config_path)
        argument = job_dir.sub(lambda _: output, argument)
        arguments.append("--rehearse_tpu" if argument == "--use_tpu" else argument)
    if job.uses_tpu:
        console.print_line(
            "rehearsal: --use_tpu is replaced by --rehearse_tpu: there is no TPU here"
        )
    return [*arguments, f"--num_train_steps={steps}"]


def install(package: pathlib.Path, folder: pathlib.Path, reuses_packages: bool) -> pathlib.Path:
    """Installs a source distribution into a new virtual environment; returns its interpreter.

    pip installs the dependencies, too; with `reuses_packages`, the running environment has them.
    """
    venv.create(folder, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", f"--python={python}", "--quiet"]
    command += ["--disable-pip-version-check", "install"]
    if reuses_packages:
        site = sysconfig.get_path("purelib", "posix_prefix", {"base": str(folder)})
        # Only a folder on the path: what is installed there as editable stays hidden.
        path_file = pathlib.Path(site, "rehearsal.pth")
        path_file.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        command += ["--no-deps", "--no-build-isolation"]
    command.append(str(package))
    done = subprocess.run(
        command,
        cwd=folder.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        raise RunError(
            f"rehearsal: {package.name} cannot be installed in {folder}: {shlex.join(command)} "
            f"ended with exit code {done.returncode}:\n{printing.printable(last)}"
        )
    return python


def first_records(
    config: pipeline_pb2.TrainEvalPipelineConfig, folder: pathlib.Path, count: int
) -> pipeline_pb2.TrainEvalPipelineConfig:
    """The configuration with the first `count` records of each input path, copied to `folder`.

    Its other local paths are absolute, for programs that run in another folder.
    """
    from estimator_det import files
    from estimator_det.config import pipeline
    from estimator_det.config.facts import readers
    from estimator_det.config.paths import named_paths
    from inputs.records import stream

    local = [pair for pair in named_paths(config) if not files.is_remote(pair[1])]
    short = pipeline.set_values(config, [(field, os.path.abspath(path)) for field, path in local])
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, reader) in enumerate(readers(short)):
        paths = reader.tf_record_input_reader.input_path
        for index, pattern in enumerate(list(paths)):
            field = f"{name}.tf_record_input_reader.input_path[{index}]"
            try:
                first, *_ = stream.find_files(pattern)
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{field}: {error}") from error
            target = folder / f"reader-{number}-{index}.record"
            _copy_records(first, target, count)
            paths[index] = str(target)
    return short


def _copy_records(source: str, target: pathlib.Path, count: int) -> None:
    from estimator_det.compat import tf
    from inputs.records.stream import compression_of

    dataset = tf.data.TFRecordDataset(source, compression_of(source)).take(count)
    records = list(dataset.as_numpy_iterator())
    if not records:
        raise RunError(f"{source}: the file has no records; name a file with records")
    with tf.io.TFRecordWriter(str(target)) as writer:
        for record in records:
            writer.write(record)
