"""Detections of a file against records made by hand, and golden metrics through this way."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Sequence

import numpy as np
import pytest

from estimator_det.errors import ConfigError, RunError
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.datasets import writer
from model_fn.evaluation.detections.file import Wanted, read_detections
from model_fn.evaluation.detections.scoring import Lookup, config_of_records, evaluate_detections
from tests.inputs import examples
from tests.model_fn.evaluation.metrics import golden

pytestmark = pytest.mark.usefixtures("no_charts")

NAMES = {1: "cat", 2: "dog"}
MAP = "DetectionBoxes_Precision/mAP"


def record(
    name: str, boxes: Any, classes: Sequence[int], size: tuple[int, int] = (40, 50), **more: Any
) -> bytes:
    """A record of a grey image; boxes are yxyx in pixels."""
    scale = np.tile(np.float64(size), 2)
    source_id = more.pop("source_id", "")
    labels = writer.Annotations(np.reshape(boxes, [-1, 4]) / scale, list(classes), **more)
    image = writer.encode_image(np.full([*size, 3], 128), "png")
    made = writer.make_example(image, labels, filename=name, source_id=source_id)
    return bytes(made.SerializeToString())


def write_records(
    folder: pathlib.Path, records: Sequence[bytes], names: dict[int, str] = NAMES
) -> Any:
    """A configuration that evaluates these records."""
    path, label_map = examples.write(folder / "eval.record", records), folder / "map.pbtxt"
    writer.write_label_map(names, str(label_map))
    return config_of_records([path], str(label_map))


def write_results(folder: pathlib.Path, entries: Sequence[Any]) -> str:
    """COCO results of (image id, class id, yxyx box in pixels, score)."""
    path = folder / "found.json"
    path.write_text(json.dumps([result_of(*entry) for entry in entries]))
    return str(path)


def result_of(image: Any, class_id: Any, box: Any, score: Any) -> dict[str, Any]:
    """A COCO result; the box is yxyx in pixels."""
    return {
        "image_id": image,
        "category_id": int(class_id),
        "bbox": [float(x) for x in (box[1], box[0], box[3] - box[1], box[2] - box[0])],
        "score": float(score),
    }


CAT, DOG = [5, 5, 25, 25], [10, 20, 30, 45]


def lookup_of(folder: pathlib.Path, images: Sequence[Any]) -> Lookup:
    """Of COCO results with one detection for each image."""
    path = write_results(folder, [(i, 1, CAT, 0.9) for i in images])
    return Lookup(read_detections(path, NAMES, Wanted()))


def _find(lookup: Lookup, source_id: str, filename: str = "") -> int:
    """How many detections a record of 40 x 50 pixels gets."""
    features = {
        schema.SOURCE_ID: [source_id.encode()],
        schema.FILENAME: [filename.encode()],
        schema.ORIGINAL_SPATIAL_SHAPE: np.array([[40, 50]]),
    }
    return int(lookup.detections(features).num[0])


@pytest.mark.parametrize(
    ("image", "source_id", "filename"),
    [
        (7, "7", "x.jpg"),
        ("x.jpg", "7", "x.jpg"),
        ("x", "7", "x.jpg"),
        ("photos/x.jpg", "7", "x.jpg"),
        ("x.jpg", "photos/x.jpg", ""),
        (139, "COCO_val2014_000000000139.jpg", ""),
        (139, "a", "000000000139.jpg"),
        (0, "a", "000000000000.jpg"),
    ],
)
def test_images_are_found_by_source_id_and_file_name(image, source_id, filename, tmp_path):
    lookup = lookup_of(tmp_path, [image, "other"])
    assert _find(lookup, "none", "none.jpg") == 0
    assert _find(lookup, source_id, filename) == 1
    assert lookup.counts()["records_without_detections"] == 1
    assert lookup.counts()["detections_of_images_without_record"] == 1


@pytest.mark.parametrize(
    ("images", "names", "message"),
    [
        # One image of the file for two of the records, and the other way round.
        (["a.jpg"], ["x/a.jpg", "y/a.jpg"], "'a.jpg' may be each of two images of the records"),
        (["x/a.jpg", "y/a.jpg"], ["a.jpg"], "'x/a.jpg' and 'y/a.jpg' may both be the image"),
    ],
)
def test_names_that_are_not_unique_are_refused(images, names, message, tmp_path):
    lookup = lookup_of(tmp_path, images)
    with pytest.raises(RunError, match=message):
        for name in names:
            _find(lookup, name)


def test_files_of_other_images_are_refused(tmp_path):
    lookup = lookup_of(tmp_path, [9, "z\x1b[2J"])
    for name in ("1", "2"):
        _find(lookup, name)
    with pytest.raises(RunError) as caught:
        lookup.check_any()
    text = str(caught.value)
    assert (
        r"its 2 images do not occur in the records. The file has the images '9', 'z\x1b[2J'" in text
    )
    assert "source ids '1', '2'" in text
    lookup_of(tmp_path, []).check_any()


def test_a_configuration_without_a_reader_is_refused(tmp_path):
    config = write_records(tmp_path, [])
    del config.eval_input_reader[:]
    with pytest.raises(ConfigError, match="eval_input_reader: is missing"):
        evaluate_detections(config, write_results(tmp_path, []), str(tmp_path))


def golden_images(folder: pathlib.Path) -> tuple[Any, list[Any]]:
    """Configuration and COCO results of the golden images with masks."""
    records, results = [], []
    for number in range(8):
        start = f"seg{number}__"
        arrays = {k[len(start) :]: x for k, x in golden.ARRAYS.items() if k.startswith(start)}
        more = {
            "difficult": arrays["gt_difficult"],
            "is_crowd": arrays["gt_crowd"],
            "masks": [writer.encode_image(255 * mask, "png") for mask in arrays["gt_masks"]],
        }
        boxes, name = arrays["gt_boxes"], f"seg{number}.png"
        size, source_id = (64, 64), str(number)
        records.append(record(name, boxes, arrays["gt_classes"], size, source_id=source_id, **more))
        masks = golden.encode(arrays["det_masks"])
        for i, box in enumerate(arrays["det_boxes"].tolist()):
            entry = result_of(number, arrays["det_classes"][i], box, arrays["det_scores"][i])
            entry["segmentation"] = {"size": size, "counts": masks[i]["counts"].decode()}
            results.append(entry)
    config = write_records(folder, records, {c["id"]: c["name"] for c in golden.CATEGORIES})
    return config, results


def test_golden_boxes_and_masks(tmp_path):
    config, results = golden_images(tmp_path)
    sets = config.eval_config.metrics_set
    sets.extend(["coco_mask_metrics", "pascal_voc_instance_segmentation_metrics"])
    sets.append("precision_at_recall_detection_metrics")
    config.eval_config.recall_lower_bound, config.eval_config.recall_upper_bound = 0.2, 0.8
    config.eval_input_reader[0].load_instance_masks = True
    config.eval_input_reader[0].mask_type = input_reader_pb2.PNG_MASKS
    path = tmp_path / "found.json"
    path.write_text(json.dumps(results))
    (evaluation,) = evaluate_detections(config, str(path), str(tmp_path / "run"))
    metrics = evaluation.metrics
    assert metrics["detections_of_unknown_classes"] == 0
    assert not [name for name in evaluation.notes if name in metrics and "/" not in name]
    for case in ("coco_masks_no_area", "pascal_masks", "precision_at_recall_0.2_0.8"):
        values = {name: x for name, x in golden.RESULTS[case].items() if x == x}
        assert len(values) >= 4
        for name, value in values.items():
            assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-9), name
