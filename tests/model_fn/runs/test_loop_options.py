import re

import pytest
from google.protobuf import text_format

from estimator_det.config import pipeline
from estimator_det.config.text import ConfigError
from estimator_det.protos.pipeline_pb2 import TrainEvalPipelineConfig
from model_fn.runs.options import MULTI_WORKER, PARAMETER_SERVER, LoopOptions, check_loop


def test_simulated_quantization_is_refused():
    config = TrainEvalPipelineConfig()
    config.train_config.batch_size = 1
    check_loop(config, LoopOptions())
    config.graph_rewriter.quantization.delay = 10
    with pytest.raises(ConfigError, match=r"^graph_rewriter.quantization is not") as no:
        check_loop(config, LoopOptions())
    (assignment,) = re.findall(r"--set (\S+)\)", str(no.value))
    check_loop(pipeline.apply_overrides(config, [assignment]), LoopOptions())


@pytest.mark.parametrize(
    ("text", "allowed", "refused", "message"),
    [
        (
            "train_input_reader { num_epochs: 3 drop_remainder: true }",
            "mirrored",
            MULTI_WORKER,
            "num_epochs is 3: with strategy 'multi_worker_mirrored'",
        ),
        (
            "train_config { sync_replicas: true }",
            MULTI_WORKER,
            PARAMETER_SERVER,
            r"sync_replicas is true: .*=false\), or use strategy",
        ),
    ],
)
def test_what_a_strategy_does_not_have(text, allowed, refused, message):
    config = text_format.Parse(text, TrainEvalPipelineConfig())
    check_loop(config, LoopOptions(allowed))
    with pytest.raises(ConfigError, match=message):
        check_loop(config, LoopOptions(refused))
