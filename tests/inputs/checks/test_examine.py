from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.bad_records.kinds import COUNTED, FAULT_COUNTS, KEEP, RecordFault
from inputs.bad_records.policy import make_policy
from inputs.checks.examine import examine_record
from inputs.sample import Sample
from tests.inputs.examples import BOXES, LABEL_MAP, encoded, example, picture, reader, sequence
from tests.inputs.reading import decoder_in_graph

LABELS = {"image/object/class/label": [2, 1]}
NAN = float("nan")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("labels") / "map.pbtxt"
    path.write_text(LABEL_MAP)
    return f'label_map_path: "{path}" '


RECORDS: Dict[str, Dict[str, Any]] = {
    "": {**BOXES, **LABELS},
    "box_nan": {**BOXES, **LABELS, "image/object/bbox/ymin": [NAN, 0.1]},
    "box_inverted": {**BOXES, **LABELS, "image/object/bbox/ymin": [0.9, 0.1]},
    "box_degenerate": {**BOXES, **LABELS, "image/object/bbox/ymin": [0.5, 0.1]},
    "box_outside": {**BOXES, **LABELS, "image/object/bbox/ymax": [1.5, 0.6]},
    "unknown_id": {**BOXES, "image/object/class/label": [9, 0]},
    "unknown_text": {**BOXES, "image/object/class/text": ["cow", "dog"]},
    "label_contradiction": {**BOXES, **LABELS, "image/object/class/text": ["dog", "dog"]},
    "size_mismatch": {**BOXES, **LABELS, "image/height": 12, "image/width": 8},
}


def _rectangles(*rectangles: Any) -> np.ndarray:
    """uint8 [n, 8, 12]; each is rows and columns as slices."""
    masks = np.zeros((len(rectangles), 8, 12), np.uint8)
    for mask, place in zip(masks, rectangles):
        mask[place] = 1
    return masks


# Rows and columns of the boxes of `BOXES`, to the nearest pixel.
PLACES = [(slice(0, 4), slice(0, 3)), (slice(1, 5), slice(2, 10))]
NOWHERE, CORNER = (slice(0, 0), slice(0, 0)), (slice(7, 8), slice(11, 12))
MASKS: Dict[str, np.ndarray] = {
    "": _rectangles(*PLACES),
    "mask_empty": _rectangles(PLACES[0], NOWHERE),
    "mask_mismatch": _rectangles(CORNER, PLACES[1]),
}


@pytest.mark.parametrize("kind", [*MASKS, "missing"])
@pytest.mark.parametrize("policy", ["CLIP", "REFERENCE"])
@pytest.mark.parametrize("mask_type", ["PNG_MASKS", "NUMERICAL_MASKS"])
def test_masks_that_contradict_boxes(kind, policy, mask_type):
    masks = MASKS.get(kind, _rectangles())
    values: Any = [encoded(mask * 255) for mask in masks]
    if mask_type == "NUMERICAL_MASKS":
        values = masks.astype(float).ravel().tolist()
    given = {"image/object/mask": values} if len(masks) else {}
    text = f"load_instance_masks: true mask_type: {mask_type} bad_records {{ policy: {policy} }}"
    expected = {"": [], "missing": [("mask_empty", 2)]}.get(kind, [(kind, 1)])
    faults = _check_agreement(text, {**RECORDS[""], **given})
    assert [(fault.kind, fault.count) for fault in faults] == expected


def test_a_mask_of_as_many_pixels_in_another_shape_is_a_fault():
    turned = {"image/object/mask": [encoded(mask.T * 255) for mask in MASKS[""]]}
    faults = _check_agreement(
        "load_instance_masks: true mask_type: PNG_MASKS", {**RECORDS[""], **turned}
    )
    assert [fault.kind for fault in faults] == ["length_mismatch"] * 2
    assert faults[0].message == "image/object/mask[0] is (12, 8), image/encoded is (8, 12)"


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("policy", ["CLIP", "REFERENCE"])
def test_graph_and_python_agree(options, kind, policy):
    faults = _check_agreement(options + f"bad_records {{ policy: {policy} }}", RECORDS[kind])
    assert [fault.kind for fault in faults] == ([kind] if kind else [])


@functools.cache
def _decoder(text: str) -> Callable[[bytes], Sample]:
    return decoder_in_graph(reader(text), make_policy(reader(text), num_classes=4))


def _check_agreement(text: str, features: Dict[str, Any]) -> List[RecordFault]:
    """The decoder's counts, what it refuses, and the boxes it lets pass are the examiner's."""
    record = example(features)
    examined = examine_record(record, make_policy(reader(text), num_classes=4))
    if not examined.usable:
        fault = rf"(?s)rec7.*has a fault.*{examined.faults[0].kind}: .*Remedy: "
        with pytest.raises(tf.errors.InvalidArgumentError, match=fault):
            _decoder(text)(record)
        return examined.faults
    sample = _decoder(text)(record)
    np.testing.assert_array_equal(sample.boxes, examined.boxes)
    np.testing.assert_array_equal(sample.classes, examined.class_ids)
    counts = sample.image_level[FAULT_COUNTS].tolist()
    counted = {name: count for name, count in zip(COUNTED, counts) if count}
    assert counted == {fault.kind: fault.count for fault in examined.faults}
    return examined.faults


@pytest.mark.parametrize("height, width", [(0, 0), (-8, 12), (8, -(2**62)), (9, "missing")])
def test_every_given_size_is_compared(height, width):
    policy = make_policy(reader())
    sizes = {"image/height": height, "image/width": width}
    record = example({**RECORDS[""], **{key: x for key, x in sizes.items() if x != "missing"}})
    (fault,) = examine_record(record, policy).faults
    assert (fault.kind, fault.action) == ("size_mismatch", KEEP)
    assert fault.message.endswith(f"are {height} x {width}, the image is 8 x 12")
    counts = _decoder("")(record).image_level[FAULT_COUNTS]
    assert counts[COUNTED.index("size_mismatch")] == 1


def test_labels_that_are_not_as_many_as_texts_contradict_them(options):
    features = {"image/object/class/label": [2], "image/object/class/text": ["dog", "dog"]}
    (fault,) = _check_agreement(options, {**BOXES, **features})
    assert fault.kind == "label_contradiction" and "missing (1 labels)" in fault.message


def test_frames_are_named():
    images = {"image/encoded": [encoded(picture()), b"rubbish"], "image/source_id": ["f0", "f1"]}
    record = sequence({}, {**images, "region/bbox/ymin": [[0.1], []]})
    policy = make_policy(reader("input_type: TF_SEQUENCE_EXAMPLE"))
    examined = examine_record(record, policy)
    assert examined.source_id == "f0"
    assert [(f.kind, f.message[:9]) for f in examined.faults] == [
        ("length_mismatch", "frame 0: "),
        ("undecodable_image", "frame 1: "),
    ]
