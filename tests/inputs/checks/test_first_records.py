from __future__ import annotations

import pathlib
import re
from typing import Any, List

import pytest

import inputs
from estimator_det.config.pipeline import parse_pipeline
from estimator_det.errors import ConfigError, UsageError
from estimator_det.images.resize import make_resizer
from inputs.checks import first_records
from inputs.checks.first_records import check_cache, check_class_names, check_masks
from tests.inputs.examples import BOXES, LABEL_MAP, encoded, example, picture, reader, write

MASK = {"image/object/mask": [encoded(picture())] * 2}


def reading(folder: pathlib.Path, names: List[str], end: str = "", kind: str = "") -> Any:
    (folder / "map.pbtxt").write_text(LABEL_MAP)
    text = {"image/object/class/text": names} if names else {}
    path = write(folder / f"r{end}", [example({**BOXES, **text})] * 3, kind)
    return reader(
        f'label_map_path: "{folder / "map.pbtxt"}"tf_record_input_reader {{ input_path: "{path}" }}'
    )


def test_known_names_and_none_pass(tmp_path, caplog):
    check_class_names(reading(tmp_path, ["cat", "/m/cat"]))
    check_class_names(reading(tmp_path, []))
    check_class_names(reader())
    options = reading(tmp_path, ["cat"])
    write(options.tf_record_input_reader.input_path[0], [])
    check_class_names(options)
    assert not [record for record in caplog.records if record.name == "inputs.checks.first_records"]


@pytest.mark.parametrize("num_files", [1, 2, 100])
def test_records_sorted_by_class_are_a_warning(tmp_path, caplog, num_files):
    (tmp_path / "map.pbtxt").write_text(LABEL_MAP)
    names = ["fox"] * 120 + ["cat"] * 80
    records = [example({**BOXES, "image/object/class/text": [name]}) for name in names]
    size = len(records) // num_files
    for number in range(num_files):
        write(tmp_path / f"r{number:03}", records[number * size :][:size])
    text = f"label_map_path: '{tmp_path}/map.pbtxt' tf_record_input_reader {{ input_path: "
    options = reader(text + f"'{tmp_path}/r*' input_path: '{tmp_path}/gone' }}")
    check_class_names(options)
    assert 50 <= len(list(first_records.sample_examples(first_records.files_of(options)))) <= 70
    assert re.search(r"have class names that .* lacks: 'fox' \(\d+\)\. These", caplog.text)


def _path(folder: pathlib.Path, *features: Any) -> str:
    return str(write(folder / "r", [example(values) for values in features]))


def test_some_masks_or_no_boxes_pass(tmp_path, caplog):
    check_masks([_path(tmp_path, {}, {})])
    check_masks([_path(tmp_path, {**BOXES, **MASK})])
    assert not caplog.text
    without = str(write(tmp_path / "without", [example(BOXES)] * 100))
    check_masks([without, _path(tmp_path, {**BOXES, **MASK})])
    assert f"from 2 files, the first {without}, " in caplog.text and "have no mask" in caplog.text


def test_a_model_with_masks_is_not_trained_without(tmp_path):
    text = f"""
    model {{ faster_rcnn {{ num_classes: 4 number_of_stages: 3 image_resizer {{
      fixed_shape_resizer {{ height: 6 width: 6 }} }} }} }}
    train_config {{ batch_size: 1 }}
    train_input_reader {{ load_instance_masks: true max_number_of_boxes: 3
      tf_record_input_reader {{ input_path: "{_path(tmp_path, BOXES)}" }} }}
    """
    with pytest.raises(UsageError, match=r"of 2 boxes in a sample from .*, none has a mask"):
        inputs.create_train_input_fn(parse_pipeline(text), lambda images: (images, images))({})


def test_a_cache_must_fit_into_half_of_the_memory(tmp_path, monkeypatch):
    """A million times the records of a file, each a picture of 8 x 12 pixels."""
    record = example(BOXES)
    path = write(tmp_path / "r", [record] * 3)
    config = parse_pipeline("model { ssd { image_resizer { fixed_shape_resizer { height: 1 } } } }")
    resizer = make_resizer(config.model.ssd.image_resizer)
    num_bytes = 1_000_000 * len(record)
    needed = 8 * 12 * 3 * 1_000_000

    def check(memory: float, is_reduced: bool = False) -> None:
        monkeypatch.setattr(first_records, "available_memory", lambda: memory)
        check_cache([path], num_bytes, resizer, is_reduced)

    check(2.01 * needed)
    with pytest.raises(ConfigError, match=r"need about 0\.3 GB, and half of.* is 0\.1 GB"):
        check(1.0 * needed)
    check(1.0 * needed, is_reduced=True)
