"""Finds the TPU of a run, and says what to do where it cannot be reached."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

from estimator_det.compat import tf
from model_fn.checkpoints.errors import RunError


class NoTpuError(RunError):
    """The TPU that a run is meant for cannot be reached."""


@contextlib.contextmanager
def finding(name: Optional[str], zone: Optional[str], project: Optional[str]) -> Iterator[None]:
    """Within, errors of TensorFlow's search for a TPU become a `NoTpuError`."""
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


def make_resolver(name: Optional[str], zone: Optional[str], project: Optional[str]) -> Any:
    """TensorFlow's resolver of a TPU; to be called within `finding`.

    Args:
        name: Of the TPU; "local" on its own machine, or an address, grpc://host:port.
    """
    return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, zone=zone, project=project)
