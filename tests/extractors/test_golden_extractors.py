"""Variables and feature maps as measured on the reference, tests/golden/extractors."""

from __future__ import annotations

import json
import pathlib
import zlib

import pytest
from estimator_det.extractors.base import make_extractor
from google.protobuf import text_format

import estimator_det.extractors
from estimator_det.compat import tf, tf1
from estimator_det.protos import ssd_pb2

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "extractors"
# Files of other shapes there belong to the tests of their families.
GOLDEN = [path for path in sorted(FOLDER.glob("*.json")) if "variables_crc32" in path.read_text()]


def test_there_are_goldens() -> None:
    assert estimator_det.extractors is not None
    assert len(GOLDEN) >= 3


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_variables_and_feature_maps(path: pathlib.Path) -> None:
    golden = json.loads(path.read_text())
    config = text_format.Parse(golden["feature_extractor"], ssd_pb2.SsdFeatureExtractor())
    with tf.Graph().as_default():
        maps = make_extractor(config, is_training=True).extract(
            tf.zeros([1, *golden["image_size"], 3])
        )
        trainable = {v.op.name for v in tf1.trainable_variables()}
        lines = sorted(
            f"{v.op.name} {v.shape.as_list()} {v.op.name in trainable}"
            for v in tf1.global_variables()
        )
    assert [m.shape.as_list()[1:] for m in maps] == golden["feature_maps"]
    assert len(lines) == golden["num_variables"]
    assert zlib.crc32("\n".join(lines).encode()) == golden["variables_crc32"]
