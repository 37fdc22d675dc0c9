"""Training as on TPU, rehearsed; tests/model_fn/runs/backends proves what it writes."""

import pytest

from estimator_det.compat import tf1
from estimator_det.programs import model_main
from tests.programs.forking import small_config

TPU = ["--rehearse_tpu", "--num_shards=2", "--iterations_per_loop=2"]
FIT = ["train_config.batch_size=4", "model.ssd.inplace_batchnorm_update=true"]


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_training(tmp_path):
    path, folder = small_config(tmp_path, 4, *FIT), tmp_path / "rehearsed"
    flags = [f"--pipeline_config_path={path}", f"--model_dir={folder}", "--mode=train"]
    assert model_main.main(["model_main", *flags, *TPU]) == 0
    assert tf1.train.load_variable(str(folder), "global_step") == 4
