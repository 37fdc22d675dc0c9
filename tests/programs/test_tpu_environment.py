from __future__ import annotations

import pytest

from estimator_det.config.text import ConfigError
from estimator_det.programs.tpu_environment import TpuAddress, read_tpu_address

ENDPOINTS = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"


def test_endpoints_become_addresses() -> None:
    assert read_tpu_address({ENDPOINTS: "10.0.0.2:8470"}) == TpuAddress("grpc://10.0.0.2:8470")
    assert read_tpu_address({ENDPOINTS: "grpc://a:1, b:2,"}).name == "grpc://a:1,grpc://b:2"


def test_the_first_variable_counts_and_an_empty_one_does_not() -> None:
    config = '{"tpu_node_name": "node", "zone": "z", "project": "p"}'
    everything = {ENDPOINTS: "a:1", "TPU_NAME": "name", "TPU_CONFIG": config}
    assert read_tpu_address(everything) == TpuAddress("grpc://a:1")
    assert read_tpu_address({**everything, ENDPOINTS: ""}) == TpuAddress("name")
    without = {**everything, ENDPOINTS: "", "TPU_NAME": ""}
    assert read_tpu_address(without) == TpuAddress("node", "z", "p")
    assert read_tpu_address({}) == TpuAddress()


@pytest.mark.parametrize("text", ["[]", "{}", '{"tpu_name": "a"}', '"node"'])
def test_a_tpu_config_without_a_node(text: str) -> None:
    with pytest.raises(ConfigError, match="TPU_CONFIG has no tpu_node_name"):
        read_tpu_address({"TPU_CONFIG": text})
