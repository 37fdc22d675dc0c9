"""The TPU that a cloud service names in environment variables. Imports no TensorFlow."""

from __future__ import annotations

import json
from typing import Mapping, NamedTuple, Optional

from estimator_det.config.text import ConfigError

ENDPOINTS_VARIABLE = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
NAME_VARIABLE = "TPU_NAME"
CONFIG_VARIABLE = "TPU_CONFIG"

_PREFIX = "grpc://"


class TpuAddress(NamedTuple):
    """Address of a TPU; fields that the environment does not set are None."""

    name: Optional[str] = None  # or its addresses, grpc://host:port, with commas between
    zone: Optional[str] = None
    project: Optional[str] = None


def read_tpu_address(environment: Mapping[str, str]) -> TpuAddress:
    """The TPU of the first of these variables that is set.

    * KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, set by Kubernetes Engine: addresses with commas between.
    * TPU_NAME, set on virtual machines: a name or an address.
    * TPU_CONFIG, set by training services: JSON with tpu_node_name, zone and project.

    The order is that of TensorFlow's own client for Cloud TPU.
    """
    endpoints = environment.get(ENDPOINTS_VARIABLE, "").split(",")
    hosts = [endpoint.strip() for endpoint in endpoints if endpoint.strip()]
    if hosts:
        named = (host if host.startswith(_PREFIX) else _PREFIX + host for host in hosts)
        return TpuAddress(",".join(named))
    if environment.get(NAME_VARIABLE):
        return TpuAddress(environment[NAME_VARIABLE])
    if environment.get(CONFIG_VARIABLE):
        return _read_config(environment[CONFIG_VARIABLE])
    return TpuAddress()


def _read_config(text: str) -> TpuAddress:
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            None,
            f"{CONFIG_VARIABLE} is not JSON: {error}",
            "Correct or unset it, or give --tpu_name",
        ) from error
    name = settings.get("tpu_node_name") if isinstance(settings, dict) else None
    if not name:
        raise ConfigError(
            None,
            f"{CONFIG_VARIABLE} has no tpu_node_name: {text}. Required is a JSON "
            "object with tpu_node_name, zone and project",
            "Correct or unset it, or give --tpu_name",
        )
    return TpuAddress(str(name), settings.get("zone"), settings.get("project"))
