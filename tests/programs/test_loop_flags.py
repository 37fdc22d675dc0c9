"""Flags of `estimator-det train` that choose the TF2 loop."""

from __future__ import annotations

import argparse
from typing import Optional

import pytest

from estimator_det.errors import UsageError
from estimator_det.programs.verbs import train
from model_fn.runs.options import LoopOptions


def _chosen(*flags: str) -> Optional[LoopOptions]:
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    return train._loop(parser.parse_args(["ssd.config", "--model_dir", "run", *flags]))


def test_estimator_trains_unless_a_strategy_is_given():
    assert _chosen() is None
    assert _chosen("--strategy", "none") == LoopOptions()
    flags = "--strategy mirrored --num_replicas 2 --accumulate_steps 4 --steps_per_call 5"
    found = _chosen(*flags.split(), "--jit_compile")
    assert found == LoopOptions("mirrored", 2, 4, 5, True)


@pytest.mark.parametrize(
    ("flag", "strategy"),
    [
        ("--accumulate_steps=2", "none"),
        ("--jit_compile", "none"),
        ("--num_replicas=2", "mirrored"),
        ("--tpu_name=local", "tpu"),
    ],
)
def test_flags_of_the_loop_need_a_strategy(flag, strategy):
    with pytest.raises(UsageError, match=f"^{flag.partition('=')[0]} is an opt") as refused:
        _chosen(flag)
    assert str(refused.value).endswith(f"--strategy {strategy}")
    assert _chosen(flag, "--strategy", strategy) is not None  # the advice is taken


def test_the_tpu_of_the_environment(monkeypatch):
    monkeypatch.setenv("TPU_CONFIG", '{"tpu_node_name": "one", "zone": "here"}')
    assert _chosen("--strategy", "tpu") == LoopOptions("tpu", tpu_name="one", tpu_zone="here")
    found = _chosen("--strategy", "tpu", "--tpu_name", "local")
    assert found == LoopOptions("tpu", tpu_name="local")
    with pytest.raises(UsageError, match="tpu_zone is for a TPU that is found by its name"):
        _chosen("--strategy", "tpu", "--tpu_name", "local", "--tpu_zone", "here")
    with pytest.raises(UsageError, match="--strategy another one: give one of them"):
        _chosen("--strategy", "none", "--rehearse_tpu")
