import pytest

from estimator_det.cloud import machines
from estimator_det.console import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA_TESLA_T4", ("NVIDIA_TESLA_T4", 1)),
        ("NVIDIA_TESLA_T4:4", ("NVIDIA_TESLA_T4", 4)),
        ("nvidia-l4:2", ("NVIDIA_L4", 2)),
    ],
)
def test_accelerators_are_parsed(text, expected):
    assert machines.parse_accelerator(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("T4:1", "T4 is not known. Known: NVIDIA_TESLA_P4, "),
        ("TPU_V3:8", "TPUs are given by --tpu"),
        ("NVIDIA_L4:0", "give the number of accelerators"),
        ("NVIDIA_L4:", "give the number of accelerators"),
        ("NVIDIA_L4:two", "give the number of accelerators"),
    ],
)
def test_other_accelerators_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        machines.parse_accelerator(text)


@pytest.mark.parametrize(
    ("machine_type", "gib"),
    [
        ("n1-standard-8", 30),
        ("n1-highmem-16", 104),
        ("e2-highcpu-32", 32),
        ("a2-highgpu-1g", 85),
        ("ct5lp-hightpu-4t", 192),
    ],
)
def test_memory_of_known_machines(machine_type, gib):
    assert machines.host_memory(machine_type) == gib * 2**30


@pytest.mark.parametrize("machine_type", ["cloud-tpu", "n9-standard-8"])
def test_memory_of_other_machines_is_not_known(machine_type):
    assert machines.host_memory(machine_type) is None
