from __future__ import annotations

from typing import List

from estimator_det.config import pipeline
from estimator_det.config.check import check
from estimator_det.programs import demo


def _problems(*assignments: str) -> List[str]:
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    changed = pipeline.apply_overrides(config, ["train_config.num_steps=100", *assignments])
    return [str(one) for one in check(changed, check_files=False) if "graph_rewriter" in one.field]


def test_a_delay_before_the_end_is_in_order() -> None:
    assert _problems("graph_rewriter.quantization.delay=99") == []
    assert _problems() == []


def test_a_delay_that_no_step_reaches_is_reported() -> None:
    (problem,) = _problems("graph_rewriter.quantization={}")
    assert problem.startswith(
        "warning: graph_rewriter.quantization.delay: is 500000: training ends"
    )
    assert not _problems("graph_rewriter.quantization={}", "train_config.num_steps=0")


def test_a_rewriter_that_rewrites_nothing_is_reported() -> None:
    (problem,) = _problems("graph_rewriter={}")
    assert problem.startswith("warning: graph_rewriter: has no effect: quantization is not set")


def test_bits_that_tflite_lacks_are_reported() -> None:
    problems = _problems(
        "graph_rewriter.quantization={ delay: 5 weight_bits: 4 activation_bits: 16 }"
    )
    assert len(problems) == 2 and "is 4: TFLite computes with 8 bits" in problems[0]


def test_bits_and_delay_out_of_range_are_errors() -> None:
    problems = _problems("graph_rewriter.quantization={ delay: -1 weight_bits: 17 }")
    assert sum(problem.startswith("error: ") for problem in problems) == 2
