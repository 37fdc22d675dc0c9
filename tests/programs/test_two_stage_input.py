"""Input that two-stage models cannot use: the programs name the field, or file and record."""

from __future__ import annotations

import pathlib
from typing import List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.programs import cli
from estimator_det.protos import pipeline_pb2
from inputs.datasets import writer
from tests.detectors.two_stage import configs
from tests.inputs import examples

CONTEXT = """context_config {
  max_num_context_features: 3 context_feature_length: 5 attention_bottleneck_dimension: 4
}"""


def record(name: str, mask_size: tuple = (64, 64), context_length: int = 5) -> bytes:
    """An image of 64 x 64 pixels with a box, its mask, and a context feature."""
    image = np.full([64, 64, 3], 90, np.uint8)
    mask = np.zeros(mask_size, np.uint8)
    mask[16:32, 16:32] = 1
    labels = writer.Annotations(
        np.array([[0.25, 0.25, 0.5, 0.5]]), [1], ["cat"], masks=[writer.encode_image(mask, "png")]
    )
    made = writer.make_example(writer.encode_image(image), labels, filename=name)
    made.features.feature["image/context_features"].float_list.value.extend([1.0] * context_length)
    made.features.feature["image/context_feature_length"].int64_list.value.append(context_length)
    return made.SerializeToString()


def write_config(
    folder: pathlib.Path, overrides: str, reader: str, records: List[bytes], max_id: int = 2
) -> str:
    """Path of a configuration of the small detector."""
    items = [f"item {{ id: {i} name: '{n}' }}" for i, n in ((1, "cat"), (max_id, "dog"))]
    (folder / "map.pbtxt").write_text(" ".join(items))
    examples.write(folder / "some.record", records)
    config = pipeline_pb2.TrainEvalPipelineConfig(model=configs.small_config(overrides))
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate
    rate.constant_learning_rate.learning_rate = 0.01
    text = (
        f'label_map_path: "{folder}/map.pbtxt" {reader} max_number_of_boxes: 4 '
        f'tf_record_input_reader {{ input_path: "{folder}/some.record" }}'
    )
    config.train_input_reader.CopyFrom(examples.reader(text))
    config.eval_input_reader.add().CopyFrom(examples.reader(text))
    path = folder / "small.config"
    path.write_text(text_format.MessageToString(config))
    return str(path)


MASKS = "load_instance_masks: true mask_type: PNG_MASKS"


@pytest.mark.parametrize(
    ("overrides", "reader", "broken", "message"),
    [
        (
            configs.MASKS,
            MASKS,
            record("bad", mask_size=(32, 64)),
            "image/object/mask[0] is (32, 64), image/encoded is (64, 64)",
        ),
        (
            CONTEXT,
            "load_context_features: true",
            record("bad", context_length=6),
            "image/context_feature_length, and context_config.context_feature_length",
        ),
    ],
    ids=["mask", "context"],
)
def test_record_of_another_size(overrides, reader, broken, message, tmp_path, capsys):
    path = write_config(tmp_path, overrides, reader, [record("good"), broken])
    report = ["--jobs=1", "--reader=train", f"--output_dir={tmp_path}/report"]
    assert cli.main(["check-data", path, *report]) == 1
    printed = "".join(capsys.readouterr())
    assert "length_mismatch" in printed and message in printed
    assert "some.record, record 1 (source_id 'bad')" in printed
