"""Training processes killed at random moments, and resumed."""

from __future__ import annotations

import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from typing import Iterator, List, Set

import pytest

from estimator_det.compat import tf1
from estimator_det.config.pipeline import read_pipeline
from model_fn.checkpoints import repair
from model_fn.runs.data_cursor import read_cursor_state
from tests.conftest import TESTS
from tests.programs.forking import TIMEOUT, Forker, Run, small_config

pytestmark = pytest.mark.slow

LAST_STEP = 600
COMMAND_STEPS = 100  # not reached before the last run, however late a kill comes
BALLAST = 2**21  # 8 MB in each checkpoint, which take some time to write

# What a run has got to when it is killed, beside a random moment after its first step.
EVENTS = ("start", "shard", "index", "renamed", "listed", "evaluating")
KILLS = 30


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    made = Forker(str(tmp_path_factory.mktemp("logs")))
    yield made
    made.close()


def _recorded(folder: pathlib.Path) -> List[str]:
    state = tf1.train.get_checkpoint_state(str(folder))
    return list(state.all_model_checkpoint_paths) if state else []


def _happens(event: str, folder: pathlib.Path, run: Run, before: Set[str]) -> bool:
    """Whether a run has reached a moment of interest, seen from outside."""
    new = {path.name for path in folder.glob("*")} - before
    if event == "shard":
        return bool(list(folder.glob("model.ckpt-*_temp")))
    if event == "renamed":
        return any(".data-" in name for name in new)
    if event == "index":
        return any(name.endswith(".index") for name in new)
    if event == "listed":
        return any(name.endswith(".meta") for name in new)
    return event == "start" or "| localization" in run.output()


def _wait_for(event: str, folder: pathlib.Path, run: Run) -> None:
    before = {path.name for path in folder.glob("*")}
    end = time.monotonic() + TIMEOUT
    while not _happens(event, folder, run, before):
        assert run.poll() is None, run.output()
        assert time.monotonic() < end, run.output()


def _records_used(folder: pathlib.Path, step: int) -> int:
    """Up to a step; none came twice or not at all where it is that of an undisturbed run."""
    position = read_cursor_state(str(folder), step)
    assert position is not None
    return position.count


def test_thirty_kills(forker: Forker, tmp_path: pathlib.Path) -> None:
    rng = random.Random(5)
    folder = tmp_path / "model"
    recorded_step = reached = 0
    unfinished = resumed_from = 0
    for kill in range(KILLS):
        event = EVENTS[kill % len(EVENTS)]
        run = forker.fake_training(
            str(folder), num_steps=LAST_STEP, ballast=BALLAST, eval_batches=1
        )
        _wait_for(event, folder, run)
        time.sleep(rng.choice((0, 0.002, 0.02, 0.2)) if event != "start" else rng.uniform(0, 1))
        run.signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, run.output()
        steps = [int(step) for step in re.findall(r"^step (\d+)/", run.output(), re.MULTILINE)]
        if steps:
            # Nothing that was recorded is lost, and nothing beyond it is made up.
            assert recorded_step < steps[0] <= reached + 1
            resumed_from = max(resumed_from, steps[0] - 1)
            reached = max(reached, steps[-1])
        unfinished += bool(list(folder.glob("*_temp")) + list(folder.glob("*.tmp*")))
        recorded = _recorded(folder)
        for prefix in recorded:
            assert repair.find_damage(prefix) is None, (kill, event, prefix)
        if recorded:
            now = repair.step_of(recorded[-1])
            assert now >= recorded_step
            assert not steps or steps[-1] - now <= 3  # saved every 2 steps
            recorded_step = now
    assert 0 < resumed_from < reached < LAST_STEP
    assert unfinished  # some kills hit a checkpoint being written

    last = forker.fake_training(
        str(folder), num_steps=LAST_STEP, save_steps=100, step_secs=0, eval_secs=1000,
        ballast=BALLAST,
    )  # fmt: skip
    assert last.wait() == 0, last.output()
    assert f"step {LAST_STEP}/{LAST_STEP}" in last.output()
    assert repair.trained_steps(str(folder)) == LAST_STEP
    assert _records_used(folder, LAST_STEP) == 2 * LAST_STEP
    assert not list(folder.glob("*_temp")) + list(folder.glob("*.tmp*"))
    indexes = list(folder.glob("*.index"))
    assert indexes
    for index in indexes:
        assert repair.find_damage(str(index.with_suffix(""))) is None


def test_kills_of_the_command(tmp_path: pathlib.Path) -> None:
    config = small_config(tmp_path, num_steps=COMMAND_STEPS)
    folder = tmp_path / "model"
    command = [sys.executable, "-m", "estimator_det.cli", "train", "--save_checkpoints_steps=2"]
    command += ["--pipeline_config_path", config, "--model_dir", str(folder)]
    command += ["--eval_throttle_secs=100", "--progress_steps=1"]
    reached = 0
    for number, seconds in enumerate((0.0, 0.3, 0.1)):
        log = tmp_path / f"log{number}"
        with log.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=TESTS.parent)
        while repair.trained_steps(str(folder)) <= reached:
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        time.sleep(seconds)
        process.kill()
        assert process.wait() == -signal.SIGKILL, log.read_text()
        for prefix in _recorded(folder):
            assert repair.find_damage(prefix) is None, prefix
        step = repair.trained_steps(str(folder))
        assert step > reached
        reached = step
    command = [one.replace("steps=2", "steps=50") for one in command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent)
    assert done.returncode == 0, done.stderr
    assert f"Resuming at step {reached}" in done.stderr
    assert repair.trained_steps(str(folder)) == COMMAND_STEPS
    assert (
        _records_used(folder, COMMAND_STEPS)
        == COMMAND_STEPS * read_pipeline(config).train_config.batch_size
    )
