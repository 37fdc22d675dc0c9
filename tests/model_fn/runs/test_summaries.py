from __future__ import annotations

import pathlib
from typing import Any, Dict, List, Set

import pytest

from estimator_det.compat import tf1
from model_fn.runs import runner
from model_fn.runs.backends import estimator
from tests.model_fn import fake

PICTURE = "Training_Inputs/0"


def _events(folder: pathlib.Path) -> List[Any]:
    return [
        event
        for path in sorted(folder.glob("events.*"))
        for event in tf1.train.summary_iterator(str(path))
    ]


def _steps_by_tag(folder: pathlib.Path) -> Dict[str, List[int]]:
    steps: Dict[str, List[int]] = {}
    for event in _events(folder):
        for value in event.summary.value:
            steps.setdefault(value.tag, []).append(event.step)
    return steps


def test_summaries_come_every_so_many_steps_of_one_set_of_fetches(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimator, "SUMMARY_STEPS", 2)
    run, fetched = tf1.Session.run, set()

    def recording_run(
        self: Any, fetches: Any, feed_dict: Any = None, *others: Any, **named: Any
    ) -> Any:
        tensors = {str(getattr(each, "name", each)) for each in _flat(fetches)}
        if any("train_op" in name for name in tensors):
            fetched.add(frozenset(tensors))
        return run(self, fetches, feed_dict, *others, **named)

    def _flat(fetches: Any) -> Set[Any]:
        if isinstance(fetches, dict):
            fetches = list(fetches.values())
        if not isinstance(fetches, (list, tuple)):
            return {fetches}
        return {leaf for each in fetches for leaf in _flat(each)}

    monkeypatch.setattr(tf1.Session, "run", recording_run)
    config = fake.pipeline_config("train_config { summarize_gradients: true }")
    runner.train(config, str(tmp_path), num_train_steps=4, progress=False)

    assert len(fetched) == 1
    steps = _steps_by_tag(tmp_path)
    for tag in (PICTURE, "Loss/total_loss", "loss", "global_norm/gradient_norm"):
        assert steps[tag] == [1, 3], tag
    # Tags have no name of a branch of the graph.
    assert "gradients/BoxPredictor/All/biases" in steps
    assert steps["global_step/sec"] == [3]


def test_a_resumed_run_says_so_to_tensorboard(readers: List[Any], tmp_path: pathlib.Path) -> None:
    runner.train(fake.pipeline_config(), str(tmp_path), num_train_steps=2, progress=False)
    runner.train(fake.pipeline_config(), str(tmp_path), num_train_steps=4, progress=False)
    starts = [
        event.step
        for event in _events(tmp_path)
        if event.session_log.status == tf1.SessionLog.START
    ]
    assert starts == [1, 3]
    assert _steps_by_tag(tmp_path)[PICTURE] == [1, 3]
