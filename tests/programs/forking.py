"""Processes that train, started quickly: one process imports everything, and forks for each run.

TensorFlow may be forked as long as no session was ever made, so the importing process only forks.
As a program, this module reads requests as JSON lines and answers in JSON lines.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
import traceback
from typing import Any, Dict, List, Optional

import pytest

from tests import small_extractor
from tests.conftest import TESTS, quicken

TIMEOUT = 240.0  # seconds; enough for a busy machine, and below pytest's timeout
# Modules that each fork would otherwise import by itself.
PRELOADED = (
    "estimator_det.programs.cli", "exporters.detect_files", "exporters.formats.export",
    "matplotlib.figure", "model_fn.checks.config_check", "model_fn.checks.data_check",
    "tests.model_fn.fake",
)  # fmt: skip
EVALUATION_BEGINS = "the first batch of an evaluation"  # what training of the fake detector prints


class Run:
    """A forked process."""

    def __init__(self, server: Forker, pid: int, log: str) -> None:
        self.pid = pid
        self._server = server
        self._log = log
        self._code: Optional[int] = None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> Optional[int]:
        """Exit code, or the negative number of the signal that killed it; None while it runs."""
        if self._code is None:
            self._code = self._server.ask({"poll": self.pid})["code"]
        return self._code

    def wait(self, timeout: float = TIMEOUT) -> int:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            code = self.poll()
            if code is not None:
                return code
            time.sleep(0.02)
        os.kill(self.pid, 9)
        raise AssertionError(f"still running after {timeout} s:\n{self.output()}")

    def wait_for(self, text: str, timeout: float = TIMEOUT) -> None:
        """Waits until the process has printed `text`."""
        end = time.monotonic() + timeout
        while text not in self.output():
            assert self.poll() is None, f"ended with {self._code}:\n{self.output()}"
            if time.monotonic() > end:
                os.kill(self.pid, 9)
                raise AssertionError(f"no {text!r} after {timeout} s:\n{self.output()}")
            time.sleep(0.02)

    def output(self) -> str:
        """Standard output and error so far."""
        with open(self._log, errors="replace") as file:
            return file.read()


class Forker:
    """Forks runs of `estimator-det`, or of the fake detector's training."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._count = 0
        environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=TESTS.parent,
        )

    def ask(self, request: Dict[str, Any]) -> Dict[str, Any]:
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"the forking process ended with {self._process.wait()}"
        return json.loads(answer)

    def command(self, *arguments: str, environment: Optional[Dict[str, str]] = None) -> Run:
        """Runs `estimator-det` with arguments; detectors have the small extractor."""
        return self._start({"arguments": list(arguments), "environment": environment or {}})

    def model_main(self, *flags: str, environment: Optional[Dict[str, str]] = None) -> Run:
        """The same of `model_main`, with these environment variables besides."""
        return self._start({"flags": list(flags), "environment": environment or {}})

    def program(self, source: str) -> Run:
        """Runs the text of a program, from the root of the sources."""
        return self._start({"source": source})

    def fake_training(
        self,
        model_dir: str,
        file_size_limit: Optional[int] = None,
        environment: Optional[Dict[str, str]] = None,
        **settings: Any,
    ) -> Run:
        """Trains the fake detector; for settings see `_train_fake`."""
        request = {"model_dir": model_dir, "settings": settings, "limit": file_size_limit}
        return self._start({**request, "environment": environment or {}})

    def _start(self, request: Dict[str, Any]) -> Run:
        self._count += 1
        log = os.path.join(self._folder, f"log{self._count}")
        with open(log, "w"):  # There from the start, for `Run.output`.
            pass
        return Run(self, self.ask({**request, "log": log})["pid"], log)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def small_config(folder: pathlib.Path, num_steps: int, *settings: str) -> str:
    """Path of a configuration that trains a small SSD on shapes, both made in `folder`."""
    from estimator_det.config import pipeline
    from estimator_det.programs import demo
    from inputs.datasets import shapes
    from tests.programs.test_runs import PLAIN, SMALL

    files = shapes.make_dataset(str(folder / "data"), seed=0, size="tiny")
    path = folder / "small.config"
    config = demo.demo_config(files, num_steps, [*SMALL, PLAIN, *settings])
    path.write_text(pipeline.format_pipeline(config))
    return str(path)


def _train_fake(
    model_dir: str,
    num_steps: int,
    save_steps: int = 2,
    step_secs: float = 0.01,
    eval_secs: int = 1,
    eval_batches: int = 3,
    ballast: int = 2**22,
    seed: Optional[int] = None,
    sync_replicas: int = 0,
    task_timeout_secs: float = 600,
    strategy: Optional[str] = None,
    steps_per_call: Optional[int] = None,
    meeting: int = 0,  # tasks that wait for each other after their first steps
) -> int:
    import pytest

    from estimator_det.compat import tf, tf1
    from inputs import pipeline as inputs
    from model_fn import Hook, StepResult, model_fn
    from model_fn.runs import runner
    from model_fn.runs.backends import loop
    from model_fn.runs.options import CheckpointOptions, EvaluationOptions, LoopOptions
    from model_fn.training import replica
    from tests.model_fn import fake

    class Slow(Hook):
        def after_step(self, result: StepResult) -> None:
            time.sleep(step_secs)
            if meeting:
                meet()

    def meet() -> None:
        folder = pathlib.Path(f"{model_dir}-meeting")
        folder.mkdir(exist_ok=True)
        (folder / str(os.getpid())).touch()
        while len(os.listdir(folder)) < meeting:
            time.sleep(0.02)

    def announced(*batch: Any) -> Any:
        tf.print(EVALUATION_BEGINS)
        return batch

    def eval_input_fn() -> Any:
        batches = fake.eval_input_fn()
        return batches.take(1).map(announced).concatenate(batches.repeat(eval_batches).skip(1))

    class Heavy(fake.FakeDetector):
        """With weights that take some time to save."""

        def predict(
            self, inputs: Any, true_shapes: Any, groundtruth: Any = None, context: Any = None
        ) -> Any:
            tf1.get_variable("ballast", [ballast], trainable=False)
            return super().predict(inputs, true_shapes)

    fake.install(pytest.MonkeyPatch())
    for maker in (model_fn, loop, replica):
        maker.build_detector = Heavy
    inputs.build_train_input_fn = fake.make_train_input_fn
    inputs.build_eval_input_fn = lambda *_, **__: eval_input_fn
    config = fake.pipeline_config()
    if strategy is not None:
        config.train_config.batch_size = 6  # which up to three workers can share
    config.train_config.startup_delay_steps = 0
    config.train_config.sync_replicas = bool(sync_replicas)
    config.train_config.replicas_to_aggregate = sync_replicas or 1
    runner.train_and_evaluate(
        config,
        model_dir,
        num_train_steps=num_steps,
        checkpoints=CheckpointOptions(steps=save_steps),
        evaluation=EvaluationOptions(throttle_secs=eval_secs, export_final=False),
        progress_steps=1,
        hooks=[Slow()],
        seed=seed,
        task_timeout_secs=task_timeout_secs,
        loop=None if strategy is None else LoopOptions(strategy, steps_per_call=steps_per_call),
    )
    return 0


def simplify() -> None:
    """The small network, and no charts, whose drawing takes longer than such a run."""
    from tests.model_fn import fake

    patch = pytest.MonkeyPatch()
    small_extractor.use(patch)
    fake.without_charts(patch)


def _child(request: Dict[str, Any]) -> int:
    from estimator_det.programs import cli, console, model_main

    # A shell ignores SIGINT in what it runs in the background, such as a whole test run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request.get("environment", {}))
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    quicken(pytest.MonkeyPatch())
    try:
        if "source" in request:
            exec(compile(request["source"], "program", "exec"), {"__name__": "__main__"})
            return 0
        if "arguments" in request:
            simplify()
            return cli.main(request["arguments"])
        if "flags" in request:
            simplify()
            return model_main.main(["model_main", *request["flags"]])
        if request["limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
        console.quiet_logging()
        return console.run(lambda: _train_fake(request["model_dir"], **request["settings"]))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _serve() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    children: List[int] = []
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = {"code": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            pid = os.fork()
            if pid == 0:
                code = _child(request)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            children.append(pid)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
