"""Training as on TPU, rehearsed; tests/model_fn/runs/backends proves what it writes."""

from __future__ import annotations

import pytest

from estimator_det.compat import tf1
from estimator_det.config import pipeline
from estimator_det.programs import demo, model_main
from inputs.datasets import shapes
from tests.programs.test_runs import PLAIN, SMALL

TPU = ["--rehearse_tpu", "--num_shards=2", "--iterations_per_loop=2"]
FIT = ["train_config.batch_size=4", "model.ssd.inplace_batchnorm_update=true"]


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_training(tmp_path):
    files = shapes.make_dataset(str(tmp_path / "data"), seed=0, size="tiny")
    path, folder = tmp_path / "small.config", tmp_path / "rehearsed"
    path.write_text(pipeline.format_pipeline(demo.demo_config(files, 4, [*SMALL, PLAIN, *FIT])))
    flags = [f"--pipeline_config_path={path}", f"--model_dir={folder}", "--mode=train"]
    assert model_main.main(["model_main", *flags, *TPU]) == 0
    assert tf1.train.load_variable(str(folder), "global_step") == 4
