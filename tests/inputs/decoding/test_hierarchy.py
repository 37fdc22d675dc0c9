"""Label hierarchies of Open Images: JSON files in place of the relations of a label map."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from estimator_det.errors import UsageError
from inputs import schema
from inputs.decoding.hierarchy import read_hierarchy
from inputs.label_map import parse_label_map
from tests.inputs.decoding.test_decoder import BOXES, decode

GOLDEN = json.loads(
    (pathlib.Path(__file__).parents[2] / "golden" / "metrics" / "metrics.json").read_text()
)["settings"]["hierarchy_expansion"]
NAMES = sorted(GOLDEN["boxes"])
LABEL_MAP = " ".join(f'item {{ id: {k} name: "{name}" }}' for k, name in enumerate(NAMES, start=1))


def _file(folder: pathlib.Path, content: Any) -> str:
    path = folder / "hierarchy.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_relations_are_those_of_the_object_detection_api(tmp_path):
    path = _file(tmp_path, GOLDEN["hierarchy"])
    hierarchy = read_hierarchy(path, parse_label_map(LABEL_MAP))
    for relation, expected in (
        (hierarchy.upward, GOLDEN["boxes"]),
        (hierarchy.upward, GOLDEN["image_labels_positive"]),
        (hierarchy.downward, GOLDEN["image_labels_negative"]),
    ):
        for number, name in enumerate(NAMES, start=1):
            found = [NAMES[k - 1] for k in np.flatnonzero(relation[number]) if k != number]
            assert found == sorted(expected[name]), name
            assert relation[number, number]
    assert not hierarchy.upward[0].any() and not hierarchy.upward[:, 0].any()


def test_classes_of_only_one_of_both_are_ignored(tmp_path):
    """A puppy is an animal without there being a class of dogs; a tree has no relatives."""
    path = _file(tmp_path, GOLDEN["hierarchy"])
    items = 'item { id: 1 name: "/m/animal" } item { id: 2 name: "/m/puppy" display_name: "puppy" }'
    hierarchy = read_hierarchy(path, parse_label_map(f'{items} item {{ id: 4 name: "tree" }}'))
    expected = np.zeros((5, 5), bool)
    expected[[1, 2, 2, 4], [1, 1, 2, 4]] = True
    expected[3, 3] = True  # No class has this id.
    np.testing.assert_array_equal(hierarchy.upward, expected)
    np.testing.assert_array_equal(hierarchy.downward, expected.T)


def test_a_reader_expands_by_the_file(tmp_path):
    path = _file(tmp_path, GOLDEN["hierarchy"])
    label_map = tmp_path / "map.pbtxt"
    label_map.write_text(LABEL_MAP.replace('name: "/m/cat"', 'name: "/m/cat" ancestor_ids: 5'))
    numbers = {name: number for number, name in enumerate(NAMES, start=1)}
    features = {**BOXES, "image/object/class/label": [numbers["/m/cat"], numbers["/m/car"]]}
    features.update({"image/class/label": [numbers["/m/pet"]], "image/class/confidence": [0.0]})
    reader = f'label_map_path: "{label_map}" label_hierarchy_path: "{path}"'
    sample = decode(features, f"{reader} expand_labels_hierarchy: true")
    expected = [numbers["/m/animal"], numbers["/m/cat"], numbers["/m/car"]]
    assert sample.classes.tolist() == expected
    absent = sorted(numbers[name] for name in ("/m/pet", "/m/dog", "/m/fish", "/m/puppy"))
    assert sample.image_level[schema.IMAGE_CLASSES].tolist() == absent


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "hierarchy.json: is not JSON: "),
        ([], r"each entry needs a LabelName, a text, .*given: \[\]"),
        ({"LabelName": "a", "Subcategory": {}}, "each entry needs a LabelName"),
        ({"LabelName": "a", "Subcategory": [{"Label": "b"}]}, "given: {'Label': 'b'}"),
        ({"LabelName": "a", "Subcategory": [{"LabelName": "b"}]}, "name of <text>, .* has 'b'"),
    ],
)
def test_files_that_are_no_hierarchy(tmp_path, content, message):
    with pytest.raises(UsageError, match=message):
        read_hierarchy(_file(tmp_path, content), parse_label_map(LABEL_MAP))
    with pytest.raises(UsageError, match="no such file"):
        read_hierarchy(str(tmp_path / "gone.json"), parse_label_map(LABEL_MAP))
