"""`python -m benchmarks.reference`: training and evaluation beside the Object Detection API.

Both `model_main` read the same configuration and records and run in turns; the program prints the
medians and their ratios. The Object Detection API comes from PyPI, in an environment with
TensorFlow 2.15 and the packages of ours:

    pip download --no-deps --no-binary :all: tf-models-research-object-detection==2.8.0.post1
    tar xzf tf_models_research_object_detection-2.8.0.post1.tar.gz
    pip install pycocotools matplotlib lvis pandas scipy contextlib2 grpcio-tools==1.62.3
    python -m benchmarks.reference --reference tf_models_research_object_detection-2.8.0.post1 …

`process.py` says what lets it run there. Moving averages are switched off, since the package with
their optimizer no longer exists.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Tuple

from estimator_det.config import pipeline

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
PROCESS = str(pathlib.Path(__file__).with_name("process.py"))
LINES = (
    ("first_step_seconds", "start to the end of the first step: {:.1f} s"),
    ("step_seconds", "training step: {:.3f} s"),
    ("step_processor_seconds", "its processor time: {:.3f} s"),
    ("peak_mib", "peak memory of training: {:.0f} MiB"),
    ("evaluation_seconds", "evaluation, whole process: {:.1f} s"),
    ("evaluation_processor_seconds", "its processor time: {:.1f} s"),
    ("evaluation_mib", "its peak memory: {:.0f} MiB"),
)
# Descriptors of modules that an older protoc wrote, which only protobuf's Python can read.
_DESCRIPTORS = """
import glob, importlib, sys
from google.protobuf import descriptor_pb2
files, found = {}, descriptor_pb2.FileDescriptorSet()
def add(file):
    for each in file.dependencies:
        add(each)
    if file.name not in files:
        files[file.name] = found.file.add(); file.CopyToProto(files[file.name])
for path in sorted(glob.glob("object_detection/protos/*_pb2.py")):
    add(importlib.import_module(path[:-3].replace("/", ".")).DESCRIPTOR)
open(sys.argv[1], "wb").write(found.SerializeToString()); print("\\n".join(files))
"""


def _write_protos(reference: str, scratch: str) -> None:
    """Writes the modules of its messages again, with this environment's protoc."""
    with open(os.path.join(reference, "object_detection/protos/ssd_pb2.py"), encoding="utf-8") as f:
        if "internal import builder" in f.read():
            return
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    descriptors = os.path.join(scratch, "descriptors.pb")
    names = subprocess.run(
        [sys.executable, "-c", _DESCRIPTORS, descriptors],
        env=environment,
        cwd=reference,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--descriptor_set_in={descriptors}"]
    subprocess.run([*protoc, "--python_out=.", *names], cwd=reference, check=True)


def _run(program: str, tree: str, steps: int, flags: List[str]) -> Dict[str, float]:
    """Figures of one process."""
    path = os.pathsep.join([tree, os.path.join(tree, "slim")])
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, PROCESS, str(steps), program, *flags]
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        output.seek(0)
        text = output.read()
    if status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{text[-4000:]}")
    if steps:
        return json.loads(next(line for line in text.splitlines() if line.startswith('{"first')))
    return {
        "evaluation_seconds": seconds,
        "evaluation_processor_seconds": usage.ru_utime + usage.ru_stime,
        "evaluation_mib": usage.ru_maxrss / 1024,
    }


def _configure(arguments: argparse.Namespace, path: str) -> None:
    config = pipeline.override(
        pipeline.read_pipeline(arguments.config),
        batch_size=arguments.batch_size,
        label_map_path=os.path.abspath(arguments.label_map),
        train_input_path=os.path.abspath(arguments.record),
        eval_input_path=os.path.abspath(arguments.record),
    )
    config.train_config.fine_tune_checkpoint = ""
    config.train_config.optimizer.use_moving_average = False
    config = pipeline.apply_overrides(config, arguments.overrides)
    pathlib.Path(path).write_text(pipeline.format_pipeline(config), encoding="utf-8")


def main(argv: Optional[List[str]] = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reference", required=True, help="unpacked folder of the package")
    parser.add_argument("--config", required=True, help="pipeline configuration to measure")
    parser.add_argument("--record", required=True, help="TFRecord file, all of it is evaluated")
    parser.add_argument("--label_map", required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30, help="of each training (default: 30)")
    parser.add_argument("--turns", type=int, default=3, help="of both programs (default: 3)")
    parser.add_argument("--precision", default="float32", help="of ours (default: %(default)s)")
    arguments = parser.parse_args(argv)
    reference = os.path.abspath(arguments.reference)
    programs = (("object_detection/model_main.py", reference), ("estimator_det.model_main", ROOT))
    flags: Tuple[List[str], List[str]] = ([], ["--precision", arguments.precision])
    measured: List[List[Dict[str, Any]]] = [[], []]
    with tempfile.TemporaryDirectory() as scratch:
        _write_protos(reference, scratch)
        config, run = os.path.join(scratch, "pipeline.config"), os.path.join(scratch, "run")
        _configure(arguments, config)
        start = ["--pipeline_config_path", config, "--model_dir"]
        _run(*programs[1], 0, [*start, run, "--num_train_steps", "2"])
        for _ in range(arguments.turns):
            for figures, program, options in zip(measured, programs, flags):
                folder = tempfile.mkdtemp(dir=scratch)
                trained = _run(*program, arguments.steps, [*start, f"{folder}/train", *options])
                test = [
                    *start,
                    f"{folder}/evaluate",
                    "--checkpoint_dir",
                    run,
                    "--run_once",
                    *options,
                ]
                figures.append({**trained, **_run(*program, 0, test)})
                shutil.rmtree(folder)
                print(json.dumps({program[0]: figures[-1]}), file=sys.stderr, flush=True)
    for key, text in LINES:
        theirs, ours = (statistics.median(each[key] for each in side) for side in measured)
        print(f"{text.format(ours)}, {ours / theirs:.2f} × of {theirs:.4g}")


if __name__ == "__main__":
    main()
