"""Pictures that are worth labelling: numbers worked out by hand, and the verb on a small export."""

from __future__ import annotations

import csv
import json
from typing import Any, List, Sequence

import numpy as np
import pytest
from PIL import Image

from estimator_det.programs import cli
from exporters import Detections, suggestions
from exporters.detector import ClassThresholds
from exporters.suggestions import Picture, Worth
from inputs.datasets import source
from inputs.datasets.converters.base import open_source

HALF = ClassThresholds(0.5, {2: 0.2})
LEFT, RIGHT = [0.2, 0.0, 0.8, 0.25], [0.2, 0.75, 0.8, 1.0]


def found(boxes: Any, scores: Sequence[float], classes: Sequence[int]) -> Detections:
    return Detections(
        np.float32(boxes).reshape(-1, 4),
        np.float32(scores),
        np.int64(classes),
        tuple(map(str, classes)),
        (10, 20),
    )


def test_doubt_is_greatest_at_the_threshold():
    scores, thresholds = np.array([0.1, 0.25, 0.375, 0.5, 0.75, 1.0, 0.2]), [0.5] * 6 + [0.2]
    np.testing.assert_allclose(
        suggestions.doubts(scores, np.array(thresholds)), [0, 0, 0.5, 1, 0.5, 0, 1]
    )


def test_disagreement_with_the_other_view():
    views = found([LEFT, RIGHT, RIGHT], [0.8, 0.8, 0.4], [1, 1, 2])
    others = found([LEFT, RIGHT], [0.8, 0.4], [1, 1])
    # The first is the same there; the second has half the score; the third has another class.
    np.testing.assert_allclose(suggestions.disagreements(views, others), [0, 0.5, 1], atol=1e-6)
    np.testing.assert_allclose(suggestions.disagreements(views, found([], [], [])), [1, 1, 1])


def test_worth_sums_over_both_views():
    view, mirrored = found([LEFT], [0.5], [1]), found([RIGHT], [0.5], [1])
    assert suggestions.worth(view, mirrored, HALF, {}) == Worth(1, 0, 1)
    assert suggestions.worth(view, mirrored, HALF, {1: 3.0}) == Worth(1, 0, 3)
    elsewhere = found([LEFT], [0.5], [1])  # of the mirror image, so on the other side
    assert suggestions.worth(view, elsewhere, HALF, {}) == Worth(1, 1, 2)
    other_threshold = found([LEFT], [0.09], [2])  # below half of its threshold
    assert suggestions.worth(other_threshold, found([], [], []), HALF, {}) == Worth(0, 0, 0)


def test_rare_classes_weigh_more():
    assert suggestions.rarity({1: 30, 2: 10, 3: 0}) == pytest.approx(
        {1: (4 / 9) ** 0.5, 2: (4 / 3) ** 0.5, 3: suggestions.MOST_RARE}
    )
    assert suggestions.rarity({}) == {}


def test_near_duplicates_are_suggested_once():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 90, 120, 3), dtype=np.uint8)
    smooth = [
        np.asarray(Image.fromarray(each).resize((9, 9)).resize((160, 120))) for each in pixels
    ]
    smaller = np.asarray(Image.fromarray(smooth[0]).resize((80, 60))) // 2 + 20  # and paler
    images = {"a": smooth[0], "b": smooth[1], "copy": smaller}
    worth = {"a": 2.0, "b": 1.0, "copy": 3.0}
    pictures = [
        Picture(name, Worth(0, 0, worth[name]), suggestions.perceptual_hash(each))
        for name, each in images.items()
    ]

    def names(number: int) -> List[str]:
        return [each.path for each in suggestions.choose(pictures, number)]

    assert names(5) == ["copy", "b"]
    assert names(1) == ["copy"]


def test_the_verb(exported, pictures, tmp_path, capsys):
    photos, output = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for number in range(5):
        turned = np.rot90(pictures[number % 2], number // 2)  # of two sizes
        Image.fromarray(turned).save(photos / f"{number}.png")
    Image.fromarray(pictures[0]).save(photos / "copy of 0.png")
    (photos / "broken.png").write_text("no image")
    command = ["suggest", "--images", str(photos), str(exported), "--output_dir", str(output)]
    command += ["--threshold", "0.02", "--number", "4", "--batch_size", "2"]
    assert cli.main([*command, "--json"]) == 1  # since one cannot be used
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["looked_at"] == 7
    (failed,) = document["failed"]
    assert failed["file"] == str(photos / "broken.png") and failed["error"] in captured.err
    rows = document["pictures"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    assert [row["worth"] for row in rows] == sorted((row["worth"] for row in rows), reverse=True)
    files = {row["file"] for row in rows}
    assert len(files) == 4 and not {str(photos / "0.png"), str(photos / "copy of 0.png")} <= files
    with open(output / "suggestions.csv", encoding="utf-8") as table:
        assert [row["file"] for row in csv.DictReader(table)] == [row["file"] for row in rows]
    assert Image.open(output / "suggestions.png").width > 4 * 280
    annotations = str(output / "annotations" / "instances.json")
    drafts = open_source("coco", source.SourceOptions(images=str(photos), annotations=annotations))
    counts = {str(photos / image.image): len(list(image.objects)) for image in drafts.images}
    assert counts == {row["file"]: row["drafts"] for row in rows}
    assert cli.main(command) == 2
    assert "its labels may have been corrected" in capsys.readouterr().err


def test_an_export_without_thresholds(exported, tmp_path, capsys):
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    command = ["suggest", str(exported)]
    assert cli.main(command) == 2 and "give images or folders" in capsys.readouterr().err
    command.append(str(tmp_path / "a.png"))
    assert cli.main([*command, "--output_dir", str(tmp_path / "out")]) == 1
    assert "or give --threshold a number" in capsys.readouterr().err
