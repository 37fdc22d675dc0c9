"""Records made by hand, for the tests of this folder."""

from __future__ import annotations

import io
import pathlib
from typing import Any, Dict, Sequence

import numpy as np
from google.protobuf import text_format
from PIL import Image

from estimator_det.compat import tf
from estimator_det.protos import input_reader_pb2, pipeline_pb2

LABEL_MAP = """
item { id: 1 name: "/m/cat" display_name: "cat" keypoints { id: 0 label: "nose" }
       keypoints { id: 1 label: "tail" } }
item { id: 2 name: "dog" }
item { id: 4 name: "owl" }
"""

BOXES = {
    "image/object/bbox/ymin": [0.0, 0.1],
    "image/object/bbox/xmin": [0.0, 0.2],
    "image/object/bbox/ymax": [0.5, 0.6],
    "image/object/bbox/xmax": [0.25, 0.8],
}


def picture(height: int = 8, width: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def orientation(number: int) -> Image.Exif:
    """EXIF data with this orientation."""
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def encoded(image: np.ndarray, kind: str = "PNG", mode: str = "", **save: Any) -> bytes:
    buffer = io.BytesIO()
    opened = Image.fromarray(image)
    if mode == "P":
        opened = opened.quantize()
    elif mode:
        opened = opened.convert(mode)
    opened.save(buffer, kind, **save)
    return buffer.getvalue()


def feature(values: Any) -> tf.train.Feature:
    values = [values] if isinstance(values, (str, bytes, int, float)) else list(values)
    if not values:
        return tf.train.Feature()
    if isinstance(values[0], (str, bytes)):
        texts = [v.encode() if isinstance(v, str) else v for v in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
    if isinstance(values[0], (int, np.integer)):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def example(features: Dict[str, Any]) -> bytes:
    """Serialized; a picture and a name are there unless given."""
    features = {"image/encoded": encoded(picture()), "image/source_id": "rec7", **features}
    message = tf.train.Features(feature={key: feature(v) for key, v in features.items()})
    return tf.train.Example(features=message).SerializeToString()


def sequence(context: Dict[str, Any], frames: Dict[str, Sequence[Any]]) -> bytes:
    lists = {
        key: tf.train.FeatureList(feature=[feature(v) for v in values])
        for key, values in frames.items()
    }
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={key: feature(v) for key, v in context.items()}),
        feature_lists=tf.train.FeatureLists(feature_list=lists),
    ).SerializeToString()


def write(path: Any, records: Sequence[bytes], compression: str = "") -> str:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def reader(text: str = "") -> input_reader_pb2.InputReader:
    return text_format.Parse(text, input_reader_pb2.InputReader())


def pipeline(text: str = "") -> pipeline_pb2.TrainEvalPipelineConfig:
    """An SSD of 4 classes on 6 x 10 inputs, batches of 2, without augmentation."""
    config = text_format.Parse(
        "model { ssd { num_classes: 4 image_resizer { fixed_shape_resizer { height: 6 width: 10 }"
        "} } } train_config { batch_size: 2 } train_input_reader { max_number_of_boxes: 3 }"
        "eval_input_reader { max_number_of_boxes: 3 }",
        pipeline_pb2.TrainEvalPipelineConfig(),
    )
    return text_format.Merge(text, config)


def pipeline_of(folder: pathlib.Path, files: Sequence[Sequence[str]], text: str = "") -> Any:
    """A configuration that trains on a file for each list of source ids."""
    fields = "include_source_id: true drop_remainder: false"
    config = pipeline(f"train_input_reader {{ {fields} {text} }}")
    for index, names in enumerate(files):
        write(folder / f"r-{index}", [example({"image/source_id": name}) for name in names])
    config.train_input_reader.tf_record_input_reader.input_path.append(str(folder / "r-*"))
    return config
