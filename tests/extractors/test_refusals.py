"""Options and sizes of images that extractors refuse."""

from __future__ import annotations

import re
from typing import Iterator, Tuple

import pytest

from estimator_det.protos import ssd_pb2
from tests.extractors.build import (
    EMBEDDED,
    MNASFPN,
    MNASFPN_LEVELS,
    NORM,
    OVERRIDE,
    SMALL,
    TINY,
    make,
)
from tests.faults import faults


def unsupported(kind: str, *texts: str) -> Iterator[Tuple[str, str, Tuple[int, int], str]]:
    for text in texts:
        field = text.split()[0].rstrip(":")
        yield kind, text, (64, 64), rf"feature_extractor\.{field}:? is not supported"


REFUSALS = [
    *unsupported("ssd_mobilenet_v1", "fpn {}", "spaghettinet_arch_name: 'a'"),
    *unsupported("ssd_mobilenet_v1_fpn", "num_layers: 5"),
    *unsupported("ssd_mobilenet_v1_ppn", "fpn {}", "num_layers: 5"),
    *unsupported(EMBEDDED, "num_layers: 4"),
    *unsupported("ssd_mobilenet_v2", "fpn {}"),
    *unsupported("ssd_mobilenet_v2_fpn", "num_layers: 4"),
    *unsupported("ssd_mobilenet_v3_large", "num_layers: 4"),
    *unsupported("ssd_mobiledet_cpu", "num_layers: 4"),
    *unsupported("ssd_mobiledet_gpu", MNASFPN_LEVELS),
    *unsupported(MNASFPN, "num_layers: 4"),
    *unsupported("ssd_spaghettinet", MNASFPN_LEVELS),
    *unsupported("ssd_resnet50_v1_ppn", "fpn {}", "num_layers: 4"),
    *(
        (kind, text, (256, 256), message)
        for kind, text, message in (
            ("ssd_mobilenet_v1", "num_layers: 7", "num_layers: is 7; .* has 6 feature maps"),
            ("ssd_mobilenet_v2_fpn", "fpn { min_level: 6 }", "min_level: is 6; allowed are 2 to 5"),
            ("ssd_mobilenet_edgetpu", "use_explicit_padding: true", "must be False for .*edgetpu"),
            ("ssd_mobiledet_cpu", "use_explicit_padding: true", "must be False for .*_cpu"),
            (MNASFPN, "fpn {}", "has levels 3 to 6"),
            (
                "ssd_spaghettinet",
                "spaghettinet_arch_name: 'spaghettinet_edgetpu_x'",
                r"edgetpu_x' is not known; did you mean 'spaghettinet_edgetpu_[sml]'\?",
            ),
            ("ssd_inception_v2", NORM, "override.* must be true for ssd_inception_v2"),
            ("ssd_inception_v3", NORM, "override.* must be true for ssd_inception_v3"),
            (EMBEDDED, "pad_to_multiple: 32", f"pad_to_multiple must be 1 for {EMBEDDED}"),
            ("ssd_resnet50_v1_fpn", "use_explicit_padding: true", "must be False for .*_fpn"),
            ("ssd_resnet50_v1_fpn", "num_layers: 6", r"not supported .* supports: \['fpn'\]"),
            ("ssd_resnet50_v1_fpn", "fpn { min_level: 4 max_level: 3 }", "not be below min_level"),
            (
                "ssd_resnet50_v1_ppn",
                "depth_multiplier: 0.5",
                r"must be 1\.0 for .*_ppn; given: 0\.5",
            ),
        )
    ),
    ("ssd_mobilenet_v1", SMALL, (32, 40), r"at least 33 x 33 pixels .*; given: \[32, 40\]"),
    ("ssd_mobilenet_v3_small", SMALL, (32, 64), "at least 33 x 33 pixels"),
    ("ssd_inception_v2", f"{SMALL} {OVERRIDE}", (32, 40), r"at least 33 x 33 .* \[32, 40\]"),
    ("ssd_inception_v3", f"{SMALL} {OVERRIDE}", (32, 40), r"at least 33 x 33 .* \[32, 40\]"),
    *(
        (kind, "", (64, 32), "at least 33 x 33 pixels")
        for kind in (*(f"ssd_mobiledet_{n}" for n in ("cpu", "dsp", "edgetpu", "gpu")), MNASFPN)
    ),
    ("ssd_spaghettinet", "", (64, 32), "at least 33 x 33 pixels"),
    (EMBEDDED, SMALL, (256, 300), r"must be 256 x 256 pixels for .*; given: \[256, 300\]"),
    ("ssd_resnet50_v1_ppn", NORM, (128, 200), r"at least 129 x 129 pixels .*; given: \[128, 200\]"),
    ("ssd_resnet50_v1_fpn", TINY, (150, 160), "pad_to_multiple: 32"),
    ("ssd_mobilenet_v1_fpn", SMALL, (100, 90), "maps at level 3 have 13 x 12 cells"),
    (MNASFPN, "", (96, 128), "multiples of 64"),
    ("ssd_mobilenet_v2_fpn", "fpn { min_level: -2147483648 }", (64, 64), "is -2,147,483,648"),
]


@pytest.mark.parametrize(("kind", "text", "size", "message"), REFUSALS)
def test_refusals(kind, text, size, message):
    resizer = "fixed_shape_resizer {{ height: {} width: {} }}".format(*size)
    model = f"image_resizer {{ {resizer} }} feature_extractor {{ type: '{kind}' {text} }}"
    found = faults(ssd_pb2.Ssd(), model, at="model.ssd")
    assert re.search(message, found.replace(": must", " must"))


def test_a_flag_set_to_false_is_no_error():
    make("ssd_mobilenet_v1", "replace_preprocessor_with_placeholder: false use_hardswish: false")
