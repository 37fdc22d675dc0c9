import re

import pytest
from google.protobuf import text_format

from estimator_det.config import pipeline
from estimator_det.errors import UsageError
from estimator_det.protos.pipeline_pb2 import TrainEvalPipelineConfig
from inputs import machine
from model_fn.runs import options, precision
from model_fn.runs.cluster import SINGLE
from model_fn.runs.options import MULTI_WORKER, PARAMETER_SERVER, LoopOptions
from model_fn.runs.roles import check_batch, check_loop


def test_simulated_quantization_is_refused():
    config = TrainEvalPipelineConfig()
    config.train_config.batch_size = 1
    check_loop(config, LoopOptions(), SINGLE)
    config.graph_rewriter.quantization.delay = 10
    with pytest.raises(UsageError, match=r"^graph_rewriter.quantization: is not") as no:
        check_loop(config, LoopOptions(), SINGLE)
    (assignment,) = re.findall(r"--set (\S+)\)", str(no.value))
    check_loop(pipeline.apply_overrides(config, [assignment]), LoopOptions(), SINGLE)


def test_mining_is_not_compiled():
    config = text_format.Parse(
        "model { ssd { loss { hard_example_miner { } } } }", TrainEvalPipelineConfig()
    )
    check_loop(config, LoopOptions(), SINGLE)
    compiled = LoopOptions(jit_compile=True)
    with pytest.raises(UsageError, match=r"^model\.ssd\.loss\.hard_example_miner: selects") as no:
        check_loop(config, compiled, SINGLE)
    (assignment,) = re.findall(r"--set (\S+)\)", str(no.value))
    check_loop(pipeline.apply_overrides(config, [assignment]), compiled, SINGLE)


def _strategy(name: str) -> LoopOptions:
    """Options whose strategy is there, so that the cluster does not matter."""
    return LoopOptions(name, distribution=object())


@pytest.mark.parametrize(
    ("text", "allowed", "refused", "message"),
    [
        ("train_input_reader { num_epochs: 3 drop_remainder: true }", "mirrored", MULTI_WORKER,
         "num_epochs: is 3: with strategy 'multi_worker_mirrored'"),
        ("train_config { sync_replicas: true }", MULTI_WORKER, PARAMETER_SERVER,
         r"sync_replicas: is true: .*=false\), or use strategy"),
    ],
)  # fmt: skip
def test_what_a_strategy_does_not_have(text, allowed, refused, message):
    config = text_format.Parse(text, TrainEvalPipelineConfig())
    check_loop(config, _strategy(allowed), SINGLE)
    with pytest.raises(UsageError, match=message):
        check_loop(config, _strategy(refused), SINGLE)


def test_parts_of_a_batch_are_of_one_size():
    config = text_format.Parse("train_config { batch_size: 4 }", TrainEvalPipelineConfig())
    config.train_input_reader.drop_remainder = True
    check_batch(config, LoopOptions(accumulate_steps=2), 2)
    config.train_input_reader.drop_remainder = False
    with pytest.raises(UsageError, match=r"^train_input_reader\.drop_remainder: is false: "):
        check_batch(config, LoopOptions(accumulate_steps=2), 2)


def test_a_tpu_has_the_precision_of_the_options():
    config, tpu = TrainEvalPipelineConfig(), options.TpuOptions(rehearses=True)
    narrow = options.TrainOptions(tpu=tpu, precision="mixed_bfloat16")
    assert precision.with_precision(config, narrow).train_config.use_bfloat16
    assert not config.train_config.use_bfloat16
    config.graph_rewriter.quantization.delay = 10
    with pytest.raises(UsageError, match=r"^precision is mixed_bfloat16, and graph_rewriter"):
        precision.with_precision(config, narrow)


def test_options_that_need_or_exclude_each_other():
    with pytest.raises(UsageError, match="a run is on a TPU or in the TF2 loop"):
        options.TrainOptions(tpu=options.TpuOptions(rehearses=True), loop=LoopOptions())
    for fields, message in (
        ({"patience": 2}, "patience needs best_metric"),
        ({"keep_best": 2}, "keep_best needs best_metric"),
        ({"min_delta": 0.1, "best_metric": "mAP"}, "min_delta needs patience"),
    ):
        with pytest.raises(UsageError, match=message):
            options.EvaluationOptions(**fields)
    with pytest.raises(UsageError, match="tf_data_service is 'host': give host:port"):
        options.TrainOptions(data_service="host")
    assert options.TrainOptions(data_service="grpc://host:1").data_service == "host:1"


def test_types_that_this_machine_emulates_are_named(monkeypatch, caplog):
    monkeypatch.setattr(machine, "has_bfloat16", lambda: True)
    for precision_name, remedy in (
        ("bfloat16_convolutions", None),
        ("mixed_float16", "Use mixed_bfloat16, or leave precision out"),
        ("mixed_bfloat16", "Leave precision out"),
    ):
        caplog.clear()
        given = options.TrainOptions(precision=precision_name, loop=LoopOptions())
        precision.with_precision(TrainEvalPipelineConfig(), given)
        assert caplog.text.endswith(f"{remedy}\n") if remedy else not caplog.text
        monkeypatch.setattr(machine, "has_bfloat16", lambda: False)
