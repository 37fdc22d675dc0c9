"""Draws the pictures of these pages: `python docs/pictures.py --help`.

Photographs: astronaut, chelsea, coffee and motorcycle_left of scikit-image, which are free of
rights, and a data set of raccoons with PASCAL VOC annotations under the MIT license. The detector
is the published SSDLite MobileNet v2 of COCO, imported and exported; the detector of raccoons and
its report come from the commands of README, after some minutes. Pictures whose inputs are not given
stay as they are. serve.jpg is a screenshot of the page of `estimator-det serve`.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import pathlib
import re
import tempfile
from typing import Any, Sequence

from PIL import Image, ImageDraw

from estimator_det.config import pipeline
from estimator_det.programs import cli
from model_fn.drawing import charts
from model_fn.drawing.boxes import sans

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
CONFIG = "ssd_mobilenet_v1_300x300.config"  # a shipped one
PHOTOS = ("coffee.png", "astronaut.png", "chelsea.png", "motorcycle_left.png")
ROW_HEIGHT = 320  # pixels
# A row of the table in augmentations.md: one photograph before and after.
AUGMENTATIONS = (
    "random_horizontal_flip: probability: 1",
    "random_crop_image",
    "ssd_random_crop",
    "random_crop_pad_image",
    "random_distort_color",
    "random_pad_image",
    "random_black_patches",
    "random_patch_gaussian",
    "rand_augment",
    "mosaic",
    "mixup",
)
# Time or memory relative to the Object Detection API; docs/benchmarks.md.
RATIOS = {"step": 0.76, "start": 0.23, "memory": 0.72, "evaluation": 0.27}


def run(*arguments: Any) -> None:
    """Runs a verb in this process."""
    code = cli.main([str(argument) for argument in arguments])
    if code:
        raise SystemExit(f"estimator-det {' '.join(map(str, arguments))} ended with {code}")


def save(picture: Image.Image, name: str, width: int = 1200) -> None:
    """Writes a picture of at most `width` pixels: JPEG for photographs, PNG for charts."""
    if picture.width > width:
        picture = picture.resize([width, round(picture.height * width / picture.width)])
    picture.convert("RGB").save(IMAGES / name, quality=82, optimize=True)


def in_a_row(pictures: Sequence[Image.Image], height: int = ROW_HEIGHT) -> Image.Image:
    """Pictures beside each other, scaled to one height."""
    scaled = [each.resize([round(each.width * height / each.height), height]) for each in pictures]
    width = sum(each.width for each in scaled) + 6 * (len(scaled) - 1)
    row = Image.new("RGB", [width, height], "white")
    left = 0
    for each in scaled:
        row.paste(each, [left, 0])
        left += each.width + 6
    return row


def in_two_rows(pictures: Sequence[Image.Image]) -> Image.Image:
    """Eight pictures, four beside each other."""
    rows = [in_a_row(pictures[at : at + 4], 240) for at in (0, 4)]
    page = Image.new("RGB", [max(row.width for row in rows), 2 * rows[0].height + 6], "white")
    for number, row in enumerate(rows):
        page.paste(row, [0, number * (row.height + 6)])
    return page


def draw_detections(photos: pathlib.Path, detector: pathlib.Path) -> None:
    """README's row of photographs, and the same detections at three thresholds."""
    files, folder = [photos / name for name in PHOTOS], pathlib.Path("found")
    run("detect", detector, *files, "--output_dir", folder, "--threshold", 0.5)
    drawings = [Image.open(folder / f"{file.stem}_detections.jpg") for file in files]
    save(in_a_row(drawings), "detections.jpg", 1600)
    pictures = []
    for threshold in (0.1, 0.3, 0.9):
        part = folder / f"at_{threshold}"
        run("detect", detector, files[0], "--output_dir", part, "--threshold", threshold)
        picture = Image.open(part / "coffee_detections.jpg")
        pictures.append(titled(picture, f"threshold {threshold}"))
    save(in_a_row(pictures), "thresholds.jpg")


def titled(picture: Image.Image, title: str) -> Image.Image:
    """A picture with a line of text above it."""
    page = Image.new("RGB", [picture.width, picture.height + 34], "white")
    page.paste(picture, [0, 34])
    ImageDraw.Draw(page).text([4, 6], title, fill="black", font=sans(20))
    return page


def draw_data(raccoon: pathlib.Path) -> None:
    """Groundtruth, a batch, each augmentation, the statistics, and three resizers."""
    run("convert", "--from", "pascal_voc", "--to", "tfrecord", "--images", raccoon / "images",
        "--annotations", raccoon / "annotations", "--split", "train=0.8,val=0.2",
        "--output_dir", "records")  # fmt: skip
    _write_config()
    png, config = "picture.png", "pipeline.config"
    run("show-data", config, "--eval", "--num_images", 8, "--seed", 3, "--output", png)
    save(Image.open(png), "groundtruth.jpg")
    run("show-data", config, "--num_images", 8, "--seed", 3, "--output", png)
    save(Image.open(png), "batch.jpg")
    for step in AUGMENTATIONS:
        run("show-data", config, "--augmentation", step, "--num_images", 1, "--columns", 3,
            "--seed", 5, "--output", png)  # fmt: skip
        save(Image.open(png), f"augmentation_{step.partition(':')[0]}.jpg", 900)
    run("check-data", config, "--output_dir", "report")
    save(Image.open(pathlib.Path("report") / "histograms.png"), "data_histograms.png")
    _draw_resizers(config, png)


def _write_config() -> None:
    """A shipped configuration with the records."""
    config = pipeline.read_pipeline(ROOT / "estimator_det" / "configs" / CONFIG)
    config.model.ssd.num_classes = 1
    for reader, part in (
        (config.train_input_reader, "train"),
        (config.eval_input_reader[0], "val"),
    ):
        reader.label_map_path = "records/label_map.pbtxt"
        reader.tf_record_input_reader.input_path[:] = [f"records/{part}.record-*"]
    pathlib.Path("pipeline.config").write_text(pipeline.format_pipeline(config))


def _draw_resizers(config: str, png: str) -> None:
    """One image as three resizers hand it to the network."""
    sides = "min_dimension: 320 max_dimension: 320 pad_to_max_dimension: true"
    resizers = {
        "fixed_shape_resizer": "height: 320 width: 320",
        "keep_aspect_ratio_resizer": sides,
        "identity_resizer": "",
    }
    pictures = []
    for name, fields in resizers.items():
        override = f"model {{ ssd {{ image_resizer {{ {name} {{ {fields} }} }} }} }}"
        run("show-data", config, "--eval", "--num_images", 1, "--columns", 1, "--config_override",
            override, "--output", png)  # fmt: skip
        pictures.append(titled(Image.open(png), name))
    save(in_a_row(pictures, 420), "resizers.jpg")


def draw_suggestions(raccoon: pathlib.Path, detector: pathlib.Path) -> None:
    """The contact sheet of the photographs to label next."""
    run("suggest", detector, "--images", raccoon / "images", "--number", 10,
        "--output_dir", "suggested")  # fmt: skip
    save(Image.open(pathlib.Path("suggested") / "suggestions.png"), "suggestions.jpg")


def draw_tutorial(folder: pathlib.Path) -> None:
    """Statistics, a batch and detections from a folder in which the commands of the page ran."""
    save(Image.open(folder / "records" / "convert_histograms.png"), "tutorial_data.png", 1100)
    save(Image.open(folder / "batch.png"), "tutorial_batch.jpg", 1000)
    files = sorted((folder / "detections").glob("*_detections.jpg"))[:8]
    save(in_two_rows([Image.open(file) for file in files]), "tutorial_detections.jpg", 1000)


def draw_mistakes(report: pathlib.Path) -> None:
    """The first pictures of a report: confident mistakes, each beside its groundtruth."""
    encoded = re.findall(r'"data:image/jpeg;base64,([^"]+)"', report.read_text(encoding="utf-8"))
    pictures = [Image.open(io.BytesIO(base64.b64decode(text))) for text in encoded[:8]]
    save(in_two_rows(pictures), "mistakes.jpg")


def draw_ratios() -> None:
    """Step, start, memory and evaluation as parts of what the Object Detection API takes."""
    panel = charts.bar_chart(
        "SSD MobileNet v1: parts of what the Object Detection API takes",
        list(RATIOS),
        {"Object Detection API": [1.0] * len(RATIOS), "estimator-det": list(RATIOS.values())},
        width=2,
    )
    save(Image.open(io.BytesIO(charts.figure([panel], columns=2))), "ratios.png", 800)


def main() -> None:
    """Draws the pictures whose inputs are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=pathlib.Path, help="folder of the four photographs")
    parser.add_argument("--detector", type=pathlib.Path, help="export that detects COCO's classes")
    parser.add_argument("--raccoon", type=pathlib.Path, help="folder with images and annotations")
    parser.add_argument("--raccoon_detector", type=pathlib.Path, help="export that detects them")
    parser.add_argument("--report", type=pathlib.Path, help="report.html of a run on raccoons")
    parser.add_argument("--tutorial", type=pathlib.Path, help="folder in which tutorial.md was run")
    text = "folder of `demo --model centernet_keypoints`"
    parser.add_argument("--keypoints", type=pathlib.Path, help=text)
    options = parser.parse_args()
    photos, detector, raccoon, raccoon_detector, report, tutorial, keypoints = (
        path and path.resolve()
        for path in (
            options.photos,
            options.detector,
            options.raccoon,
            options.raccoon_detector,
            options.report,
            options.tutorial,
            options.keypoints,
        )
    )
    draw_ratios()
    # Titles of pictures contain paths, so these are relative ones.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if photos and detector:
            draw_detections(photos, detector)
        if raccoon:
            draw_data(raccoon)
        if raccoon and raccoon_detector:
            draw_suggestions(raccoon, raccoon_detector)
        if report:
            draw_mistakes(report)
        if tutorial:
            draw_tutorial(tutorial)
        if keypoints:
            save(Image.open(keypoints / "detections.png"), "keypoints.jpg")


if __name__ == "__main__":
    main()
