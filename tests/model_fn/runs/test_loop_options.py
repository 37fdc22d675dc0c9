from __future__ import annotations

import re

import pytest

from estimator_det.config import pipeline
from estimator_det.config.text import ConfigError
from estimator_det.protos.pipeline_pb2 import TrainEvalPipelineConfig
from model_fn.runs.options import MULTI_WORKER, PARAMETER_SERVER, LoopOptions, check_loop


def test_simulated_quantization_is_refused() -> None:
    config = TrainEvalPipelineConfig()
    config.train_config.batch_size = 1
    check_loop(config, LoopOptions())
    config.graph_rewriter.quantization.delay = 10
    with pytest.raises(ConfigError, match=r"^graph_rewriter.quantization is not") as no:
        check_loop(config, LoopOptions())
    (assignment,) = re.findall(r"--set (\S+)\)", str(no.value))
    check_loop(pipeline.apply_overrides(config, [assignment]), LoopOptions())


def test_data_of_workers_do_not_end() -> None:
    config = TrainEvalPipelineConfig()
    config.train_config.batch_size = 2
    config.train_input_reader.num_epochs = 3
    config.train_input_reader.drop_remainder = True
    check_loop(config, LoopOptions("mirrored"))
    with pytest.raises(ConfigError, match="num_epochs is 3: with strategy 'multi_worker_mirrored'"):
        check_loop(config, LoopOptions(MULTI_WORKER))


def test_coordinated_workers_are_asynchronous() -> None:
    config = TrainEvalPipelineConfig()
    config.train_config.sync_replicas = True
    check_loop(config, LoopOptions(MULTI_WORKER))
    with pytest.raises(ConfigError, match=r"sync_replicas is true: .*=false\), or use strategy"):
        check_loop(config, LoopOptions(PARAMETER_SERVER))
