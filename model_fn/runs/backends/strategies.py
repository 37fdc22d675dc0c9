"""Strategies of `tf.distribute` by name, and the devices of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import Any, Iterator, List, Optional

from estimator_det.compat import failures, limit_waiting, tf
from estimator_det.console.signals import handlers_kept
from estimator_det.errors import NoTpuError, RunError, UsageError
from model_fn.runs.backends import workers
from model_fn.runs.cluster import Cluster
from model_fn.runs.options import (
    LOCAL,
    MIRRORED,
    MULTI_WORKER,
    PARAMETER_SERVER,
    TPU,
    LoopOptions,
)
from model_fn.runs.task_watch import is_listening

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def tpu_lookup_errors(
    name: Optional[str], zone: Optional[str], project: Optional[str]
) -> Iterator[None]:
    """Context manager: errors of TensorFlow's search for a TPU become a `NoTpuError`."""
    try:
        yield
    except ImportError as error:
        raise NoTpuError(
            f"{error}. To find a TPU by its name, pip install cloud-tpu-client; or give its "
            "address, grpc://host:8470, or 'local' on its own machine"
        ) from error
    except (ValueError, RuntimeError, OSError) as error:
        raise NoTpuError(
            f"TPU {name!r} (zone {zone or 'of this machine'}, project "
            f"{project or 'of this machine'}) was not found: {error}. "
            "gcloud compute tpus list --zone ZONE lists the TPUs of a zone"
        ) from error


def unreachable(name: Optional[str], reason: str) -> NoTpuError:
    """The error for a TPU without cores."""
    return NoTpuError(
        f"TPU {name!r} has no cores that this machine can reach: {reason}. Is it running, and is "
        "this its network? To rehearse a training by TPUEstimator without a TPU: --rehearse_tpu"
    )


def make_resolver(name: Optional[str], zone: Optional[str], project: Optional[str]) -> Any:
    """TensorFlow's resolver of a TPU; called inside of `tpu_lookup_errors`."""
    return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, zone=zone, project=project)


def set_up(loop: LoopOptions, members: Cluster, task_timeout_secs: float) -> LoopOptions:
    """The options with the strategy made; workers wait here for each other.

    Programs call this before anything else uses TensorFlow, whose devices cannot be set up later.
    An evaluator is not part of a strategy. A strategy of parameter servers is made later, and again
    if the variables are lost.
    """
    if loop.distribution is not None or members.is_evaluator or loop.strategy == PARAMETER_SERVER:
        return loop
    if loop.strategy == MULTI_WORKER:
        distribution = _multi_worker(members, task_timeout_secs)
    elif loop.strategy == TPU:
        distribution = _tpu(loop)
    elif loop.strategy == MIRRORED:
        distribution = _mirrored(loop)
    else:
        # OneDeviceStrategy, unlike no strategy, keeps the code of the loop the same for one device.
        gpus = tf.config.list_logical_devices("GPU")
        distribution = tf.distribute.OneDeviceStrategy(gpus[0].name if gpus else "/cpu:0")
    return dataclasses.replace(loop, distribution=distribution)


def _mirrored(loop: LoopOptions) -> Any:
    if not tf.config.list_physical_devices("GPU"):
        if (loop.num_replicas or 1) > 1 and (loop.steps_per_call or 1) > 1:
            raise UsageError(
                f"steps_per_call is {loop.steps_per_call}, and TensorFlow never ends a call "
                "of several steps on several logical CPUs. Leave it out"
            )
        # Sums on one device: CPUs have no communication of their own.
        return tf.distribute.MirroredStrategy(
            _logical_cpus(loop.num_replicas or 1),
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
    devices = [device.name for device in tf.config.list_logical_devices("GPU")]
    wanted = loop.num_replicas or len(devices)
    if wanted > len(devices):
        raise RunError(
            f"num_replicas is {wanted}, and this machine has {len(devices)} GPUs: {devices}. "
            f"Give {len(devices)} or less"
        )
    return tf.distribute.MirroredStrategy(devices[:wanted])


def _resolver(members: Cluster, **options: Any) -> Any:
    """TensorFlow's resolver of the cluster; its own does not read CLUSTER_SPEC."""
    names = workers.TENSORFLOW_JOBS
    jobs = {names.get(job, job): list(addresses) for job, addresses in members.jobs.items()}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=names.get(members.task.type, members.task.type),
        task_id=members.task.number,
        rpc_layer="grpc",
        **options,
    )


def parameter_servers(members: Cluster) -> Any:
    """A strategy of parameter servers, once they and the workers listen."""
    # TensorFlow's coordination service installs a SIGTERM handler of its own.
    with handlers_kept():
        return tf.distribute.ParameterServerStrategy(_resolver(members))


def _tpu(loop: LoopOptions) -> Any:
    name = loop.tpu_name
    with tpu_lookup_errors(name, loop.tpu_zone, loop.gcp_project):
        resolver = make_resolver(name, loop.tpu_zone, loop.gcp_project)
        # On its own machine a TPU has no address. At another one TensorFlow waits without a limit.
        address = "" if name == LOCAL else resolver.master().rpartition("/")[2]
        if address and not is_listening(address):
            raise OSError(f"nothing listens at {address}")
    try:
        if name != LOCAL:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise unreachable(name, failures.reason(error)) from error


def _multi_worker(members: Cluster, task_timeout_secs: float) -> Any:
    # TensorFlow itself waits for missing workers without a limit.
    workers.wait_for_others(members, task_timeout_secs)
    gpus = len(tf.config.list_physical_devices("GPU"))
    resolver = _resolver(members, num_accelerators={"GPU": gpus})
    try:
        # A worker that ends while the others connect would leave them waiting.
        with handlers_kept(), workers.explain_lost_workers(members, task_timeout_secs):
            limit_waiting(resolver, task_timeout_secs)
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except RuntimeError as error:
        raise RunError(
            "TensorFlow has started in this process, which can no longer join the other workers: "
            f"{error}. Train in a new process"
        ) from error


def _logical_cpus(number: int) -> List[str]:
    """Names of logical CPUs, which are made unless TensorFlow has started."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    if number > 1:
        try:
            devices = [tf.config.LogicalDeviceConfiguration()] * number
            tf.config.set_logical_device_configuration(cpu, devices)
        except RuntimeError as error:
            number_made = len(tf.config.list_logical_devices("CPU"))
            if number_made < number:
                raise RunError(
                    f"this process has {number_made} logical CPUs, and num_replicas is {number}; "
                    "they must be made before TensorFlow starts. Train in a new process"
                ) from error
    return [device.name for device in tf.config.list_logical_devices("CPU")][:number]
