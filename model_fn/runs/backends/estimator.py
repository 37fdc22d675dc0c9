"""The Estimator of a configuration, and what its checkpoints say."""

from __future__ import annotations

from typing import Any, Callable, Optional

from estimator_det.compat import estimator
from estimator_det.detectors.base import make_detector
from model_fn.checkpoints.repair import step_of, trained_steps
from model_fn.model_fn import create_model_fn
from model_fn.runs.options import Saving

__all__ = ["make_estimator", "preprocess_of", "step_of", "trained_steps"]

SUMMARY_STEPS = 100  # between two summaries


def preprocess_of(pipeline_config: Any, is_training: bool) -> Callable[..., Any]:
    """The `preprocess` function that input functions are handed."""
    return make_detector(pipeline_config.model, is_training=is_training).preprocess


def make_estimator(
    pipeline_config: Any,
    model_dir: str,
    *,
    saving: Optional[Saving] = None,
    seed: Optional[int] = None,
) -> Any:
    """An `Estimator` of a pipeline configuration.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Where checkpoints and events go.
        saving: When it saves; by default every ten minutes.
        seed: Of initial values and whatever else is random in the graph.
    """
    saving = saving or Saving()
    run_config = estimator.RunConfig(
        model_dir=model_dir,
        tf_random_seed=seed,
        save_summary_steps=SUMMARY_STEPS,
        keep_checkpoint_max=saving.keep_max,
        log_step_count_steps=SUMMARY_STEPS,
        save_checkpoints_steps=saving.steps,
        save_checkpoints_secs=saving.secs,
    )
    return estimator.Estimator(create_model_fn(pipeline_config), config=run_config, params={})
