"""Training processes killed at random moments, and resumed."""

from __future__ import annotations

import json
import pathlib
import random
import re
import signal
import time
from typing import List, Set

import pytest

from estimator_det.compat import tf1
from estimator_det.files import json_lines
from model_fn.checkpoints import positions, repair
from tests import checkpoints
from tests.programs.clusters import check_whole
from tests.programs.forking import TIMEOUT, Run

pytestmark = pytest.mark.slow

ENDLESS = 10**6  # steps; no run gets there, however late its kill comes
JSON_LINES = {
    "evaluations.jsonl": '{"reader": ',
    "progress.jsonl": '{"time": ',
}  # and how one begins
BALLAST = 2**21  # 8 MB in each checkpoint, which take some time to write

# What a run has got to when it is killed, beside a random moment after its first step.
EVENTS = ("start", "shard", "index", "renamed", "meta", "listed", "evaluating")
# The last of these resumes from the checkpoint of step 2 or a later one.
FEW = ("shard", "listed", "listed", "evaluating")


def _recorded(folder: pathlib.Path) -> List[str]:
    state = tf1.train.get_checkpoint_state(str(folder))
    return list(state.all_model_checkpoint_paths) if state else []


def _happens(event: str, folder: pathlib.Path, run: Run, before: Set[str]) -> bool:
    """True once a run has reached a moment of interest, seen from outside."""
    new = {path.name for path in folder.glob("*")} - before
    if event == "shard":
        return bool(list(folder.glob("model.ckpt-*_temp")))
    if event == "renamed":
        return any(".data-" in name for name in new)
    if event == "index":
        return any(name.endswith(".index") for name in new)
    if event == "meta":
        return any(name.endswith(".meta") for name in new)
    if event == "listed":
        return bool(set(_recorded(folder)) - before)
    return event == "start" or "| localization" in run.output()


def _wait_for(event: str, folder: pathlib.Path, run: Run) -> None:
    before = {path.name for path in folder.glob("*")} | set(_recorded(folder))
    end = time.monotonic() + TIMEOUT
    while not _happens(event, folder, run, before):
        assert run.poll() is None, run.output()
        assert time.monotonic() < end, run.output()
        time.sleep(0.001)


def _records_used(folder: pathlib.Path, step: int) -> int:
    """Records read up to a step; as in an undisturbed run if none came twice or was missed."""
    position = positions.read(str(folder / positions.POSITION_FILE), step)
    return position.count


def _tear_last_lines(folder: pathlib.Path) -> None:
    """Leaves files of JSON lines as a kill during a write does: cut off within the last line."""
    for name, start in JSON_LINES.items():
        path = folder / name
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        last = lines.pop() if lines else f"{start} 0".encode()
        if folder.is_dir():
            path.write_bytes(b"".join(lines) + last[: len(last) // 2 + 1].rstrip(b"\n"))


def _check_lines(folder: pathlib.Path) -> None:
    """No entry was lost to the torn line before it."""
    for name, start in JSON_LINES.items():
        lines = (folder / name).read_text().splitlines()
        assert all(line.count(start) <= 1 for line in lines), name
        assert 0 < len(json_lines.read(str(folder / name))) < len(lines), name
        json.loads(lines[-1])


@pytest.mark.parametrize(
    "events", [FEW, pytest.param(EVENTS * 5, marks=pytest.mark.exhaustive)], ids=["4", "35"]
)
def test_kills(forker, tmp_path, events):
    rng = random.Random(5)
    folder = tmp_path / "model"
    recorded_step = reached = 0
    unfinished = resumed_from = 0
    for kill, event in enumerate(events):
        run = forker.fake_training(str(folder), num_steps=ENDLESS, ballast=BALLAST, eval_batches=1)
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
        _tear_last_lines(folder)
    assert 0 < resumed_from < reached
    # Among many kills, some hit a checkpoint being written.
    assert unfinished or len(events) < len(EVENTS)

    last_step = recorded_step + 50
    last = forker.fake_training(
        str(folder), num_steps=last_step, save_steps=100, step_secs=0, eval_secs=1000,
        ballast=BALLAST,
    )  # fmt: skip
    assert last.wait() == 0, last.output()
    assert f"step {last_step}/{last_step}" in last.output()
    assert checkpoints.trained_steps(str(folder)) == last_step
    assert _records_used(folder, last_step) == 2 * last_step
    assert not list(folder.glob("*_temp")) + list(folder.glob("*.tmp*"))
    _check_lines(folder)
    check_whole(folder)
