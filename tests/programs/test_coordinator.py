"""Real processes that train by the TF2 loop with parameter servers."""

import json

import pytest

from tests.arrays import assert_same
from tests.checkpoints import stored
from tests.programs.clusters import COORDINATOR, check_whole, last_evaluation, saved_steps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("chief", "other"),
    [("chief", "evaluator"), pytest.param("master", None, marks=pytest.mark.exhaustive)],
)
def test_a_training(fake_cluster, tmp_path, chief, other):
    cluster = fake_cluster(chief=chief, servers=2, num_steps=32, **COORDINATOR)
    folder = tmp_path / "model"
    cluster.start_all(*([other] if other else []))
    cluster.expect()
    assert saved_steps(folder)[-1] == 32
    check_whole(folder)
    assert last_evaluation(folder)["step"] == 32
    assert "step 32/32" in cluster.runs[f"{chief}-0"].output()
    # Each record of the workers' steps is counted.
    counts = [
        json.loads((folder / f"data_position-worker-{i}.json").read_text())["32"]["count"]
        for i in range(2)
    ]
    assert sum(counts) == 2 * 32 and all(counts)


@pytest.mark.exhaustive
def test_one_worker_takes_the_steps_of_one_device(fake_cluster, forker, tmp_path):
    settings = {"num_steps": 12, "seed": 3}
    cluster = fake_cluster(workers=1, **COORDINATOR, **settings)
    cluster.start_all()
    cluster.expect()
    alone = tmp_path / "alone"
    run = forker.fake_training(str(alone), strategy="none", ballast=10, save_steps=10, **settings)
    assert run.wait() == 0, run.output()
    assert_same(*(stored(each / "model.ckpt-12") for each in (tmp_path / "model", alone)))
