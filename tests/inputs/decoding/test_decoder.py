from __future__ import annotations

import dataclasses
import functools
import io
import re
import struct
from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf, tf1
from estimator_det.images.resize import Resizer
from inputs import schema
from inputs.bad_records.policy import make_policy
from inputs.decoding.decoder import make_decoder
from inputs.decoding.images import claimed_pixels
from inputs.sample import Sample
from tests.faults import faults
from tests.inputs.examples import BOXES, LABEL_MAP, encoded, example, picture, reader, sequence
from tests.inputs.faults import picture_bytes
from tests.inputs.reading import decoder_in_graph

LABELS = {"image/object/class/label": [2, 1]}
NAN = float("nan")


@pytest.fixture(scope="module")
def label_map(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("labels") / "map.pbtxt"
    path.write_text(LABEL_MAP)
    return f'label_map_path: "{path}" '


def decode(features: Dict[str, Any], options: str = "") -> Sample:
    return decode_record(example(features), options)


@functools.cache
def _decoder(options: str, resizer: Optional[Resizer]) -> Callable[[bytes], Sample]:
    return decoder_in_graph(reader(options), resizer=resizer)


def decode_record(record: bytes, options: str = "", resizer: Optional[Resizer] = None) -> Sample:
    return _decoder(options, resizer)(record)


FIXED = Resizer(lambda *_: (10, 12), spatial_shape=(10, 12))


@pytest.mark.parametrize(
    ("height", "width", "kind", "decoded"),
    [
        (160, 200, "JPEG", [20, 25]),  # 16 times the height that the resizer makes of it
        (159, 200, "JPEG", [40, 50]),
        (79, 400, "JPEG", [40, 200]),
        (39, 400, "JPEG", [39, 400]),
        (160, 200, "PNG", [160, 200]),
    ],
)
def test_large_jpegs_are_decoded_smaller(height, width, kind, decoded):
    smooth = np.broadcast_to(np.linspace(0, 255, width, dtype=np.uint8)[:, np.newaxis],
                             [height, width, 3])  # fmt: skip
    record = example({**BOXES, **LABELS, "image/encoded": encoded(smooth, kind)})
    expected = decode_record(record)
    sample = decode_record(record, "fast_jpeg: true", resizer=FIXED)
    assert list(sample.image.shape) == [*decoded, 3]
    shown = tf.image.resize(smooth, decoded, antialias=True)
    np.testing.assert_allclose(sample.image, shown, atol=12)
    assert sample.image_level[schema.ORIGINAL_SPATIAL_SHAPE].tolist() == [height, width]
    for field in ("boxes", "area", "classes"):
        np.testing.assert_array_equal(getattr(sample, field), getattr(expected, field))


@pytest.mark.parametrize("options", ["", "fast_jpeg: true"])
def test_images_are_decoded_once_and_kept(options, monkeypatch):
    """A second decoding returns the pixels of the first; another image has its own."""
    noise = np.random.default_rng(0)
    images = [noise.integers(0, 255, size, np.uint8) for size in ((160, 200, 3), (20, 30, 3))]
    records = [
        example({**BOXES, **LABELS, "image/encoded": encoded(image, "JPEG")}) for image in images
    ]
    num_decoded = []
    for name in ("decode_image", "decode_jpeg"):
        function = getattr(tf.io, name)

        def counting(*arguments: Any, function: Any = function, **more: Any) -> Any:
            with tf.control_dependencies(
                [tf.numpy_function(lambda: num_decoded.append(1), [], [])]
            ):
                return function(*arguments, **more)

        monkeypatch.setattr(tf.io, name, counting)
    with tf.Graph().as_default(), tf1.Session() as session:
        record = tf1.placeholder(tf.string, [])
        sample = make_decoder(reader(f"cache: MEMORY {options}"), resizer=FIXED)(record)
        wholes = make_decoder(reader(options), resizer=FIXED)(record)
        for serialized in (*records, *records):
            kept, whole = session.run([sample.image, wholes.image], {record: serialized})
            np.testing.assert_array_equal(kept, whole)
    assert len(num_decoded) == 4 + 2  # each time without the cache, once with it


PER_BOX = {
    "weights": ("image/object/weight", [0.5, 0.25], [1, 1]),
    "confidences": ("image/object/class/confidence", [0.5, 0.25], [1, 1]),
    "area": ("image/object/area", [7.0, 9.0], [12, 28.8]),
    "is_crowd": ("image/object/is_crowd", [0, 1], [False, False]),
    "difficult": ("image/object/difficult", [0, 1], [False, False]),
    "group_of": ("image/object/group_of", [0, 1], [False, False]),
}


@pytest.mark.parametrize("given", [{"weights", "area", "difficult"}, set(PER_BOX)])
def test_a_number_of_boxes_needs_no_other(given):
    """Other fields have defaults; the area is computed from boxes in an image of 8 x 12 pixels."""
    for names in (given, set(PER_BOX) - given):
        features = {PER_BOX[name][0]: PER_BOX[name][1] for name in names}
        sample = decode({**BOXES, **LABELS, **features})
        for name, (_, values, defaults) in PER_BOX.items():
            expected = values if name in names else defaults
            np.testing.assert_allclose(getattr(sample, name), expected, rtol=1e-6, err_msg=name)


def test_no_boxes():
    options = "load_instance_masks: true num_keypoints: 2 load_multiclass_scores: true"
    sample = decode({}, options)
    assert sample.boxes.shape == (0, 4)
    assert sample.masks.shape == (0, 8, 12)
    assert sample.keypoints.shape == (0, 2, 2)
    assert sample.keypoint_visibilities.shape == (0, 2)
    assert sample.multiclass_scores.shape == (0, 0)
    assert sample.area.shape == sample.weights.shape == (0,)


def test_text_wins_over_label(label_map):
    text = {"image/object/class/text": ["owl", "cat"]}
    assert decode({**BOXES, **LABELS, **text}, label_map).classes.tolist() == [4, 1]
    assert decode({**BOXES, **LABELS, **text}).classes.tolist() == [2, 1]  # nothing to look up
    assert decode({**BOXES, **LABELS}, label_map).classes.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("visibility", "points", "visible"),
    [
        ([2, 1, 0, 2], [[0.1, 0.5], [NAN, 0.6], [NAN, NAN], [0.4, NAN]], [1, 1, 0, 1]),
        ([], [[0.1, 0.5], [NAN, 0.6], [0.3, 0.7], [NAN, NAN]], [1, 1, 1, 0]),
    ],
)
def test_keypoints(visibility, points, visible):
    """Without visibilities, keypoints are visible if their x is a number."""
    features = {
        "image/object/keypoint/y": [0.1, NAN, 0.3, 0.4],
        "image/object/keypoint/x": [0.5, 0.6, 0.7, NAN],
        "image/object/keypoint/visibility": visibility,
    }
    sample = decode({**BOXES, **LABELS, **features}, "num_keypoints: 2")
    np.testing.assert_allclose(sample.keypoints.reshape(4, 2), points)
    np.testing.assert_array_equal(sample.keypoint_visibilities.ravel(), visible)
    absent = decode({**BOXES, **LABELS}, "num_keypoints: 2")
    assert np.isnan(absent.keypoints).all() and not absent.keypoint_visibilities.any()


def test_keypoints_by_text(label_map):
    features = {
        "image/object/keypoint/y": [0.1, 0.2, 0.3, 0.4],
        "image/object/keypoint/x": [0.5, 0.6, 0.7, 0.8],
        "image/object/keypoint/text": ["tail", "nose", "ear", "tail"],
    }
    options = label_map + "use_keypoint_label_map: true num_keypoints: 3"
    sample = decode({**BOXES, **LABELS, **features}, options)
    none = [NAN, NAN]
    np.testing.assert_allclose(
        sample.keypoints, [[[0.2, 0.6], [0.1, 0.5], none], [none, [0.4, 0.8], none]]
    )
    assert sample.keypoint_visibilities.tolist() == [[True, True, False], [False, True, False]]


def test_image_level_labels(label_map):
    features = {
        "image/class/text": ["owl", "horse", "dog"],
        "image/class/confidence": [1.0, 1.0, 0.0],
        "image/neg_category_ids": [2],
        "image/not_exhaustive_category_ids": [1, 4],
    }
    level = decode(features, label_map).image_level
    assert level[schema.IMAGE_CLASSES].tolist() == [4, 2]
    assert level[schema.IMAGE_CONFIDENCES].tolist() == [1, 0]
    assert level[schema.VERIFIED_NEG_CLASSES].tolist() == [2]
    assert level[schema.NOT_EXHAUSTIVE_CLASSES].tolist() == [1, 4]
    level = decode({"image/class/label": [3]}).image_level
    assert level[schema.IMAGE_CLASSES].tolist() == [3]
    assert level[schema.IMAGE_CONFIDENCES].tolist() == [1]


def test_hierarchy(tmp_path):
    path = tmp_path / "map.pbtxt"
    path.write_text(
        'item { id: 1 name: "animal" descendant_ids: [2, 3] }'
        'item { id: 2 name: "cat" ancestor_ids: 1 } item { id: 3 name: "dog" ancestor_ids: 1 }'
    )
    features = {**BOXES, "image/object/class/label": [2, 1], "image/object/area": [5.0, 6.0]}
    features.update({"image/class/label": [3, 1], "image/class/confidence": [1.0, 0.0]})
    sample = decode(features, f'label_map_path: "{path}" expand_labels_hierarchy: true')
    assert sample.classes.tolist() == [1, 2, 1]
    assert sample.area.tolist() == [5, 5, 6]
    # dog is there, hence an animal; no animal is there, hence neither cat nor dog.
    assert sample.image_level[schema.IMAGE_CLASSES].tolist() == [1, 3, 1, 2, 3]
    assert sample.image_level[schema.IMAGE_CONFIDENCES].tolist() == [1, 1, 0, 0, 0]


def frames() -> bytes:
    return sequence(
        {"image/context_features": [1.0, 2.0], "image/context_feature_length": 2},
        {
            "image/encoded": [encoded(picture(4 + index, 6)) for index in range(3)],
            "image/source_id": ["f0", "f1", "f2"],
            "region/bbox/ymin": [[0.1], [], [0.1, 0.2]],
            "region/bbox/xmin": [[0.1], [], [0.1, 0.2]],
            "region/bbox/ymax": [[0.5], [], [0.5, 0.6]],
            "region/bbox/xmax": [[0.5], [], [0.5, 0.6]],
            "region/label/string": [["cat"], [], ["dog", "owl"]],
            "region/is_annotated": [1, 0, 1],
        },
    )


@pytest.mark.parametrize(("index", "classes"), [(0, [1]), (1, []), (2, [2, 4])])
def test_frame_of_a_sequence(label_map, index, classes):
    options = label_map + f"input_type: TF_SEQUENCE_EXAMPLE frame_index: {index} "
    sample = decode_record(frames(), options + "load_context_features: true")
    level = sample.image_level
    assert sample.image.shape == (4 + index, 6, 3)
    assert sample.classes.tolist() == classes
    assert sample.weights.tolist() == [1] * len(classes)
    assert level[schema.SOURCE_ID] == f"f{index}".encode()
    assert bool(level[schema.IS_ANNOTATED]) == (index != 1)
    assert level[schema.CONTEXT_FEATURES].tolist() == [[1, 2]]


def test_boxes_of_a_frame():
    record = sequence(
        {"image/filename": "video"},
        {
            "image/encoded": [encoded(picture())] * 2,
            "region/bbox/ymin": [[0.9], [0.1, 0.2]],
            "region/bbox/xmin": [[0.9], [0.3, 0.4]],
            "region/bbox/ymax": [[0.95], [0.5, 0.6]],
            "region/bbox/xmax": [[0.95], [0.7, 0.8]],
            "region/label/index": [[1], [2, 4]],
            "region/label/confidence": [[1.0], [0.25, 0.5]],
        },
    )
    sample = decode_record(record, "input_type: TF_SEQUENCE_EXAMPLE frame_index: 1")
    np.testing.assert_allclose(sample.boxes, [[0.1, 0.3, 0.5, 0.7], [0.2, 0.4, 0.6, 0.8]])
    assert sample.classes.tolist() == [2, 4]
    assert sample.weights.tolist() == [0.25, 0.5]
    assert sample.confidences.tolist() == [1, 1]
    assert sample.image_level[schema.SOURCE_ID] == b"video"
    assert sample.image_level[schema.IS_ANNOTATED]


def test_any_frame_of_a_sequence(label_map):
    options = label_map + "input_type: TF_SEQUENCE_EXAMPLE"
    with tf.Graph().as_default(), tf1.Session() as session:
        seed = tf1.placeholder(tf.int32, [2])
        image = make_decoder(reader(options))(tf.constant(frames()), seed).image
        session.run(tf1.tables_initializer())
        heights = [session.run(image, {seed: [i, 0]}).shape[0] for i in range(20)]
    assert set(heights) == {4, 5, 6}
    same = [decode_record(frames(), options).image.shape for _ in range(2)]
    assert len(set(same)) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"f0.*missing_key.*frame_index"):
        decode_record(frames(), options + " frame_index: 3")


def test_hash_needs_no_source_id():
    records = [
        example({}),
        example({**BOXES, **LABELS}),
        example({"image/source_id": "other"}),
        example({"image/source_id": ""}),
        example({"image/source_id": "", "image/encoded": encoded(picture(seed=1))}),
    ]
    with tf.Graph().as_default(), tf1.Session() as session:
        record = tf1.placeholder(tf.string, [])
        level = make_decoder(reader())(record).image_level
        hashes = [session.run(level[schema.HASH], {record: given}) for given in records]
        again = [session.run(level[schema.HASH], {record: given}) for given in records]
    assert hashes == again
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        ({"image/object/class/label": [1]}, "", "length_mismatch.*image/object/bbox/ymin, "),
        ({"image/object/class/label": [0, 1]}, "", r"box_inverted: .*, or unknown_id: .*\[0 1\]"),
        ({"image/encoded": ""}, "", "missing_key"),
        ({"image/object/mask": [1.0] * 5}, "load_instance_masks: true", "length.*mask values"),
        ({"image/object/keypoint/y": [0.1], "image/object/keypoint/x": [0.1]}, "num_keypoints: 1",
         r"length_mismatch.*Number of keypoints, found and expected:\] \[1\] \[2\]"),
        ({"image/object/class/multiclass_scores": [0.1] * 3}, "load_multiclass_scores: true",
         "length_mismatch.*multiclass_scores"),
        ({"image/class/confidence": [0.5]}, "", r"length_mismatch.*confidence.*:\] \[1\] \[0\]"),
    ],
)  # fmt: skip
def test_errors_name_the_record(features, options, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)rec7.*{message}"):
        decode({**BOXES, **LABELS, **features}, options)


@pytest.mark.parametrize("max_pixels", [95, 96])
def test_limit_of_pixels(max_pixels):
    policy = dataclasses.replace(make_policy(reader()), max_pixels=max_pixels)
    decode_picture = make_decoder(reader(), policy)  # of 8 x 12 pixels
    if max_pixels == 96:
        assert decode_picture(tf.constant(example({}))).image.shape == (8, 12, 3)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)rec7.*huge_image.*\[96\]"):
        decode_picture(tf.constant(example({})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("load_dense_pose: true", "load_dense_pose is not supported yet"),
        ("expand_labels_hierarchy: true", "needs input_reader.label_map_path"),
        ("use_keypoint_label_map: true num_keypoints: 2", "needs input_reader.label_map_path"),
        ("LABEL_MAP use_keypoint_label_map: true num_keypoints: 1", "'tail': 1"),
        ("LABEL_MAP use_keypoint_label_map: true", r"needs input_reader\.num_keypoints"),
    ],
)
def test_impossible_readers(options, message, label_map):
    config = reader(options.replace("LABEL_MAP", label_map))
    if not re.search(message, faults(config, at="input_reader").replace(": is", " is")):
        with pytest.raises(ValueError, match=message):  # the file shows it
            make_decoder(config)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_pixels_in_the_header(kind):
    content = picture_bytes(kind, 300, 517)
    contents = [content, content[:10], b"ab", b"", b"II*\0" + b"\1" * 40]
    with tf.Graph().as_default(), tf1.Session() as session:
        encoded = tf1.placeholder(tf.string, [])
        pixels = claimed_pixels(encoded)
        assert pixels.shape == []
        assert session.run(pixels, {encoded: contents[0]}) == 300 * 517
        if kind == "JPEG":
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(pixels, {encoded: contents[1]})
        elif kind != "GIF":  # whose size is in these bytes
            assert session.run(pixels, {encoded: contents[1]}) == 0
        assert [session.run(pixels, {encoded: other}) for other in contents[2:]] == [0, 0, 0]


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_pixels_of_a_jpeg_do_not_depend_on_its_channels(mode):
    content = io.BytesIO()
    Image.new(mode, (30, 20)).save(content, "JPEG")
    assert claimed_pixels(tf.constant(content.getvalue())).numpy() == 600


@pytest.mark.parametrize(("height", "pixels"), [(-7, 35), (2**31 - 1, 5 * 2.0**31)])
def test_sides_of_a_bmp_may_be_negative_or_huge(height, pixels):
    content = b"BM" + b"\0" * 16 + struct.pack("<ii", 5, height)
    assert claimed_pixels(tf.constant(content)).numpy() == pixels
