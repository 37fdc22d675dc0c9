import dataclasses
import importlib
import json
import os
import shutil
import sys
import types

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks

from estimator_det.config import pipeline
from estimator_det.config.derived_models import final_scores
from estimator_det.errors import RunError
from estimator_det.programs import cli, console
from estimator_det.protos import pipeline_pb2
from exporters import Detections, Detector, image_files
from exporters.detect_files import Filter, detect_files, json_entries
from exporters.detector import ClassThresholds
from exporters.formats.saved_model import SavedModelDetector, find_saved_model
from exporters.image_files import list_images
from exporters.loaded_model import LoadedModel, Skeleton
from inputs.datasets import writer
from model_fn.evaluation import score_thresholds
from model_fn.evaluation.score_thresholds import ThresholdRow, ThresholdTable
from tests.exporters.conftest import NAMES
from tests.inputs import faults


@pytest.fixture(scope="module")
def model(exported):
    return Detector(exported)


def test_detections_of_one_image(model, pictures, tmp_path):
    found = model(pictures[0])
    assert len(found) == len(found.boxes) == len(found.scores) == len(found.classes) > 0
    assert (np.diff(found.scores) <= 0).all() and found.image_size == (50, 70)
    assert found.names == tuple(NAMES[i] for i in found.classes)
    assert model.class_names == NAMES and model.model.name(99) == "99"
    np.testing.assert_allclose(found.normalized_boxes * [50, 70, 50, 70], found.boxes, rtol=1e-5)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.ascontiguousarray(np.rot90(pictures[0]))).save(tmp_path / "a.png", exif=exif)
    others = model([Image.fromarray(pictures[0]), tmp_path / "a.png", pictures[0]])
    for other in (*others, model(str(tmp_path / "a.png")), model(pictures)[0]):
        np.testing.assert_allclose(other.boxes, found.boxes, atol=1e-3)
        assert other.names == found.names and other.image_size == found.image_size
    drawn = found.draw(pictures[0])
    assert (drawn != pictures[0]).any()
    for image in (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(pictures[0])):
        np.testing.assert_array_equal(found.draw(image), drawn)
    for wrong in (pictures[0].astype(np.float32), pictures[0][..., 0], pictures[0][..., :2]):
        with pytest.raises(ValueError, match=r"must be uint8 \[height, width, 3\]"):
            model(wrong)


class _BatchOfTwo(LoadedModel):
    """Takes two images at a time; scores rise from the first value of each."""

    def __init__(self):
        super().__init__("model", {1: "cat"}, "")
        self.batch_size = 2

    def run(self, images):
        assert len(images) == 2
        return {
            "num_detections": np.float32([2, 2]),
            "detection_boxes": np.float32([[[0, 0, 0.5, 1], [0, 0, 1, 1]]] * 2),
            "detection_scores": images[:, :2, 0, 0] + np.float32([0, 1]),
            "detection_classes": np.float32([[1, 1]] * 2),
        }


def test_a_model_of_one_batch_size_runs_any_number_of_images():
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones([1, 4, 6, 3], np.uint8)
    detector = Detector(_BatchOfTwo())
    assert [found.scores.tolist() for found in detector(images)] == [[1, 0], [2, 1], [3, 2]]
    assert detector(images[2]).boxes.tolist() == [[0, 0, 4, 6], [0, 0, 2, 6]]


def _detections(**changes):
    fields = {
        "normalized_boxes": np.float32([[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1]]),
        "scores": np.float32([0.75, 0.5]),
        "classes": np.int64([2, 1]),
        "names": ("dog", "cat"),
        "image_size": (8, 16),
    }
    return Detections(**{**fields, **changes})


def test_coco_entries():
    entries = _detections(masks=np.ones([2, 3, 3], np.float32)).to_coco(7)
    masks = [entry.pop("segmentation") for entry in entries]
    assert entries == [
        {"image_id": 7, "category_id": 2, "bbox": [4, 2, 8, 4], "score": 0.75},
        {"image_id": 7, "category_id": 1, "bbox": [0, 0, 16, 8], "score": 0.5},
    ]
    assert [mask["size"] for mask in masks] == [[8, 16], [8, 16]]
    assert coco_masks.area(masks[1]) == 8 * 16
    assert _detections(normalized_boxes=np.zeros([0, 4])).to_coco(1) == []
    with pytest.raises(ValueError, match="these detections have no masks"):
        _detections().mask(0)


def test_keypoints_of_detections(monkeypatch):
    """Those below a class of the model's, or without coordinates, are absent everywhere."""
    found = _detections(
        keypoints=np.float32([[[0.25, 0.5], [0.75, 0.5]], [[0, 0], [0, 0]]]),
        keypoint_scores=np.float32([[0.75, 0.125], [0, 0]]),
        skeleton=Skeleton({2: {0: "nose"}}, ((0, 1),)),
    )
    entries = found.to_coco(7)
    assert [entry["keypoints"] for entry in entries] == [[8, 2, 2, 8, 6, 2], [0] * 6]
    nose = {"name": "nose", "y": 0.25, "x": 0.5, "y_pixels": 2, "x_pixels": 8, "score": 0.75}
    tail = {"name": "1", "y": 0.75, "x": 0.5, "y_pixels": 6, "x_pixels": 8, "score": 0.125}
    assert [each["keypoints"] for each in json_entries(found)] == [[nose, tail], []]
    (cat,) = json_entries(found.select(np.array([1])))
    assert cat["keypoints"] == []
    picture = np.zeros([80, 160, 3], np.uint8)
    sure = dataclasses.replace(found, keypoint_scores=np.float32([[0.75, 0.5], [0, 0]]))
    for detections, has_line in ((found, False), (sure, True)):  # the tail's score is too low
        drawn = detections.select(np.array([0])).draw(picture)
        assert drawn[20, 80].any() and drawn[40, 80].any() == has_line
    with pytest.raises(ValueError, match="these detections have no keypoints"):
        _detections().is_keypoint()
    stand_in = types.SimpleNamespace(KeyPoints=lambda *values, data: (*values, data["class_name"]))
    monkeypatch.setattr("exporters.detector._supervision", lambda: stand_in)
    points, class_ids, scores, names = found.to_supervision_keypoints()
    assert points.tolist() == [[[8, 2], [8, 6]], [[0, 0], [0, 0]]]
    assert class_ids.tolist() == [2, 1] and names.tolist() == ["dog", "cat"]
    assert scores.tolist() == [[0.75, 0.125], [0, 0]]


def test_the_skeleton_is_that_of_the_export(exported, tmp_path):
    """Names of the label map, and edges of the configuration; nothing if it has neither."""
    model = _BatchOfTwo()
    assert model.skeleton == Skeleton()
    model = _BatchOfTwo()
    model.path = str(tmp_path / "model")
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.eval_config.keypoint_edge.add(start=1, end=0)
    pipeline.save_pipeline(config, tmp_path)
    points = {1: ("nose", "tail"), 2: ("top", "nose")}
    writer.write_label_map({1: "cat", 2: "cup"}, str(tmp_path / "label_map.pbtxt"), points)
    names = {each: dict(enumerate(labels)) for each, labels in points.items()}
    assert model.skeleton == Skeleton(names, ((1, 0),))


def test_a_selection_keeps_all_fields_together():
    found = _detections(masks=np.float32([[[1]], [[2]]])).select(np.array([False, True]))
    assert (found.names, found.scores.tolist(), found.masks.tolist()) == (("cat",), [0.5], [[[2]]])
    assert Filter(0.5, {2}).apply(_detections()).names == ("dog",)
    assert Filter(0.8).apply(_detections()).names == ()
    assert Filter(0.5).apply(_detections()).names == ("dog", "cat")  # just the lowest score
    for least_dog, names in ((0.75, ("dog", "cat")), (0.76, ("cat",))):
        thresholds = ClassThresholds(0.5, {2: least_dog})  # cats: as all classes
        assert Filter(thresholds).apply(_detections()).names == names


def test_supervision_gets_boxes_as_x_y_and_whole_masks(monkeypatch):
    found = _detections(masks=np.ones([2, 3, 3], np.float32))
    if importlib.util.find_spec("supervision") is None:
        with pytest.raises(RunError, match=r"needs the package supervision.*pip install"):
            found.to_supervision()
        package = types.ModuleType("supervision", "A stand-in with the constructor's fields")
        package.Detections = types.SimpleNamespace
        package.__spec__ = importlib.machinery.ModuleSpec("supervision", None)
        monkeypatch.setitem(sys.modules, "supervision", package)
    converted = found.to_supervision()
    assert converted.xyxy.tolist() == [[4, 2, 12, 6], [0, 0, 16, 8]]
    assert converted.class_id.tolist() == [2, 1] and converted.mask.shape == (2, 8, 16)
    assert converted.mask.sum((1, 2)).tolist() == [4 * 8, 8 * 16]
    assert converted.data["class_name"].tolist() == ["dog", "cat"]


def test_unknown_classes_are_refused_with_the_nearest(exported, pictures, tmp_path, capsys):
    Image.fromarray(pictures[0]).save(tmp_path / "a.png")
    arguments = ["detect", str(exported), "--threshold=0", str(tmp_path / "a.png")]
    arguments += ["--output_dir", str(tmp_path / "o")]
    assert cli.main([*arguments, "--classes", 'circle,"squares,"']) == 2
    error = capsys.readouterr().err
    assert "has no class 'squares,'; did you mean 'square'? Known: circle, square" in error
    assert not (tmp_path / "o").exists()
    assert cli.main([*arguments, "--classes", "circle, star"]) == 0
    line = json.loads((tmp_path / "o" / "detections.jsonl").read_text())
    assert {each["name"] for each in line["detections"]} <= {"circle", "star"}
    highest = max(each["score"] for each in line["detections"])
    assert cli.main([*arguments, "--classes=circle,star", "--threshold=1"]) == 0
    printed = capsys.readouterr().out
    assert f"a.png: no detection; the highest score is {highest:.2f} -> " in printed


def test_unknown_signature(exported):
    with pytest.raises(RunError, match=r"has no signature 'none'; it has \['serving_default'"):
        SavedModelDetector(str(exported), "none")


def test_where_the_model_is_looked_for(exported, tmp_path):
    assert find_saved_model(str(exported)) == str(exported / "saved_model")
    assert find_saved_model(str(exported / "saved_model")).endswith("saved_model")
    for stamp in ("99", "1700000000"):
        (tmp_path / stamp).mkdir()
        (tmp_path / stamp / "saved_model.pb").touch()
    assert find_saved_model(str(tmp_path)) == str(tmp_path / "1700000000")
    with pytest.raises(FileNotFoundError, match=r"there is no saved_model\.pb in"):
        find_saved_model(str(tmp_path / "none"))


def test_pictures_and_json_lines(model, pictures, tmp_path):
    for name, picture in zip(("a.png", "a.jpg"), pictures):
        Image.fromarray(picture).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    paths = list_images([str(tmp_path)])
    out = tmp_path / "out"
    results = list(detect_files(model, paths, str(out), Filter(0.0)))
    assert [result.path for result in results] == paths
    assert sorted(path.name for path in out.iterdir()) == [
        "a__detections.jpg",
        "a_detections.jpg",
        "detections.jsonl",
    ]
    lines = [json.loads(line) for line in (out / "detections.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == paths
    assert "broken.png" in lines[2]["error"]
    assert results[2].error == lines[2]["error"]
    assert (lines[0]["height"], lines[0]["width"]) == (50, 70)
    first, found = lines[0]["detections"][0], results[0].detections
    assert first["class_id"] == found.classes[0]
    assert first["name"] == NAMES[first["class_id"]]
    assert first["score"] == pytest.approx(found.scores[0], abs=1e-5)
    assert first["box"]["ymax"] == pytest.approx(found.normalized_boxes[0, 2], abs=1e-5)
    assert first["box_pixels"]["ymax"] == pytest.approx(found.boxes[0, 2], abs=0.01)
    assert first["box_pixels"]["xmin"] == pytest.approx(found.boxes[0, 1], abs=0.01)
    with Image.open(out / "a_detections.jpg") as drawn:
        assert drawn.size == (70, 50)


def test_drawings_lines_and_other_files(exported, pictures, tmp_path, capsys):
    """Formats of drawings, the length of a printed line, and a report of files that are skipped."""
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(pictures[0]).save(folder / "a.webp", lossless=True)
    for name in ("b.heic", "c.HEIC", "d.xml", "README", ".hidden"):
        (folder / name).touch()
    for drawing, suffix in ((["--draw=png"], ".png"), ([], ".jpg"), (["--draw=none"], None)):
        out = tmp_path / f"out{suffix}"
        arguments = ["detect", str(exported), "--output_dir", str(out), "--threshold=0"]
        assert cli.main([*arguments, *drawing, str(folder)]) == 0
        output = capsys.readouterr()
        assert output.err == (
            f"{folder}: 4 files skipped, not images by name: 2 .heic, 1 without a suffix, 1 .xml, "
            f"such as {folder}/README\n"
        )
        names = {"detections.jsonl"} | ({f"a_detections{suffix}"} if suffix else set())
        assert {path.name for path in out.glob("[!.]*")} == names
        line = output.out.splitlines()[0]
        count = len(json.loads((out / "detections.jsonl").read_text())["detections"])
        assert line.startswith(f"{folder}/a.webp: ") and line.count(", ") == 9
        end = f" -> {out}/a_detections{suffix}" if suffix else ""
        assert line.endswith(f" and {count - 10} more{end}")
    (folder / "a.webp").unlink()
    assert cli.main([*arguments, str(folder)]) == console.EXIT_MISSING
    assert "(2 .heic, 1 without a suffix, 1 .xml); known suffixes: .jpg" in capsys.readouterr().err


def test_a_picture_too_long_for_jpeg_is_drawn_as_png(tmp_path):
    Image.new("RGB", (70_000, 1)).save(tmp_path / "long.png")
    model = _BatchOfTwo()
    (result,) = detect_files(Detector(model), [str(tmp_path / "long.png")], str(tmp_path), Filter())
    assert result.drawing == str(tmp_path / "long_detections.png")


def test_hostile_files_cost_one_line_each(exported, pictures, tmp_path, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "bomb.png").write_bytes(faults.bomb())
    os.mkfifo(folder / "pipe.jpg")
    (folder / "folder.png").mkdir()
    Image.fromarray(pictures[0]).save(folder / "z.png")
    (folder / "cut.png").write_bytes((folder / "z.png").read_bytes()[:200])
    arguments = ["detect", str(exported), "--output-dir", str(tmp_path / "out")]
    assert cli.main([*arguments, str(folder)]) == 1
    output = capsys.readouterr()
    reasons = output.err.splitlines()
    assert len(reasons) == 4
    for name, reason in (
        ("bomb.png", "cannot be read: it has too many pixels"),
        ("cut.png", "cannot be read: "),
        ("folder.png", "is a folder"),
        ("pipe.jpg", "is a named pipe"),
    ):
        assert any(line.startswith(f"{folder}/{name} {reason}") for line in reasons)
    assert "z_detections.jpg" in output.out
    lines = [json.loads(line) for line in (tmp_path / "out/detections.jsonl").open()]
    assert ["error" in line for line in lines] == [True, True, True, True, False]


def test_a_damaged_export_is_named(exported, tmp_path):
    copy = tmp_path / "saved_model"
    shutil.copytree(exported / "saved_model", copy)
    content = (copy / "saved_model.pb").read_bytes()
    (copy / "saved_model.pb").write_bytes(content[: len(content) // 3])
    with pytest.raises(RunError, match=r"cannot be loaded: .*damaged or incomplete") as caught:
        SavedModelDetector(str(copy))
    assert str(copy) in str(caught.value)
    assert "Op:" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_large_photo_is_reduced_and_rotated(model, pictures, tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.ascontiguousarray(np.rot90(pictures[0]))).save(tmp_path / "a.png", exif=exif)
    monkeypatch.setattr(image_files, "MAX_DETECTED_PIXELS", 1000)
    (result,) = detect_files(model, [str(tmp_path / "a.png")], str(tmp_path / "o"), Filter(0.0))
    assert result.reduced_by == 2
    line = json.loads((tmp_path / "o" / "detections.jsonl").read_text())
    assert (line["height"], line["width"], line["reduced_by"]) == (50, 70, 2)
    assert line["exif_orientation"] == 6
    first = line["detections"][0]
    assert first["box_pixels"]["ymax"] == pytest.approx(first["box"]["ymax"] * 50, abs=0.01)
    with Image.open(tmp_path / "o" / "a_detections.jpg") as drawn:
        assert drawn.size == (35, 25)


THRESHOLDS = ThresholdTable(
    ThresholdRow("all classes", 9, 9, 0.5),
    (ThresholdRow("circle", 9, 9, 0.25, class_id=1), ThresholdRow("square", 0, 9)),
)


def test_thresholds_of_each_class(exported, pictures, tmp_path, capsys):
    copy = tmp_path / "saved_model"
    shutil.copytree(exported / "saved_model", copy)
    model = Detector(copy)
    with pytest.raises(
        RunError, match=r"no thresholds: there is no assets\.extra/thresholds\.json"
    ):
        model.best_thresholds()
    found = model(pictures[0])
    chosen = int(found.classes[0])
    least = float(found.scores[found.classes == chosen][2])
    table = ThresholdTable(
        ThresholdRow("all classes", 9, 9, 2.0), (ThresholdRow("one", 9, 9, least, class_id=chosen),)
    )
    path = score_thresholds.write(str(tmp_path / "eval"), 1, "0", table)
    shutil.copy(path, copy / score_thresholds.IN_EXPORTS)
    Image.fromarray(pictures[0]).save(tmp_path / "a.png")
    arguments = ["detect", str(copy), "--output_dir", str(tmp_path / "o")]
    assert cli.main([*arguments, "--threshold", "auto", str(tmp_path / "a.png")]) == 0
    line = json.loads((tmp_path / "o" / "detections.jsonl").read_text())
    # Exactly the detections of the class down to its threshold; no other score reaches 2.
    assert [one["class_id"] for one in line["detections"]] == [chosen] * 3
    nothing = score_thresholds.write(
        str(tmp_path), 1, "0", ThresholdTable(ThresholdRow("all classes", 9, 0), ())
    )
    shutil.copy(nothing, copy / score_thresholds.IN_EXPORTS)
    assert cli.main([*arguments, "--threshold=auto", str(tmp_path / "a.png")]) == 1
    assert "had no correct detection" in capsys.readouterr().err


def test_export_verb(trained, model, pictures, tmp_path, capsys):
    config = tmp_path / "pipeline.config"
    config.write_text(pipeline.format_pipeline(trained.config))
    arguments = ["export", "--pipeline_config_path", str(config)]
    arguments += ["--trained_checkpoint_prefix", trained.checkpoint]
    arguments += ["--output_dir", str(tmp_path / "out")]
    arguments += ["--input_type", "image_tensor,tf_example"]
    arguments += ["--config_override", "eval_config { batch_size: 3 }"]
    arguments += ["--additional-output-tensor-names=Postprocessor/raw_box_scores"]
    arguments += ["--write_inference_graph", "--use_side_inputs=False"]
    arguments += ["--trainable", "--max-batch", "2", "--input_shape=-1,50,None,3"]
    scores = final_scores(trained.config.model).fingerprint()
    table = dataclasses.replace(THRESHOLDS, scores=scores)
    thresholds = score_thresholds.write(str(tmp_path), 1, "0", table)
    arguments += ["--thresholds", thresholds]
    assert cli.main(arguments) == 0
    assert (tmp_path / "out" / "inference_graph.pbtxt").exists()
    shown = capsys.readouterr().out
    assert "inputs:        image_tensor, tf_example" in shown
    assert "weights:       variables" in shown and "scores differ by" in shown
    assert f"thresholds:    {thresholds}" in shown
    copied = tmp_path / "out" / "saved_model" / score_thresholds.IN_EXPORTS
    assert score_thresholds.read(str(copied)) == table
    saved = pipeline.read_pipeline(str(tmp_path / "out" / "pipeline.config"))
    assert saved.eval_config.batch_size == 3
    found = Detector(SavedModelDetector(str(tmp_path / "out"), "tf_example"))(pictures[1])
    expected = model(pictures[1])
    np.testing.assert_allclose(found.boxes, expected.boxes, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.classes, expected.classes)
    assert cli.main(arguments) == 2
    assert "is not empty" in capsys.readouterr().err
