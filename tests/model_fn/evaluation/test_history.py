import math

import pytest

from model_fn.evaluation import best_checkpoints, history
from model_fn.evaluation.history import Evaluation

METRIC = "DetectionBoxes_Precision/mAP"


def _evaluations(*values, metric=METRIC):
    return [Evaluation("0", step, {metric: value}) for step, value in enumerate(values, start=1)]


def test_evaluations_without_progress():
    count = history.evaluations_without_progress
    assert count([], METRIC) == 0
    assert count(_evaluations(0.1, 0.2, 0.2, 0.15), METRIC) == 2
    assert count(_evaluations(0.1, 0.11, 0.12, 0.3), METRIC, min_delta=0.05) == 0
    assert count(_evaluations(0.1, 0.11, 0.12), METRIC, min_delta=0.05) == 2
    assert count(_evaluations(0.3, 0.1, 0.2), METRIC, lower_is_better=True) == 1
    assert count(_evaluations(math.nan, math.nan), METRIC) == 0  # nothing to compare with yet
    with pytest.raises(ValueError, match=r"best_metric: 'mAP' is not evaluated\. Known: "):
        count(_evaluations(0.1), "mAP")


def test_record_and_read(tmp_path):
    folder = str(tmp_path)
    assert history.read(folder, "0") == []
    first = Evaluation("0", 10, {METRIC: 0.25, "loss": math.nan}, {"loss": "why"}, time=1.0)
    history.record(folder, first)
    history.record(folder, Evaluation("other", 10, {METRIC: 0.9}))
    history.record(folder, Evaluation("0", 20, {METRIC: 0.5}))
    history.record(folder, Evaluation("0", 20, {METRIC: 0.6}))  # evaluated again
    (tmp_path / history.EVALUATIONS_FILE).open("a").write('{"reader": "0", "st')  # killed
    read = history.read(folder, "0")
    assert [(evaluation.step, evaluation.metrics[METRIC]) for evaluation in read] == [
        (10, 0.25),
        (20, 0.6),
    ]
    assert math.isnan(read[0].metrics["loss"]) and read[0].notes == {"loss": "why"}
    assert [evaluation.step for evaluation in history.read(folder, "0", up_to_step=15)] == [10]


def test_best_checkpoints(tmp_path):
    keeper = best_checkpoints.BestCheckpoints(str(tmp_path), METRIC, 2)
    suffixes, exported = ("data-00000-of-00001", "index"), []
    values = {1: 0.2, 10: 0.5, 11: 0.4, 12: 0.1, 13: math.nan, 100: 0.5}
    for step, value in values.items():
        checkpoint = tmp_path / f"model.ckpt-{step}"
        for suffix in suffixes:
            (tmp_path / f"{checkpoint.name}.{suffix}").write_text(suffix)
        evaluation = Evaluation("0", step, {METRIC: value})
        keeper.offer(evaluation, str(checkpoint), exported.append)
    assert exported == [str(tmp_path / "best" / f"model.ckpt-{step}") for step in (1, 10)]
    assert [entry["step"] for entry in keeper.kept()] == [10, 100]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [
        *("best.json", "checkpoint"),
        *(f"model.ckpt-{step}.{suffix}" for step in (10, 100) for suffix in suffixes),
    ]
    assert best_checkpoints.BestCheckpoints(str(tmp_path), "loss", 2).kept() == []


@pytest.mark.parametrize("content", ["", '{"metric": "loss", "ke', "[]", '{"metric": "loss"}', "3"])
def test_a_list_of_the_best_that_a_crash_has_cut(tmp_path, caplog, content):
    best = tmp_path / "best"
    best.mkdir()
    (best / "best.json").write_text(content)
    (best / "model.ckpt-1.index").write_text("copy")
    (tmp_path / "model.ckpt-2.index").write_text("index")
    keeper = best_checkpoints.BestCheckpoints(str(tmp_path), "loss", 1)
    keeper.offer(Evaluation("0", 2, {"loss": 3.0}), str(tmp_path / "model.ckpt-2"), str)
    assert f"{best / 'best.json'} cannot be read" in caplog.text
    assert [entry["step"] for entry in keeper.kept()] == [2]
    assert (best / "model.ckpt-1.index").exists()
