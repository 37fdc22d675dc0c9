import pytest

from estimator_det.programs.cloud import machines
from estimator_det.programs.console import UsageError


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


@pytest.mark.parametrize("text", ["TPU_V3:8", "NVIDIA_L4:0", "NVIDIA_L4:", "NVIDIA_L4:two", "4"])
def test_other_accelerators_are_refused(text):
    expected = f"--accelerator {text}: give a type of Vertex AI.*TPUs are given by --tpu"
    with pytest.raises(UsageError, match=expected):
        machines.parse_accelerator(text)
