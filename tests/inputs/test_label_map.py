import pytest

from estimator_det.compat import tf
from estimator_det.errors import UsageError
from inputs import label_map as label_map_module
from inputs.label_map import parse_label_map, read_label_map


def test_details_of_classes():
    """Items come in the order of ids, and names before display names."""
    label_map = parse_label_map(
        """
        item { id: 2 name: "cat" display_name: "animal" ancestor_ids: 1 frequency: COMMON }
        item { id: 0 name: "background" }
        item { id: 1 name: "animal" descendant_ids: 2 frequency: FREQUENT }
        item { id: 3 name: "car" frequency: RARE }
        item { id: 4 name: "bus" frequency: UNSPECIFIED }
        """
    )
    assert list(label_map.names.items()) == [(1, "animal"), (2, "animal"), (3, "car"), (4, "bus")]
    assert label_map.ids == {"animal": 1, "cat": 2, "car": 3, "bus": 4}
    assert label_map.ancestors == {1: (), 2: (1,), 3: (), 4: ()}
    assert label_map.descendants == {1: (2,), 2: (), 3: (), 4: ()}
    frequencies = [category.get("frequency") for category in label_map.categories()]
    assert frequencies == ["f", "c", "r", None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.pbtxt: no item"),
        ('item { name: "a" }', "item 1 .'a'. has no id"),
        ("item { id: 3 }", "id 3. has neither name nor display_name"),
        ('item { id: 0 name: "a" }', "has id 0; ids start at 1"),
        ('item { id: -1 name: "a" }', "has id -1"),
        ('item { id: 1 name: "a" } item { id: 1 name: "b" }', "id 1 is given twice: item 'a'"),
        ('item { id: 1 name: "a" } item { id: 2 name: "a" }', "name 'a' is given twice"),
        ('item { id: 1 name: "a" ancestor_ids: 9 }', r"item 'a' .id 1. lists ancestors \[9\]"),
        ('item { id: 1 nam: "a" }', "m.pbtxt:1: .*did you mean 'name'"),
        (
            'item { id: 1 name: "a" keypoints { label: "k" } keypoints { id: 1 label: "k" } }',
            "item 'a': keypoint 'k' has id 1, but 0 before",
        ),
    ],
)
def test_errors_name_file_and_item(text, message):
    with pytest.raises(UsageError, match=message):
        parse_label_map(text, "m.pbtxt")


@pytest.mark.parametrize("folder", ["", "ram://"])
def test_a_file_too_large_for_a_label_map(folder, tmp_path, monkeypatch):
    path = f"{folder or tmp_path}/large.pbtxt"
    with tf.io.gfile.GFile(path, "w") as file:
        file.write('item { id: 1 name: "a" }' + "\n" * 10_000_000)
    monkeypatch.setattr(label_map_module, "parse_label_map", lambda *_: pytest.fail("was read"))
    message = "large.pbtxt: has 10,000,024 bytes; allowed: 10,000,000. .* right file, or shorten it"
    with pytest.raises(UsageError, match=message):
        read_label_map(path)


def test_label_maps_of_real_data(real_data):
    pets = read_label_map(str(real_data / "data" / "pet_label_map.pbtxt"))
    assert len(pets.names) == pets.max_id == 37
    assert pets.ids["Abyssinian"] == 1
    coco = read_label_map(str(real_data / "data" / "mscoco_label_map.pbtxt"))
    assert (len(coco.names), coco.max_id) == (80, 90)
    assert coco.ids["person"] == coco.ids["/m/01g317"] == 1
