"""The Estimator of a configuration, and what its checkpoints say."""

from __future__ import annotations

from typing import Any, Callable, Optional

from estimator_det.compat import estimator, tf1
from estimator_det.detectors.base import make_detector
from model_fn.create import create_model_fn


def preprocess_of(pipeline_config: Any, is_training: bool) -> Callable[..., Any]:
    """The `preprocess` function that input functions are handed."""
    return make_detector(pipeline_config.model, is_training=is_training).preprocess


def make_estimator(
    pipeline_config: Any,
    model_dir: str,
    *,
    save_checkpoints_steps: Optional[int] = None,
    save_checkpoints_secs: Optional[int] = None,
    keep_checkpoint_max: int = 5,
    save_summary_steps: int = 100,
    seed: Optional[int] = None,
) -> Any:
    """An `Estimator` of a pipeline configuration; saves every ten minutes unless told otherwise.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Where checkpoints and events go.
        save_checkpoints_steps: Steps between checkpoints; not together with seconds.
        save_checkpoints_secs: Seconds between checkpoints.
        keep_checkpoint_max: Older checkpoints than this many are deleted.
        save_summary_steps: Steps between summaries.
        seed: Of initial values and whatever else is random in the graph.

    Raises:
        ValueError: if both steps and seconds are given.
    """
    if save_checkpoints_steps and save_checkpoints_secs:
        raise ValueError(
            "save checkpoints by steps or by seconds, not both; given "
            f"{save_checkpoints_steps} steps and {save_checkpoints_secs} seconds"
        )
    interval = (
        {"save_checkpoints_steps": save_checkpoints_steps}
        if save_checkpoints_steps
        else {"save_checkpoints_secs": save_checkpoints_secs or 600}
    )
    run_config = estimator.RunConfig(
        model_dir=model_dir,
        tf_random_seed=seed,
        save_summary_steps=save_summary_steps,
        keep_checkpoint_max=keep_checkpoint_max,
        log_step_count_steps=save_summary_steps,
        **interval,
    )
    return estimator.Estimator(create_model_fn(pipeline_config), config=run_config, params={})


def trained_steps(model_dir: str) -> int:
    """The global step of the last checkpoint in a folder; 0 without one."""
    checkpoint = tf1.train.latest_checkpoint(model_dir)
    return step_of(checkpoint) if checkpoint else 0


def step_of(checkpoint: str) -> int:
    """The global step in a checkpoint; 0 where it holds none."""
    reader = tf1.train.load_checkpoint(checkpoint)
    if not reader.has_tensor("global_step"):
        return 0
    return int(reader.get_tensor("global_step"))
