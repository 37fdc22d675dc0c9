"""Training on TPU: the TPUEstimator, what it is fed, and what is told of its loops."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

from estimator_det.compat import tf, tf1, tpu_estimator
from estimator_det.config.text import ConfigError
from inputs import schema
from model_fn.checkpoints.errors import RunError
from model_fn.model_fn import create_model_fn
from model_fn.runs.backends import tpu_options
from model_fn.runs.backends.tpu_options import OnTpu
from model_fn.runs.options import Saving
from model_fn.runs.progress import (
    PROGRESS_FILE,
    JsonlLogger,
    NotFiniteLossError,
    TensorBoardLogger,
    TrainingReport,
)
from model_fn.training.host_call import LastFigures

# What a train step reads; the rest would only fill the way from the host to the cores.
FEATURES = tuple(key for key, spec in schema.FEATURES.items() if spec.in_train_step)
EVALUATION_FEATURES = tuple(key for key, spec in schema.FEATURES.items() if spec.in_eval_step)
_UNUSED_LABELS = tuple(key for key, spec in schema.LABELS.items() if not spec.on_tpu)
_NO_TPU = ("Cannot find any TPU cores", "Failed to connect to the Tensorflow master")
# What TPUEstimator says of a variable after a loop, whatever it is that is NaN.
_NOT_FINITE = re.compile(r"Gradient for (\S+?)(:0)? is NaN")
_REMEDY = (
    "Lower the learning rate or lengthen its warm-up; on CPU or GPU the step at fault would be "
    "held back and written out"
)


class NoTpuError(RunError):
    """The TPU that a run is meant for cannot be reached."""


def make_estimator(
    pipeline_config: Any,
    model_dir: str,
    on_tpu: OnTpu,
    *,
    saving: Optional[Saving] = None,
    seed: Optional[int] = None,
) -> Any:
    """A `TPUEstimator` of a pipeline configuration, that trains, and evaluates if asked to.

    It saves no checkpoints by itself; runs bring a hook for that.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto; its batch size is that of all cores.
        model_dir: Where checkpoints and events go.
        on_tpu: Which TPU, and how.
        saving: How many checkpoints are kept.
        seed: Of initial values and whatever else is random in the graph.

    Raises:
        ConfigError: if the configuration does not suit a TPU.
        NoTpuError: if there is no such TPU.
    """
    tpu_options.check(pipeline_config, model_dir, on_tpu)
    evaluation_batch = pipeline_config.eval_config.batch_size
    return tpu_estimator.TPUEstimator(
        create_model_fn(pipeline_config, use_tpu=True),
        config=make_run_config(model_dir, on_tpu, saving=saving, seed=seed),
        use_tpu=not on_tpu.rehearses,
        train_batch_size=pipeline_config.train_config.batch_size,
        eval_batch_size=evaluation_batch,
        predict_batch_size=evaluation_batch,
        eval_on_tpu=on_tpu.evaluates,
        export_to_tpu=False,
    )


def make_run_config(
    model_dir: str,
    on_tpu: OnTpu,
    *,
    saving: Optional[Saving] = None,
    seed: Optional[int] = None,
) -> Any:
    """The `RunConfig`: one synchronous batch over all cores, each host reading its own records.

    Raises:
        NoTpuError: if there is no such TPU.
    """
    try:
        cluster = None
        if not on_tpu.rehearses:
            cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
                tpu=on_tpu.name, zone=on_tpu.zone, project=on_tpu.project
            )
        # One entry of the speed a loop. TPUEstimator counts runs of its session, and without a TPU
        # each of them is a step.
        runs = on_tpu.iterations_per_loop if on_tpu.rehearses else 1
        return tpu_estimator.RunConfig(
            model_dir=model_dir,
            tf_random_seed=seed,
            cluster=cluster,
            keep_checkpoint_max=(saving or Saving()).keep_max,
            # A hook of the run saves; a second one would do so again.
            save_checkpoints_secs=None,
            save_checkpoints_steps=None,
            log_step_count_steps=on_tpu.iterations_per_loop * runs,
            tpu_config=tpu_estimator.TPUConfig(
                iterations_per_loop=on_tpu.iterations_per_loop,
                # Estimators handle a single shard as one that is not replicated at all.
                num_shards=on_tpu.num_shards if on_tpu.num_shards > 1 else None,
                per_host_input_for_training=tpu_estimator.InputPipelineConfig.PER_HOST_V2,
            ),
        )
    except ImportError as error:
        raise NoTpuError(
            f"{error}. To find a TPU by its name, pip install cloud-tpu-client; or give its "
            "address, grpc://host:8470, or 'local' on its own machine"
        ) from error
    except (ValueError, RuntimeError, OSError) as error:
        raise NoTpuError(
            f"TPU {on_tpu.name!r} (zone {on_tpu.zone or 'of this machine'}, project "
            f"{on_tpu.project or 'of this machine'}) is not to be found: {error}. "
            "gcloud compute tpus list --zone ZONE tells those there are"
        ) from error


class _LoopsInGraph:
    """Makes loops of operations in the graph, not of functions, until the graph is built.

    TPUEstimator puts the whole model into a loop. In a function, layers with a regularizer cannot
    be built in bfloat16: what stands for a variable there cannot be looked up.
    """

    def __init__(self) -> None:
        self._were_functions = False

    def begin(self) -> None:
        """From now on."""
        self._were_functions = tf1.control_flow_v2_enabled()
        tf1.disable_control_flow_v2()

    def end(self) -> None:
        """Everything is as it was before; does nothing a second time."""
        if self._were_functions:
            tf1.enable_control_flow_v2()
        self._were_functions = False


_LOOPS = _LoopsInGraph()


@contextlib.contextmanager
def running(on_tpu: Optional[OnTpu]) -> Iterator[None]:
    """Within, a TPUEstimator can train: its graph is built as it must be, and errors are explained.

    The error of a missing TPU becomes a `NoTpuError`, that of a variable that is NaN a
    `NotFiniteLossError`. Does nothing without `on_tpu`.
    """
    if on_tpu is None:
        yield
        return
    _LOOPS.begin()
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _NOT_FINITE.search(str(error))
        if found is None:
            raise
        raise NotFiniteLossError(
            f"not finite after a loop of {on_tpu.iterations_per_loop} steps: {found[1]}. {_REMEDY}"
        ) from error
    except (RuntimeError, ValueError) as error:
        if not any(text in str(error) for text in _NO_TPU):
            raise
        raise NoTpuError(
            f"TPU {on_tpu.name!r} has no cores that this machine can reach. Is it running, and "
            "this its network? To try the run without one, rehearse it: --rehearse_tpu"
        ) from error
    finally:
        _LOOPS.end()


def static_batches(pipeline_config: Any) -> Any:
    """The configuration with readers that leave incomplete batches out."""
    config = type(pipeline_config)()
    config.CopyFrom(pipeline_config)
    config.train_input_reader.drop_remainder = True
    for reader in config.eval_input_reader:
        reader.drop_remainder = True
    return config


def fed(input_fn: Callable[..., Any], *, evaluates: bool = False) -> Callable[..., Any]:
    """An input function for `TPUEstimator`: batches of static shape, of what cores make use of.

    Each host reads its own part of the records; a batch is that of one core,
    `params["batch_size"]`.

    Args:
        input_fn: Of `inputs.pipeline`, with a configuration of `static_batches`.
        evaluates: Whether it is for evaluation, which needs more.

    Returns:
        `input_fn(params)`; it raises `ConfigError` if the configuration leaves a shape open.
    """
    wanted = EVALUATION_FEATURES if evaluates else FEATURES

    @tf.autograph.experimental.do_not_convert
    def keep(features: Dict[str, tf.Tensor], labels: Dict[str, tf.Tensor]) -> Any:
        return (
            {key: tensor for key, tensor in features.items() if key in wanted},
            {key: tensor for key, tensor in labels.items() if key not in _UNUSED_LABELS},
        )

    def feed(params: Dict[str, Any]) -> tf.data.Dataset:
        dataset = input_fn(params, _part_of_host(params)).map(keep)
        for specs in dataset.element_spec:
            _check_static(specs)
        return dataset

    return feed


def _part_of_host(params: Dict[str, Any]) -> Optional[tf.distribute.InputContext]:
    """Which part of the records is this host's; None where there is one host."""
    context = params.get("context")
    if context is None:
        return None
    _, index, count, _ = context.current_input_fn_deployment()
    # One replica: the batch size is that of a core already.
    return tf.distribute.InputContext(count, index, num_replicas_in_sync=1)


def _check_static(specs: Dict[str, tf.TensorSpec]) -> None:
    for key, spec in specs.items():
        if not spec.shape.is_fully_defined():
            raise ConfigError(
                f"{key} has shape {spec.shape}, but a TPU needs every length. Give the model a "
                "fixed_shape_resizer, or a keep_aspect_ratio_resizer with pad_to_max_dimension: "
                "true, and the reader num_keypoints where it loads keypoints; "
                "estimator-det check-config --tpu tells more"
            )


class LoopReport(TrainingReport):
    """Tells after each loop on the TPU how training goes; in a rehearsal, as often as that.

    The figures are those of the last step that arrived at the host. What is not finite ends the
    training: nothing holds back a bad step within a loop, as it would be on CPU or GPU.
    """

    def begin(self) -> None:
        """Finds the figures in the graph about to run, which is built with that."""
        _LOOPS.end()
        self._figures = LastFigures()
        self._global_step = tf1.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        """Notes the time."""
        del run_context
        self._started = time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Checks the figures and reports them when it is time."""
        del run_values
        before, now = self._step, time.monotonic()
        self._step = int(run_context.session.run(self._global_step))
        num_steps = self._step - before
        if before > self._first_step and num_steps:  # The first run also compiles.
            self._durations.append((now - self._started) / num_steps)
        if self._bar is not None:
            self._bar.update(num_steps)
        step, values = self._figures.read(run_context.session)
        bad = {name: value for name, value in values.items() if not math.isfinite(value)}
        if bad:
            raise NotFiniteLossError(
                f"not finite in the steps up to {self._step}: {bad}; all, of step {step}: "
                f"{values}. {_REMEDY}"
            )
        self._values = values
        is_first, is_last = before == self._first_step, self._step == self._num_steps
        if is_first or is_last or self._step - self._reported >= self._every_steps:
            self._report()


def training_hooks(
    pipeline_config: Any,
    model_dir: str,
    num_steps: Optional[int],
    on_tpu: OnTpu,
    *,
    silent: bool = False,
    fault_log: Optional[Any] = None,
) -> List[Any]:
    """The hooks that tell how a training on TPU goes; `progress.training_hooks` for others."""
    return [
        LoopReport(
            pipeline_config.train_config.batch_size,
            num_steps,
            every_steps=on_tpu.iterations_per_loop,
            silent=silent,
            listeners=[
                JsonlLogger(os.path.join(model_dir, PROGRESS_FILE)),
                TensorBoardLogger(model_dir, fault_log),
            ],
        )
    ]


class TpuEvaluator:
    """Evaluates on the TPU, and exports for CPU; stands in for an Estimator.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto; `eval_config.num_examples` says how many
            images there are, of which whole batches are evaluated.
        tpu: Of `make_estimator`.

    Attributes:
        model_dir: Where it has its checkpoints.

    Raises:
        ConfigError: if there is not one whole batch.
    """

    def __init__(self, pipeline_config: Any, tpu: Any) -> None:
        config = pipeline_config.eval_config
        self._steps = config.num_examples // max(config.batch_size, 1)
        if not self._steps:
            raise ConfigError(
                f"eval_config.num_examples is {config.num_examples}, less than a batch of "
                f"{config.batch_size}: a TPU must know how many images to evaluate. Set it to the "
                "number of images, or evaluate on this machine"
            )
        self._tpu = tpu
        self.model_dir = tpu.model_dir

    def evaluate(self, input_fn: Callable[..., Any], **arguments: Any) -> Dict[str, Any]:
        """As `Estimator.evaluate`, over whole batches."""
        return dict(
            self._tpu.evaluate(fed(input_fn, evaluates=True), steps=self._steps, **arguments)
        )

    def export_saved_model(self, *arguments: Any, **options: Any) -> bytes:
        """As `Estimator.export_saved_model`."""
        exported: bytes = self._tpu.export_saved_model(*arguments, **options)
        return exported
