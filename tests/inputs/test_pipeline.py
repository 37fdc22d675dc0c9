from __future__ import annotations

import pathlib
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from google.protobuf import text_format

import inputs
from estimator_det.compat import tf, tf1
from estimator_det.errors import ConfigError
from estimator_det.images.resize import Resizer, make_resizer
from estimator_det.protos import image_resizer_pb2, input_reader_pb2
from inputs import schema
from inputs.bad_records.kinds import COUNTED, FAULT_COUNTS
from inputs.batch import CollateOptions, collate, num_excess_boxes, original_images
from inputs.sample import keep_boxes
from tests.inputs.augment.helpers import sample_of
from tests.inputs.examples import BOXES, encoded, example, picture, pipeline, write
from tests.inputs.reading import run_in_graph

pytestmark = pytest.mark.optimized
LABELS = {"image/object/class/label": [2, 1]}
PADDED = (
    "model { ssd { image_resizer { keep_aspect_ratio_resizer { min_dimension: 6 max_dimension: 6 "
    "pad_to_max_dimension: true } } } }"
)


def preprocess_of(config: Any) -> Any:
    resizer = make_resizer(config.model.ssd.image_resizer)
    return lambda images: resizer.resize(images, lambda x: x / 100)


def reading(tmp_path: pathlib.Path, records: List[bytes], text: str = "") -> Any:
    """Configuration whose readers read these records, one by one, in order."""
    config = pipeline(text)
    path = write(tmp_path / "in.record", records)
    for one in (config.train_input_reader, *config.eval_input_reader):
        one.tf_record_input_reader.input_path.append(path)
        if not one.HasField("shuffle"):
            one.shuffle = False
    return config


def train_batch(config: Any, seed: int = 1) -> Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    dataset = inputs.create_train_input_fn(config, preprocess_of(config), seed)()
    return next(dataset.as_numpy_iterator())


def test_batch_against_hand_numbers(tmp_path):
    """Of records with two boxes, with none, and with four more than fit."""
    many = {key: [value[0]] * 7 for key, value in BOXES.items()}
    many["image/object/class/label"] = [1, 2, 3, 4, 4, 4, 4]
    records = [example({**BOXES, **LABELS}), example({}), example(many)]
    config = reading(tmp_path, records, "train_config { batch_size: 3 }")
    features, labels = train_batch(config)
    expected = tf1.image.resize(picture().astype(np.float32), [6, 10]).numpy() / 100
    np.testing.assert_allclose(features["image"][0], expected, rtol=1e-5)
    assert features["true_image_shape"].tolist() == [[6, 10, 3]] * 3
    assert features["original_image_spatial_shape"].tolist() == [[8, 12]] * 3
    assert schema.ORIGINAL_IMAGE not in features and schema.PARTNER_RECORDS not in features
    assert labels["num_groundtruth_boxes"].tolist() == [2, 0, 3]
    np.testing.assert_allclose(
        labels["groundtruth_boxes"][0], [[0, 0, 0.5, 0.25], [0.1, 0.2, 0.6, 0.8], [0] * 4]
    )
    assert not labels["groundtruth_boxes"][1].any()
    one_hot = [[0, 1, 0, 0], [1, 0, 0, 0], [0] * 4]
    assert labels["groundtruth_classes"][0].tolist() == one_hot
    assert labels["groundtruth_confidences"][0].tolist() == one_hot
    assert labels["groundtruth_weights"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert labels["groundtruth_labeled_classes"].tolist() == [[1] * 4] * 3
    assert not labels["groundtruth_verified_neg_classes"].any()
    assert not labels["groundtruth_not_exhaustive_classes"].any()
    assert labels["groundtruth_classes"][2].argmax(1).tolist() == [0, 1, 2]
    assert labels["groundtruth_boxes"].shape == (3, 3, 4)
    assert schema.MASKS not in labels and schema.KEYPOINTS not in labels


FULL = """
train_config {
  retain_original_images: true
  data_augmentation_options { mixup {} } data_augmentation_options { copy_paste {} }
}
train_input_reader {
  load_instance_masks: true num_keypoints: 2 load_multiclass_scores: true include_source_id: true
  num_additional_channels: 1
}
eval_input_reader {}
"""


def test_static_shapes_are_those_of_the_schema(tmp_path):
    extra = {"image/additional_channels/encoded": [encoded(picture()[..., 0])]}
    config = reading(tmp_path, [example({**BOXES, **LABELS, **extra})], FULL)
    dataset = inputs.create_train_input_fn(config, preprocess_of(config))({"batch_size": 5})
    sizes = {"B": 5, "G": 3, "K": 4, "P": 2, "H": 6, "W": 10, "C": 4, "M": 3}
    for specs, found in zip((schema.FEATURES, schema.LABELS), dataset.element_spec):
        for key, spec in found.items():
            letters = specs[key].shape.split()
            expected = [int(x) if x.isdigit() else sizes[x] for x in letters]
            if key == schema.ORIGINAL_IMAGE:
                expected[-1] = 3
            assert spec.shape.as_list() == expected, key
            assert spec.dtype == tf.as_dtype(specs[key].dtype), key
    features, labels = next(dataset.as_numpy_iterator())
    assert features["source_id"].tolist() == [b"rec7"] * 5
    assert set(labels) == set(schema.LABELS) - {schema.IS_ANNOTATED}
    absent = {schema.ADDITIONAL_CHANNELS, schema.CONTEXT_FEATURES, schema.VALID_CONTEXT_SIZE}
    absent.add(schema.CONTEXT_FEATURES_IMAGE_ID_LIST)
    assert set(features) == set(schema.FEATURES) - absent


def test_boxes_masks_and_keypoints_in_the_padded_frame(tmp_path):
    mask = np.zeros((8, 12))
    mask[:4] = 1
    features = {
        **{key: [value] for key, value in zip(BOXES, (0.0, 0.5, 1.0, 1.0))},
        "image/object/class/label": [3],
        "image/object/mask": mask.ravel().tolist(),
        "image/object/keypoint/y": [0.5],
        "image/object/keypoint/x": [0.25],
    }
    reader = "train_input_reader { load_instance_masks: true num_keypoints: 1 } "
    config = reading(tmp_path, [example(features)], PADDED + reader)
    features, labels = train_batch(config)
    assert features["image"].shape == (2, 6, 6, 3)
    assert features["true_image_shape"][0].tolist() == [4, 6, 3]  # of 8 x 12 pixels
    np.testing.assert_allclose(labels["groundtruth_boxes"][0, 0], [0, 0.5, 4 / 6, 1], rtol=1e-6)
    np.testing.assert_allclose(labels["groundtruth_keypoints"][0, 0], [[2 / 6, 0.25]], rtol=1e-6)
    expected = np.zeros((6, 6))
    expected[:2] = 1
    np.testing.assert_array_equal(labels["groundtruth_instance_masks"][0, 0], expected)
    assert labels["groundtruth_instance_masks"].shape == (2, 3, 6, 6)
    assert not labels["groundtruth_instance_masks"][0, 1:].any()


def test_labels_of_one_place_are_merged(tmp_path):
    boxes = {key: [value[0], value[1], value[0], value[0]] for key, value in BOXES.items()}
    for key, side in zip(boxes, (0.1, 0.3, 0.5, 0.8)):  # near the second, with the same sum
        boxes[key].append(side)
    features = {
        "image/object/class/label": [2, 1, 4, 2, 3],
        "image/object/class/confidence": [0.5, 0.25, 1.0, 0.125, 0.75],
        "image/object/area": [5.0, 6.0, 7.0, 8.0, 9.0],
    }
    record = example({**boxes, **features})
    config = reading(tmp_path, [record], "train_config { merge_multiple_label_boxes: true }")
    _, labels = train_batch(config)
    assert labels["num_groundtruth_boxes"].tolist() == [3, 3]
    classes = [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0]]
    assert labels["groundtruth_classes"][0].tolist() == classes
    confidences = [[0, 0.5, 0, 1], [0.25, 0, 0, 0], [0, 0, 0.75, 0]]
    assert labels["groundtruth_confidences"][0].tolist() == confidences
    assert labels["groundtruth_area"][0].tolist() == [5, 6, 9]
    np.testing.assert_allclose(labels["groundtruth_boxes"][0, 1], [0.1, 0.2, 0.6, 0.8])


@pytest.mark.parametrize(("max_boxes", "excess"), [(5, 0), (2, 1)])
def test_boxes_beyond_the_most_are_the_last_count_of_faults(max_boxes, excess):
    counts = tf.zeros([len(COUNTED) - 1], tf.int32)
    sample = sample_of("bare")._replace(image_level={FAULT_COUNTS: counts})
    resizer = Resizer(lambda *sides: sides)
    features, labels = collate(sample, CollateOptions(resizer.resize, resizer, 3, max_boxes))
    assert features[FAULT_COUNTS].numpy().tolist() == [0] * (len(COUNTED) - 1) + [excess]
    assert int(labels[schema.NUM_BOXES]) == 3 - excess
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)num_classes is 2.*\[1 2 3\]"):
        collate(sample, CollateOptions(resizer.resize, resizer, 2, max_boxes))


@pytest.mark.parametrize(("merges", "excess"), [(True, 0), (False, 1)])
def test_merged_boxes_are_counted_once(merges, excess):
    sample = keep_boxes(sample_of("bare"), tf.constant([0, 0, 1]))
    options = CollateOptions(None, None, num_classes=3, max_boxes=2, merge_boxes=merges)
    assert int(num_excess_boxes(sample, options)) == excess
    assert int(num_excess_boxes(keep_boxes(sample, tf.constant([0])), options)) == 0


def test_scores_of_all_classes_replace_one_hot_classes(tmp_path):
    """With a score of the background, without it, and without scores."""
    scores = [0.1, 0.2, 0.3, 0.4, 0.5]
    records = [
        example({**BOXES, **LABELS, "image/object/class/multiclass_scores": given})
        for given in (scores * 2, scores[1:] * 2, [])
    ]
    text = "train_config { batch_size: 3 use_multiclass_scores: true }"
    text += "train_input_reader { load_multiclass_scores: true }"
    _, labels = train_batch(reading(tmp_path, records, text))
    np.testing.assert_allclose(labels["groundtruth_classes"][:2, :2], [[scores[1:]] * 2] * 2)
    assert labels["groundtruth_classes"][2, :2].argmax(1).tolist() == [1, 0]


def test_context_features(tmp_path):
    length = {"image/context_feature_length": 2}
    ids = {"image/context_features_image_id_list": ["a"]}
    record = example({"image/context_features": [1.0, 2.0], **length, **ids})
    long = example({"image/context_features": [1.0, 2.0] * 5, **length})
    flags = "shuffle: false load_context_features: true load_context_image_ids: true"
    config = reading(tmp_path, [record, long], f"train_input_reader {{ {flags} }}")
    with pytest.raises(ValueError, match="context_config"):
        train_batch(config)
    preprocess = preprocess_of(config)
    config.model.faster_rcnn.num_classes = 4
    config.model.faster_rcnn.image_resizer.fixed_shape_resizer.height = 6
    context = config.model.faster_rcnn.context_config
    context.max_num_context_features, context.context_feature_length = 3, 2
    dataset = inputs.create_train_input_fn(config, preprocess)()
    features, _ = next(dataset.as_numpy_iterator())
    rows = [[[1, 2], [0, 0], [0, 0]], [[1, 2]] * 3]
    assert features["context_features"].tolist() == rows
    assert features["valid_context_size"].tolist() == [1, 3]
    assert features["context_features_image_id_list"].tolist() == [[b"a", b"", b""], [b""] * 3]


# Steps with few operations, since tracing takes most of the time.
AUGMENTED = """
train_config {
  data_augmentation_options { random_horizontal_flip {} }
  data_augmentation_options { random_adjust_brightness {} }
}
train_input_reader { shuffle: true }
"""


def records_with_boxes(count: int) -> List[bytes]:
    images = (encoded(picture(seed=seed)) for seed in range(count))
    return [
        example({**BOXES, **LABELS, "image/encoded": image, "image/source_id": f"r{number}"})
        for number, image in enumerate(images)
    ]


def seeded_batches(config: Any, seed: int) -> List[Any]:
    input_fn = inputs.create_train_input_fn(config, preprocess_of(config), seed)
    return run_in_graph(input_fn, 6)


def test_same_seed_same_batches_however_many_are_made_at_once(tmp_path):
    config = reading(tmp_path, records_with_boxes(6), AUGMENTED)
    first = seeded_batches(config, 7)
    config.train_input_reader.num_parallel_batches = 2
    config.train_input_reader.cache = input_reader_pb2.MEMORY
    tf.nest.map_structure(np.testing.assert_array_equal, first, seeded_batches(config, 7))
    # The same record comes out differently in another epoch.
    images: Dict[int, List[np.ndarray]] = {}
    for features, _ in first:
        for key, image in zip(features["hash"].tolist(), features["image"]):
            images.setdefault(key, []).append(image)
    assert sorted(len(found) for found in images.values()) == [2] * 6
    assert any((found[0] != found[1]).any() for found in images.values())


def test_other_machines_keep_no_images(tmp_path):
    config = reading(tmp_path, records_with_boxes(2), "train_input_reader { cache: MEMORY }")
    input_fn = inputs.create_train_input_fn(config, preprocess_of(config), runs_elsewhere=True)
    with pytest.raises(ConfigError, match="decoded on other machines"):
        input_fn()


# Evaluation.


def test_image_level_labels(tmp_path):
    given = {
        "image/class/label": [1, 4],
        "image/neg_category_ids": [2],
        "image/not_exhaustive_category_ids": [3, 9],
    }
    text = "eval_config { image_classes_field_map_empty_to_ones: false batch_size: 3 }"
    repeated = {"image/class/label": [1, 4, 1, 4, 1, 4]}  # more than the model has classes
    config = reading(tmp_path, [example(given), example({}), example(repeated)], text)
    ((_, labels),) = run_in_graph(inputs.create_eval_input_fn(config, preprocess_of(config)), 1)
    assert labels["groundtruth_labeled_classes"].tolist() == [[1, 0, 0, 1], [0] * 4, [1, 0, 0, 1]]
    assert labels["groundtruth_verified_neg_classes"].tolist() == [[0, 1, 0, 0], [0] * 4, [0] * 4]
    assert labels["groundtruth_not_exhaustive_classes"].tolist() == [[0, 0, 1, 0], [0] * 4, [0] * 4]
    assert labels["groundtruth_image_classes"].tolist() == [[1, 4, 0, 0], [0] * 4, [1, 4, 1, 4]]


def test_evaluation_features(tmp_path):
    """Not augmented; readers of evaluation repeat, and the reader of training does not."""
    flip = "data_augmentation_options { random_horizontal_flip { probability: 1 } }"
    text = f"train_config {{ merge_multiple_label_boxes: true {flip} }}"
    config = reading(tmp_path, records_with_boxes(3), text + "train_input_reader { num_epochs: 2 }")
    config.eval_input_reader[0].CopyFrom(config.train_input_reader)

    def batches(reader: Any) -> Any:
        make = inputs.create_eval_input_fn(config, preprocess_of(config), reader, sample_1_of_n=2)
        dataset = make()
        assert dataset.element_spec[0]["image"].shape.as_list() == [1, 6, 10, 3]
        return [features for features, _ in dataset.as_numpy_iterator()]

    def records(found: Any) -> List[int]:
        return [number for features in found for _, number in features[schema.RECORD].tolist()]

    assert records(batches(config.train_input_reader)) == [0, 2]
    features, *others = batches(config.eval_input_reader[0])
    assert records(others) == [2, 0, 2]
    expected = tf1.image.resize(picture().astype(np.float32), [6, 10]).numpy()
    np.testing.assert_array_equal(features["original_image"][0], expected.astype(np.uint8))
    assert features["original_image_spatial_shape"].tolist() == [[8, 12]]


def test_an_evaluation_needs_a_reader():
    config = pipeline()
    del config.eval_input_reader[:]
    with pytest.raises(ValueError, match="eval_input_reader: is missing"):
        inputs.create_eval_input_fn(config, preprocess_of(config))


def test_additional_channels_are_not_padded_or_converted_like_colors():
    text = """keep_aspect_ratio_resizer { min_dimension: 2 max_dimension: 4
        pad_to_max_dimension: true convert_to_grayscale: true per_channel_pad_value: [1, 2, 3] }"""
    resizer = make_resizer(text_format.Parse(text, image_resizer_pb2.ImageResizer()))
    image = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)
    sample = sample_of("bare")._replace(image=tf.constant(image))
    options = CollateOptions(resizer.resize, resizer, 1, 1, retain_additional_channels=True)
    found = original_images(sample, options)[schema.ADDITIONAL_CHANNELS]
    np.testing.assert_array_equal(found, np.pad(image[..., 3:], [(0, 2), (0, 0), (0, 0)]))


def test_additional_channels_of_an_evaluation(tmp_path):
    text = """eval_config { retain_original_image_additional_channels: true }
        train_input_reader { num_additional_channels: 2 }
        model { ssd { image_resizer { identity_resizer { } } } }"""
    planes = [picture()[..., 1], picture()[..., 2]]
    extra = {"image/additional_channels/encoded": [encoded(plane) for plane in planes]}
    config = reading(tmp_path, [example({**BOXES, **LABELS, **extra})], "")
    reader = config.eval_input_reader[0]
    config = text_format.Merge(text, config)
    reader.num_additional_channels = 2
    input_fn = inputs.create_eval_input_fn(config, preprocess_of(config), reader)
    ((features, _),) = input_fn().as_numpy_iterator()
    np.testing.assert_array_equal(features[schema.ORIGINAL_IMAGE][0], picture())
    found = features[schema.ADDITIONAL_CHANNELS][0]
    np.testing.assert_array_equal(found, np.stack(planes, axis=2))
