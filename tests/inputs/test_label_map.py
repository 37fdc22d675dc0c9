from __future__ import annotations

import pathlib
import subprocess
import sys
import types
from typing import Any, List

import pytest
from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError, ConfigWarning
from estimator_det.protos import string_int_label_map_pb2
from inputs import label_map as label_map_module
from inputs.label_map import LabelMap, parse_label_map, read_label_map
from tests.inputs.examples import LABEL_MAP


def test_names_ids_and_categories() -> None:
    label_map = parse_label_map(LABEL_MAP)
    assert label_map.names == {1: "cat", 2: "dog", 4: "owl"}
    assert label_map.ids == {"/m/cat": 1, "cat": 1, "dog": 2, "owl": 4}
    points = [{"id": 0, "name": "nose"}, {"id": 1, "name": "tail"}]
    assert label_map.categories()[0] == {"id": 1, "name": "cat", "keypoints": points}
    assert label_map.categories()[1] == {"id": 2, "name": "dog"}
    assert label_map.max_id == 4
    assert label_map.keypoint_ids == {"nose": 0, "tail": 1}


def test_items_come_in_the_order_of_ids_and_background_is_no_class() -> None:
    text = 'item { id: 2 name: "b" } item { id: 0 name: "background" } item { id: 1 name: "a" }'
    assert list(parse_label_map(text).names.items()) == [(1, "a"), (2, "b")]


def test_frequencies() -> None:
    """Those of LVIS; an item may leave it out."""
    items = [
        f"item {{ id: {k} name: '{k}' frequency: {name} }}"
        for k, name in enumerate(("FREQUENT", "COMMON", "RARE", "UNSPECIFIED"), start=1)
    ]
    categories = parse_label_map(" ".join(items)).categories()
    assert [category.get("frequency") for category in categories] == ["f", "c", "r", None]


def test_hierarchy() -> None:
    label_map = parse_label_map(
        'item { id: 1 name: "animal" descendant_ids: 2 } item { id: 2 name: "cat" ancestor_ids: 1 }'
    )
    assert label_map.ancestors == {1: (), 2: (1,)}
    assert label_map.descendants == {1: (2,), 2: ()}


def test_a_name_goes_before_a_display_name() -> None:
    label_map = parse_label_map(
        'item { id: 1 name: "x" } item { id: 2 name: "y" display_name: "x" }'
    )
    assert label_map.ids == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.pbtxt: no item"),
        ("\n", "m.pbtxt: no item"),
        ('item { name: "a" }', "item 1 .'a'. has no id"),
        ("item { id: 3 }", "id 3. has neither name nor display_name"),
        ('item { id: 0 name: "a" }', "has id 0; ids start at 1"),
        ('item { id: -1 name: "a" }', "has id -1"),
        ('item { id: 1 name: "a" } item { id: 1 name: "b" }', "id 1 is given twice: item 'a'"),
        ('item { id: 1 name: "a" } item { id: 2 name: "a" }', "name 'a' is given twice"),
        ('item { id: 1 name: "a" ancestor_ids: 9 }', r"item 'a' .id 1. lists ancestors \[9\]"),
        ('item { id: 1 nam: "a" }', "m.pbtxt:1: .*did you mean 'name'"),
        (
            'item { id: 1 name: "a" keypoints { id: 0 label: "k" } }'
            'item { id: 2 name: "b" keypoints { id: 1 label: "k" } }',
            "item 'b': keypoint 'k' has id 1, but 0 before",
        ),
    ],
)
def test_errors_name_file_and_item(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_label_map(text, "m.pbtxt")


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.pbtxt: no such file"):
        read_label_map("nowhere.pbtxt")


@pytest.mark.parametrize("folder", ["", "ram://"])
def test_a_file_too_large_for_a_label_map(
    folder: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{folder or tmp_path}/large.pbtxt"
    with tf.io.gfile.GFile(path, "w") as file:
        file.write('item { id: 1 name: "a" }' + "\n" * 10_000_000)
    monkeypatch.setattr(label_map_module, "parse_label_map", lambda *_: pytest.fail("was read"))
    message = "large.pbtxt: has 10,000,024 bytes; allowed: 10,000,000. .* right file, or shorten it"
    with pytest.raises(ConfigError, match=message):
        read_label_map(path)


def test_real_label_maps(shared: pathlib.Path) -> None:
    pets = read_label_map(str(shared / "data" / "pet_label_map.pbtxt"))
    assert len(pets.names) == pets.max_id == 37
    assert pets.ids["Abyssinian"] == 1
    coco = read_label_map(str(shared / "data" / "mscoco_label_map.pbtxt"))
    assert (len(coco.names), coco.max_id) == (80, 90)
    assert coco.ids["person"] == coco.ids["/m/01g317"] == 1


def test_reading_one_imports_no_tensorflow() -> None:
    code = "import sys, inputs, inputs.label_map; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_input_functions_are_exported() -> None:
    import inputs

    assert inputs.create_train_input_fn.__module__ == "inputs.pipeline"
    assert "create_predict_input_fn" in dir(inputs)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        inputs.nonsense  # noqa: B018  (reading it is what fails)
    assert pathlib.Path(inputs.__file__).parents[1] == pathlib.Path(__file__).parents[2]


COMPLEX = """# comment with a brace {
item { display_name: "x\\"y" id: 4 name: 'd' }
item: { id: 5, name: "e"; keypoints { id: 0 label: "}" } } # the last one
item {
  name: "f" id: 6 ancestor_ids: [5]
}
"""


def _counted_parses(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """Texts that go to the parser of protocol buffers from now on."""
    texts: List[str] = []

    def parse(text: str, message: Any) -> Any:
        texts.append(text)
        return text_format.Parse(text, message)

    monkeypatch.setattr(
        label_map_module,
        "text_format",
        types.SimpleNamespace(Parse=parse, ParseError=text_format.ParseError),
    )
    return texts


def test_only_unusual_items_go_to_the_slow_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = _counted_parses(monkeypatch)
    many = "".join(f'item {{\n  id: {i}\n  name: "class {i}"\n}}\n' for i in range(10, 2010))
    other = "".join(f'item {{ name: "{i}" id: {i} display_name: "n{i}" }}' for i in range(10))
    assert len(parse_label_map(many).names) == 2000
    assert parse_label_map(other.replace("id: 0", "id: 77")).ids["n0"] == 77
    assert [text for text in texts if text.strip()] == []
    label_map = parse_label_map(
        many + COMPLEX + many.replace("class", "x").replace("id: ", "id: 9000")
    )
    assert len(label_map.names) == 4003 and label_map.names[90002009] == "x 2009"
    slow = [text for text in texts if text.strip()]
    assert len(slow) == 3 and "".join(slow).split() == COMPLEX.partition(" # the")[0].split() + (
        COMPLEX[COMPLEX.index("# the") :].split()
    )
    assert (label_map.names[4], label_map.ids["d"], label_map.names[5]) == ('x"y', 4, "e")
    assert label_map.keypoint_ids == {"}": 0} and label_map.ancestors[6] == (5,)


@pytest.mark.parametrize(
    "text",
    [
        LABEL_MAP,
        COMPLEX + 'item { id: 7 name: "#{" }',
        'item{id:1 name:"a"}item{name:"b" id:2}\nitem { id: 3 display_name: "猫" }# end',
        "item { id: 1 name: 'a' } item { id: 0x2 name: \"b\" }",
        'item { id: 1 name: "a" "b" }',
        'item { id: 100000000 name: "a\tb" } item { id: 2147483647 name: "c" }',
        'item < id: 1 name: "a" >',
    ],
)
def test_both_ways_of_reading_agree(text: str) -> None:
    message = text_format.Parse(text, string_int_label_map_pb2.StringIntLabelMap())
    items = label_map_module._read_items(text, "m")
    found = list(zip(items.ids, items.names, items.display_names))
    assert found == [(item.id, item.name, item.display_name) for item in message.item]


@pytest.mark.parametrize(
    "text",
    [
        'item { id: 1 name: "a" name: "b" }',
        'item { name: "a" id: 1 name: "b" }',
        'item { id: 1 id: 2 name: "a" }',
    ],
)
def test_a_field_given_twice_is_a_warning_with_its_line(text: str) -> None:
    first = 'item { id: 9 name: "z" }\n'
    with pytest.warns(ConfigWarning, match="m:2: '(name|id)' is given more than once"):
        assert len(parse_label_map(first + text, "m").names) == 2


def test_errors_have_the_line_in_the_file() -> None:
    many = "".join(f'item {{\n  id: {i}\n  name: "{i}"\n}}\n' for i in range(1, 11))
    with pytest.raises(ConfigError, match=r"m:42: .*no field 'nam'"):
        parse_label_map(many + '\nitem { id: 11 nam: "a" }', "m")
    with pytest.raises(ConfigError, match=r"m:41: .*2147483648"):
        parse_label_map(many + 'item { id: 2147483648 name: "a" }', "m")
    with pytest.raises(ConfigError, match="m:43"):
        parse_label_map(many + 'item {\n  id: 12\n  name: "a"\n', "m")


class _Names(dict):
    """Names by id that count how often all of them are gone through."""

    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return super().__iter__()


def test_relatives_are_looked_up_and_not_compared_with_all_names() -> None:
    names = _Names({i: str(i) for i in range(1, 101)})
    label_map = LabelMap("m", names, {}, {}, {})
    item = string_int_label_map_pb2.StringIntLabelMapItem(id=1, ancestor_ids=[5, 6])
    for _ in range(50):
        label_map_module._add_details(label_map, item, "x")
    assert names.passes == 0 and label_map.ancestors == {1: (5, 6)}
