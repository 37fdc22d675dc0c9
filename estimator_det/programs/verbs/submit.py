"""`estimator-det submit`: checks, rehearses and submits a training job of Google Cloud."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
from typing import Any, Dict, Sequence, Tuple

from absl import flags

import estimator_det
from estimator_det.console import printing
from estimator_det.errors import RunError, UsageError
from estimator_det.programs import console, model_flags
from estimator_det.programs.cloud import ai_platform, jobs, vertex
from estimator_det.programs.verbs.base import (
    add_config_arguments,
    add_options,
    load,
    positive,
)

SUMMARY = "Checks, rehearses and submits a training job of Google Cloud"
EXAMPLE = "ssd.config --job_dir gs://bucket/run --region us-central1 --rehearse --dry_run"
PLATFORMS: Dict[str, Any] = {"vertex": vertex, "ai-platform": ai_platform}
REHEARSAL = "rehearsal"  # folder
SPEC_FILE = "job.json"  # gcloud reads YAML, which JSON is
_MACHINE_TYPE = "n1-standard-8"
_STEPS, _RECORDS = 2, 64  # defaults of a rehearsal

# Options without effect unless another one is given, and options of which one is given at most.
_REQUIRED = {
    "rehearse_steps": "rehearse",
    "rehearse_records": "rehearse",
    "reuse_packages": "rehearse",
    "parameter_server_machine_type": "parameter_servers",
}
_EXCLUSIVE = (
    ("tpu", "accelerator"),
    ("tpu", "machine_type"),
    ("container_image", "executor_image"),
)
_VERTEX_ONLY = ("spot", "executor_image", "rehearse")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    required = {
        "--job_dir": "gs:// folder of the run",
        "--region": "region of the machines, e.g. us-central1",
    }
    add_options(parser, str, required, required=True)
    add_options(
        parser,
        str,
        {"--project": "project of the job (default: the project of gcloud)"},
        default="",
    )
    text = "vertex, or ai-platform: closed since January 2025, prints the command only"
    add_options(parser, str, {"--platform": text}, choices=PLATFORMS, default="vertex")
    add_options(parser, str, {"--service_account": "that the job runs as"}, default="")
    texts = {
        "--name": "name of the job (default: estimator-det- and the time)",
        "--output_dir": "folder for package, configuration and job.json (default: jobs/NAME)",
        "--package FILE": "source distribution (default: built from the checkout)",
    }
    add_options(parser, str, texts)
    switches = {
        "--dry_run": "check and print, upload nothing; done anyway if gcloud is not installed",
        "--stage_data": "upload the local files that the configuration names to JOB_DIR/data",
    }
    add_options(parser, bool, switches)
    add_options(parser, bool, {"--run": "execute the command"}, dest="runs")
    _add_machines(parser.add_argument_group("machines"))
    _add_rehearsal(parser.add_argument_group("rehearsal on this machine"))


def _add_machines(group: Any) -> None:
    texts = {
        "--machine_type": f"machine of the chief, workers and evaluator (default: {_MACHINE_TYPE})",
        "--accelerator TYPE:COUNT": "GPUs of each machine, e.g. NVIDIA_TESLA_T4:1",
        "--parameter_server_machine_type": "machine of parameter servers, without accelerators "
        "(default: --machine_type)",
        "--container_image": "image with estimator-det in it; no package is uploaded",
        "--executor_image": "prebuilt image of Vertex AI (default: by region and machine)",
    }
    add_options(group, str, texts)
    group.add_argument("--tpu", choices=jobs.TPUS, help="one machine with a TPU instead")
    counts = {
        "--workers": "besides the chief",
        "--parameter_servers": "number of them",
        "--evaluators": "0 or 1",
    }
    add_options(group, int, counts, default=0)
    add_options(group, bool, {"--spot": "machines that may be taken back; the run then resumes"})


def _add_rehearsal(group: Any) -> None:
    switches = {
        "--rehearse": "first install the package into a new environment and run the job's command "
        "there",
        "--reuse_packages": "take dependencies from this environment instead of installing them",
    }
    add_options(group, bool, switches)
    texts = {
        "--rehearse_steps": f"(default: {_STEPS})",
        "--rehearse_records": "the first records of each input path that are read (default: "
        f"{_RECORDS})",
    }
    add_options(group, positive, texts)


def run(options: argparse.Namespace) -> None:
    from estimator_det.config import pipeline, plugins
    from estimator_det.files import ownership
    from estimator_det.programs.cloud import preparation, rehearsal, source_package
    from model_fn.checkpoints import writing

    _check_options(options)
    job = _job(options)
    _check_flags(job)
    config = load(options)
    modules = plugins.module_files()
    if modules and job.image_has_package:
        console.print_line(f"the image {job.image} must have the plug-ins: {', '.join(modules)}")
    job = dataclasses.replace(job, modules=tuple(modules))
    is_dry = _is_dry(options)
    staged = preparation.staged_paths(config, job, stages=options.stage_data)
    preparation.check_config(config, job, reads_files=options.rehearse or not is_dry)
    if not is_dry:
        preparation.check_paths(config, job, staged)
    folder = pathlib.Path(options.output_dir or f"jobs/{job.name}").resolve()
    writing.check_folder(str(folder), "output_dir")
    names = (jobs.CONFIG_FILE, SPEC_FILE, job.package, REHEARSAL)
    ownership.check_files(str(folder), "submit", names)
    ownership.mark(str(folder), "submit")
    package = source_package.get(options.package, folder / job.package, modules)
    platform = PLATFORMS[options.platform]
    if options.rehearse:
        rehearsal.rehearse(
            job,
            config,
            package,
            folder / REHEARSAL,
            steps=options.rehearse_steps or _STEPS,
            num_records=options.rehearse_records or _RECORDS,
            reuses_packages=options.reuse_packages,
        )
    config_file, spec_file = folder / jobs.CONFIG_FILE, folder / SPEC_FILE
    remote = pipeline.set_values(config, [(each.field, each.remote) for each in staged])
    config_file.write_text(pipeline.format_pipeline(remote), encoding="utf-8")
    spec = json.dumps(platform.job_spec(job), indent=2)
    spec_file.write_text(f"{spec}\n", encoding="utf-8")
    if not is_dry:
        preparation.upload(job, config_file, package, staged)
    command = platform.command(job, str(spec_file))
    console.print_line(f"\n{spec_file}:\n{spec}\n", is_whole=True)
    console.print_line(shlex.join(command), is_whole=True)
    if options.platform == "ai-platform":
        printing.report(f"warning: {ai_platform.CLOSED}", sys.stderr, severity="WARNING")
    if options.runs:
        _run_command(command, is_json=options.json)
    console.report_result(
        {
            "job": json.loads(spec),
            "job_file": str(spec_file),
            "command": command,
            "uploaded": not is_dry,
            "started": options.runs,
        }
    )


def _run_command(command: Sequence[str], *, is_json: bool) -> None:
    """Starts the job. What gcloud prints goes to standard error if the result is JSON."""
    code = subprocess.run(command, check=False, stdout=2 if is_json else None).returncode
    if code:
        raise RunError(
            f"gcloud ended with exit code {code}, its message is above. After the remedy, run the "
            f"command again, all that it needs is uploaded: {shlex.join(command)}"
        )


def _job(options: argparse.Namespace) -> jobs.Job:
    """The job that the options describe."""
    pools = _pools(options)
    image = options.container_image or options.executor_image
    if options.executor_image:
        vertex.check_image(image, pools)
    elif not image:
        image = vertex.prebuilt_image(pools, options.region)
        chief = pools[0].machine
        if options.platform == "vertex" and chief.tpu_topology:
            printing.report(
                f"warning: Vertex AI has no image for {chief.machine_type}. Give --container_image",
                sys.stderr,
                severity="WARNING",
            )
    job_flags = list(options.passed_on)
    jobs.check_flags_of_job(job_flags)
    if options.tpu:
        job_flags += jobs.tpu_flags(options.tpu, job_flags)
        if options.platform == "vertex":  # AI Platform names the TPU in the variable TPU_CONFIG.
            job_flags.append("--tpu_name=local")
    return jobs.Job(
        name=options.name or f"estimator-det-{datetime.datetime.now():%Y%m%d-%H%M%S}",
        region=options.region,
        project=options.project,
        job_dir=options.job_dir.rstrip("/"),
        pools=pools,
        package=f"estimator_det-{estimator_det.__version__}.tar.gz",
        image=image,
        image_has_package=bool(options.container_image),
        flags=tuple(job_flags),
        service_account=options.service_account,
        spot=options.spot,
    )


def _pools(options: argparse.Namespace) -> Tuple[jobs.MachinePool, ...]:
    machine_type = options.machine_type or _MACHINE_TYPE
    machine = jobs.Machine(machine_type)
    if options.accelerator:
        machine = jobs.Machine(machine_type, *jobs.parse_accelerator(options.accelerator))
    if options.tpu:
        machine = jobs.TPUS[options.tpu]
        if options.platform == "ai-platform" and machine.tpu_topology:
            raise UsageError(f"--tpu {options.tpu}: AI Platform has no such TPU. Give v2-8 or v3-8")
    server = jobs.Machine(options.parameter_server_machine_type or machine_type)
    counts = (
        (jobs.WORKER, machine, options.workers),
        (jobs.PARAMETER_SERVER, server, options.parameter_servers),
        (jobs.EVALUATOR, machine, options.evaluators),
    )
    others = [jobs.MachinePool(role, kind, count) for role, kind, count in counts if count]
    return (jobs.MachinePool(jobs.CHIEF, machine, 1), *others)


def _check_options(options: argparse.Namespace) -> None:
    """Refuses options that have no effect, or no sense, together."""
    if options.runs and options.dry_run:
        raise UsageError("--run and --dry_run exclude each other: give one of them")
    for first, second in _EXCLUSIVE:
        if getattr(options, first) and getattr(options, second):
            raise UsageError(f"--{first} and --{second} exclude each other: give one of them")
    if options.runs and options.platform == "ai-platform":
        raise UsageError(f"--run: {ai_platform.CLOSED}")
    for name in _VERTEX_ONLY:
        if getattr(options, name) and options.platform != "vertex":
            raise UsageError(f"--{name} is for --platform vertex: remove it")
    for name, second in _REQUIRED.items():
        is_given = getattr(options, name) not in (None, False)
        if is_given and not getattr(options, second):
            raise UsageError(f"--{name} requires --{second}: add it, or remove --{name}")


def _check_flags(job: jobs.Job) -> None:
    """Checks the job's flags by the parser of `model_main`."""
    # The classic service names its TPU in the job only.
    tpu_name = ["--tpu_name=local"] if job.uses_tpu else []
    try:
        model_flags.parse([*job.arguments(), *tpu_name])
    except flags.Error as error:
        raise UsageError(f"a flag of the job, after the --: {error}") from error


def _is_dry(options: argparse.Namespace) -> bool:
    """True if nothing is uploaded."""
    if options.dry_run or shutil.which("gcloud"):
        return bool(options.dry_run)
    if options.runs:
        raise UsageError("--run needs gcloud, which is not in PATH: install the Google Cloud CLI")
    console.print_line("gcloud is not in PATH: --dry_run, nothing is uploaded")
    return True
