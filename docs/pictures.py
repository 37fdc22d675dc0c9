"""Draws the pictures of these pages: `python docs/pictures.py --help`.

Photographs: astronaut, chelsea, coffee and motorcycle_left of scikit-image, which are free of rights, and a data set
of raccoons with PASCAL VOC annotations under the MIT license. The detector is the published SSDLite MobileNet v2 of
COCO, exported; the run is one of raccoons. Pictures whose inputs are not given stay as they are.
"""

from __future__ import annotations

import argparse
import io
import pathlib
import tempfile
from typing import Any, Dict, List, Sequence

import numpy as np
from PIL import Image, ImageDraw

from estimator_det.programs import cli
from model_fn.drawing import charts
from model_fn.drawing.boxes import sans

IMAGES = pathlib.Path(__file__).parent / "images"
PHOTOS = ("coffee.png", "astronaut.png", "chelsea.png", "motorcycle_left.png")
HEIGHT = 320  # of the photographs in a row
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
RATIOS = {"step": 0.79, "start": 0.31, "memory": 0.72, "evaluation": 0.36}


def run(*arguments: Any) -> None:
    code = cli.main([str(argument) for argument in arguments])
    if code:
        raise SystemExit(f"estimator-det {' '.join(map(str, arguments))} ended with {code}")


def save(picture: Image.Image, name: str, width: int = 1200) -> None:
    """Writes a picture of at most `width` pixels: JPEG for photographs, PNG for charts."""
    if picture.width > width:
        picture = picture.resize([width, round(picture.height * width / picture.width)])
    picture.convert("RGB").save(IMAGES / name, quality=82, optimize=True)


def in_a_row(pictures: Sequence[Image.Image], height: int = HEIGHT) -> Image.Image:
    scaled = [each.resize([round(each.width * height / each.height), height]) for each in pictures]
    width = sum(each.width for each in scaled) + 6 * (len(scaled) - 1)
    row = Image.new("RGB", [width, height], "white")
    left = 0
    for each in scaled:
        row.paste(each, [left, 0])
        left += each.width + 6
    return row


def draw_detections(photos: pathlib.Path, detector: pathlib.Path, folder: pathlib.Path) -> None:
    """README's row of photographs, and the same detections at three thresholds."""
    files = [photos / name for name in PHOTOS]
    run("detect", "--model", detector, *files, "--output_dir", folder, "--threshold", 0.5)
    found = [Image.open(folder / f"{file.stem}_detections.jpg") for file in files]
    save(in_a_row(found), "detections.jpg", 1600)
    pictures = []
    for threshold in (0.1, 0.3, 0.6):
        part = folder / f"at_{threshold}"
        run("detect", "--model", detector, files[0], "--output_dir", part, "--threshold", threshold)
        pictures.append(titled(Image.open(part / "coffee_detections.jpg"), f"threshold {threshold}"))
    save(in_a_row(pictures), "thresholds.jpg")


def titled(picture: Image.Image, title: str) -> Image.Image:
    """A picture with a line of text above it."""
    page = Image.new("RGB", [picture.width, picture.height + 34], "white")
    page.paste(picture, [0, 34])
    ImageDraw.Draw(page).text([4, 6], title, fill="black", font=sans(20))
    return page


def draw_data(raccoon: pathlib.Path, folder: pathlib.Path) -> None:
    """Groundtruth, a batch, each augmentation, the statistics, and four resizers."""
    records = folder / "records"
    run("convert", "--from", "pascal_voc", "--to", "tfrecord", "--images", raccoon / "images",
        "--annotations", raccoon / "annotations", "--split", "train=0.8,val=0.2",
        "--output_dir", records)  # fmt: skip
    project = folder / "project"
    run("init", "--records", records, "--num_train_steps", 2000, "--output_dir", project)
    config = project / "pipeline.config"
    png = folder / "picture.png"
    run("show-data", config, "--eval", "--num_images", 8, "--seed", 3, "--output", png)
    save(Image.open(png), "groundtruth.jpg")
    run("show-data", config, "--num_images", 8, "--seed", 3, "--output", png)
    save(Image.open(png), "batch.jpg")
    for step in AUGMENTATIONS:
        run("show-data", config, "--augmentation", step, "--num_images", 1, "--columns", 3,
            "--seed", 5, "--output", png)  # fmt: skip
        save(Image.open(png), f"augmentation_{step.partition(':')[0]}.jpg", 900)
    run("check-data", config, "--output_dir", folder / "report")
    for chart in sorted((folder / "report").glob("*.png")):
        save(Image.open(chart), f"data_{chart.stem}.png")
    draw_resizers(config, png)


def draw_resizers(config: pathlib.Path, png: pathlib.Path) -> None:
    """What the network gets of one image."""
    resizers = {
        "fixed_shape_resizer": "height: 320 width: 320",
        "keep_aspect_ratio_resizer": "min_dimension: 320 max_dimension: 320 pad_to_max_dimension: true",
        "identity_resizer": "",
    }  # fmt: skip
    pictures = []
    for name, fields in resizers.items():
        override = f"model {{ ssd {{ image_resizer {{ {name} {{ {fields} }} }} }} }}"
        run("show-data", config, "--eval", "--num_images", 1, "--columns", 1, "--config_override",
            override, "--output", png)  # fmt: skip
        pictures.append(titled(Image.open(png), name))
    save(in_a_row(pictures, 420), "resizers.jpg")


def draw_ratios() -> None:
    """Step, start, memory and evaluation as parts of what the Object Detection API takes."""
    panel = charts.bar_chart(
        "SSD MobileNet v1: parts of what the Object Detection API takes",
        list(RATIOS),
        {"Object Detection API": [1.0] * len(RATIOS), "estimator-det": list(RATIOS.values())},
        width=2,
    )
    save(Image.open(io.BytesIO(charts.figure([panel], columns=2))), "ratios.png", 800)


def draw_run(trained: pathlib.Path) -> None:
    """Charts of an evaluation, and mistakes and misses on photographs."""
    from estimator_det.programs import report, report_pictures

    found = report._read_run(str(trained))
    details: Dict[str, Any] = found.details
    names: List[str] = [row.name for row in found.table.classes]
    for part, pictures in report_pictures.draw(found.config, found.reader, names, details).items():
        for number, data in enumerate(list(pictures)[:3]):
            print(part, number, type(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=pathlib.Path, help="folder of the four photographs")
    parser.add_argument("--detector", type=pathlib.Path, help="export that detects COCO's classes")
    parser.add_argument("--raccoon", type=pathlib.Path, help="folder with images and annotations")
    parser.add_argument("--run", type=pathlib.Path, help="folder of a run of raccoons")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        draw_ratios()
        if options.photos and options.detector:
            draw_detections(options.photos, options.detector, folder / "found")
        if options.raccoon:
            draw_data(options.raccoon, folder)
        if options.run:
            draw_run(options.run)


if __name__ == "__main__":
    np.random.seed(0)
    main()
