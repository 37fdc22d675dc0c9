from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from PIL import Image

from estimator_det.protos import pipeline_pb2
from inputs.bad_records.kinds import KINDS
from model_fn.checks import data_check, data_report, tables
from model_fn.drawing import charts
from tests.detectors.configs import small_config
from tests.detectors.two_stage import configs as two_stage
from tests.inputs import examples
from tests.inputs.examples import BOXES, example

pytestmark = pytest.mark.usefixtures("small_network")
MAP = 'item { id: 1 name: "cat" } item { id: 2 name: "dog" }'


def record(name: str, count: int = 2, **changes) -> bytes:
    boxes = {key: values[:count] for key, values in BOXES.items()}
    labels = {"image/object/class/label": [1, 2][:count]}
    return example({"image/source_id": name, **boxes, **labels, **changes})


@pytest.fixture
def config(tmp_path):
    """Ten images to train on, one of which is damaged, and two for evaluation."""
    train = [record(f"t{i}") for i in range(9)] + [record("bad", **{"image/encoded": b"x"})]
    examples.write(tmp_path / "train.record", train)
    examples.write(tmp_path / "eval.record", [record("t3"), record("e1", count=0)])
    (tmp_path / "map.pbtxt").write_text(MAP)
    message = pipeline_pb2.TrainEvalPipelineConfig(model=small_config())
    message.train_input_reader.CopyFrom(reader(tmp_path, "train"))
    message.eval_input_reader.add().CopyFrom(reader(tmp_path, "eval"))
    return message


def reader(folder, name: str):
    return examples.reader(
        f'tf_record_input_reader {{ input_path: "{folder}/{name}.record" }} '
        f'label_map_path: "{folder}/map.pbtxt"'
    )


@pytest.fixture
def no_anchors(monkeypatch):
    """Spares the tests that are not about anchors the building of a network."""
    monkeypatch.setattr(data_check.anchor_coverage, "has_anchors", lambda detector: False)


def check(config, **options) -> data_report.DataReport:
    return data_check.check_data(config, "x.config", progress=False, **options)


def test_report_of_a_whole_configuration(config):
    report = check(config)
    train, evaluation = report.scans
    assert (train.reader, train.num_records, train.columns.num_images) == (
        "train_input_reader",
        10,
        9,
    )
    assert (evaluation.reader, evaluation.columns.num_boxes) == ("eval_input_reader[0]", 2)
    assert report.names == {1: "cat", 2: "dog"}
    # The 8 x 12 pictures become 64 x 64: boxes of 4 x 3 and 4 x 7.2 pixels 8 times as high.
    np.testing.assert_allclose(
        report.resized["train_input_reader"][:2], [[32, 16], [32, 38.4]], rtol=1e-5
    )
    assert report.anchors is not None and len(report.anchors.below) == 18
    assert report.num_errors == 1
    fields = [problem.field for problem in report.problems]
    assert "eval_input_reader[0]" in fields  # t3 is trained on

    text = "\n".join(data_report.text_lines(report))
    assert "error: undecodable_image: an image cannot be decoded: 1 record, stops the run" in text
    assert "train.record, record 9 (source_id 'bad'): image/encoded cannot be decoded" in text
    assert "train_input_reader: 1 file, 10 records; 9 images and 18 boxes are used" in text
    settings = (
        "--set train_input_reader.bad_records.policy=CLIP "
        "--set train_input_reader.bad_records.max_skipped=1"
    )
    assert text.endswith(settings)

    document = json.loads(json.dumps(data_report.to_dictionary(report)))
    found = document["readers"]["train_input_reader"]
    finding = {"kind": "undecodable_image", "action": "fail", "severity": "error"}
    assert found["findings"] == [{**finding, "records": 1, "count": 1}]
    assert found["classes"][0] == {"id": 1, "name": "cat", "boxes": 9, "images": 9}
    assert found["histograms"]["boxes per image"]["2"] == 9
    assert (document["anchors"]["boxes"], document["errors"]) == (18, 1)
    assert document["anchors"]["reader"] == "train_input_reader"
    picture = Image.open(io.BytesIO(charts.figure(data_report.panels(report))))
    assert picture.width > 1000 and picture.height > 1000


def test_the_settings_that_are_told_mend_it(no_anchors, config):
    scan = check(config).scans[0]
    settings = data_report.repair(scan)
    assert settings is not None and settings.num_skipped == 1
    assert data_report.repair(scan._replace(num_records=1)) is None  # nothing would be left
    from estimator_det.config import pipeline

    repaired = pipeline.apply_overrides(config, settings.settings)
    report = check(repaired)
    assert report.num_errors == 0 and report.scans[0].num_skipped == 1
    assert data_report.repair(report.scans[0]) is None
    repaired.train_input_reader.bad_records.max_skipped = 0
    (too_many,) = [p for p in check(repaired).problems if p.severity == "error"]
    assert too_many.field == "train_input_reader.bad_records.max_skipped"


def test_one_reader_alone(no_anchors, config):
    assert [scan.reader for scan in check(config, readers="train").scans] == ["train_input_reader"]
    report = check(config, readers="eval")
    assert report.num_errors == 0
    assert report.anchors is None
    with pytest.raises(ValueError, match=r"no input reader to check \(readers: test"):
        check(config, readers="test")
    config.ClearField("eval_input_reader")
    with pytest.raises(ValueError, match="no input reader to check"):
        check(config, readers="eval")


def test_boxes_past_the_limit_do_not_meet_anchors(config):
    config.train_input_reader.max_number_of_boxes = 1
    report = check(config, readers="train")
    assert report.anchors is not None and len(report.anchors.below) == 9
    assert report.scans[0].columns.num_boxes == 18


def test_unreadable_label_map_leaves_the_rest_of_the_report(no_anchors, config, tmp_path):
    (tmp_path / "map.pbtxt").write_text("item {")
    report = check(config, readers="train")
    assert [p.field for p in report.problems if p.severity == "error"] == [
        "train_input_reader.label_map_path"
    ]
    (tmp_path / "map.pbtxt").write_text('item { id: 1 name: "a" } item { id: 1 name: "b" }')
    assert any("given twice" in problem.message for problem in check(config).problems)
    config.train_input_reader.ClearField("label_map_path")
    assert any("there is no label map" in problem.message for problem in check(config).problems)
    assert report.scans[0].columns.num_images == 9
    assert any("1 (in no label map)" in line for line in data_report.text_lines(report))


def test_models_that_cannot_be_made_leave_the_rest_of_the_report(config):
    config.model.ssd.feature_extractor.type = "ssd_unheard_of"
    report = check(config, readers="train")
    assert report.anchors is None
    (problem,) = (p for p in report.problems if p.field.startswith("model."))
    assert problem.field.endswith("feature_extractor.type") and "ssd_unheard_of" in problem.message
    assert report.scans[0].columns.num_images == 9


def test_no_usable_record(no_anchors, config, tmp_path):
    examples.write(tmp_path / "train.record", [record("bad", **{"image/encoded": b"x"})])
    report = check(config, readers="train")
    assert any("not one record can be used" in p.message for p in report.problems)
    assert data_report.panels(report) == []
    assert data_report.text_lines(report)[0].startswith("train_input_reader: 1 file, 1 record;")


def test_context_features_have_the_length_that_the_model_takes(no_anchors, config, tmp_path):
    lengths = {"good": 5, "bad": 6}
    records = [
        record(name, **{
            "image/context_features": [1.0] * length, "image/context_feature_length": length,
        })
        for name, length in lengths.items()
    ]  # fmt: skip
    examples.write(tmp_path / "train.record", records)
    context = "max_num_context_features: 3 context_feature_length: 5"
    config.model.CopyFrom(two_stage.small_config(f"context_config {{ {context} }}"))
    config.train_input_reader.load_context_features = True
    (entry,) = check(config, readers="train").scans[0].entries
    assert (entry.kind, entry.record, entry.source_id) == ("length_mismatch", 1, "bad")
    assert "context_config.context_feature_length of the model: 6, 5" in entry.message


def test_no_path(config):
    config.train_input_reader.ClearField("tf_record_input_reader")
    report = check(config, readers="train")
    assert report.scans == [] and report.problems[0].severity == "error"


def test_classes_of_all_parts_are_in_one_table():
    counts = {"images": 1, "boxes": 3, "images_without_boxes": 0}
    tallies = {
        "train": {**counts, "classes": {"10": [1, 1], "2": [2, 1]}},
        "eval": {**counts, "classes": {"10": [3, 2]}},
    }
    (classes,) = tables.make_tables(tallies, {2: "dog"})
    assert classes.names == ["10 (in no label map)", "2 dog"]
    assert classes.parts == {"train": [1, 2], "eval": [3, 0]}
    assert classes.images == {"train": [1, 1], "eval": [2, 0]}
    assert [line.split()[0] for line in tables.text_bars(classes, "eval")[1:]] == ["10"]
    document = tables.to_dictionary(tallies["train"], {2: "dog"})
    assert document["classes"] == [
        {"id": 2, "name": "dog", "boxes": 2, "images": 1},
        {"id": 10, "name": "", "boxes": 1, "images": 1},
    ]


def test_summaries_have_15_lines_at_most(no_anchors, config):
    """With the three lines that the program adds, whatever is wrong and however much."""
    report = check(config)
    short = data_report.summary_lines(report)
    assert short[0] == data_report.text_lines(report)[0]
    place = "train.record, record 9 (source_id 'bad')"
    assert any(line.startswith("error: undecodable_image: ") and place in line for line in short)
    assert short[-1].startswith("  --set train_input_reader.bad_records.policy=CLIP")
    (entry,) = report.scans[0].entries
    kinds = [dataclasses.replace(entry, kind=kind) for kind in list(KINDS)[:9]]
    scans = [report.scans[0]._replace(reader=f"r{i}", entries=kinds) for i in range(9)]
    long = data_report.summary_lines(report._replace(scans=scans, problems=report.problems * 9))
    assert len(long) == 11 and "… and 7 more readers" in long
    rest = 9 * 9 + 9 * len(report.problems) - 5
    assert f"… and {rest} more errors and warnings: see --verbose" in long
    assert all(line.startswith("error: ") for line in long[3:8])
