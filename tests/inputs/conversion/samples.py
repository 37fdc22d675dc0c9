"""The same small data set in every format: three images, three boxes.

`a.png` has a cat and a dog, `b.png` a dog, `c.png` nothing. `NEW_BOX` of the tests replaces the box
of the cat, which each format writes in its own way.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import tf
from inputs.conversion import engine
from inputs.datasets.source import SourceOptions
from tests.inputs import examples

HEIGHT, WIDTH = 20, 32
Box = Tuple[float, float, float, float]  # ymin, xmin, ymax, xmax in pixels
CAT: Box = (4.0, 8.0, 14.0, 24.0)
OBJECTS: Dict[str, List[Tuple[str, Box]]] = {
    "a": [("cat", CAT), ("dog", (0.0, 0.0, 20.0, 32.0))],
    "b": [("dog", (5.0, 4.0, 15.0, 12.0))],
    "c": [],
}


class Sample(NamedTuple):
    """A data set on disk."""

    format: str
    options: SourceOptions
    cat_file: str  # that has the box of the cat
    cat_line: int


def png(seed: int, height: int = HEIGHT, width: int = WIDTH, kind: str = "PNG") -> bytes:
    return examples.encoded(examples.picture(height, width, seed), kind)


def write_images(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(OBJECTS):
        (folder / f"{name}.png").write_bytes(png(seed))
    return folder


def coco(root: pathlib.Path, objects: Any) -> Sample:
    images, annotations = [], []
    ids = {"cat": 1, "dog": 2}
    for number, (name, found) in enumerate(objects.items()):
        images.append({"id": number, "file_name": f"{name}.png", "height": HEIGHT, "width": WIDTH})
        for kind, (ymin, xmin, ymax, xmax) in found:
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": number, "category_id": ids[kind],
                    "bbox": [xmin, ymin, xmax - xmin, ymax - ymin], "area": 100.0, "iscrowd": 0,
                }
            )  # fmt: skip
    path = root / "coco.json"
    rows = ",\n".join(json.dumps(annotation) for annotation in annotations)
    categories = json.dumps([{"id": number, "name": name} for name, number in ids.items()])
    path.write_text(
        f'{{"annotations": [\n{rows}], "images": {json.dumps(images)}, "categories": {categories}}}'
    )
    options = SourceOptions(str(root / "images"), str(path))
    return Sample("coco", options, str(path), 2)


def pascal_voc(root: pathlib.Path, objects: Any) -> Sample:
    folder = root / "voc"
    folder.mkdir()
    for name, found in objects.items():
        lines = [
            "<annotation>", f"<filename>{name}.png</filename>",
            f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>",
        ]  # fmt: skip
        for kind, (ymin, xmin, ymax, xmax) in found:
            lines.append(
                f"<object><name>{kind}</name><difficult>0</difficult><bndbox><xmin>{xmin}</xmin>"
                f"<ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"
            )
        (folder / f"{name}.xml").write_text("\n".join([*lines, "</annotation>"]))
    options = SourceOptions(str(root / "images"), str(folder))
    return Sample("pascal_voc", options, str(folder / "a.xml"), 4)


def kitti(root: pathlib.Path, objects: Any) -> Sample:
    folder = root / "label_2"
    folder.mkdir()
    for name, found in objects.items():
        lines = ["DontCare -1 -1 -10 1 1 5 5 -1 -1 -1 -1000 -1000 -1000 -10"]
        for kind, (ymin, xmin, ymax, xmax) in found:
            lines.append(f"{kind} 0.00 0 -1.57 {xmin} {ymin} {xmax} {ymax} 1 1 1 1 1 1 0.5")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    options = SourceOptions(str(root / "images"), str(folder))
    return Sample("kitti", options, str(folder / "a.txt"), 2)


def open_images(root: pathlib.Path, objects: Any) -> Sample:
    ids = {"cat": "/m/01yrx", "dog": "/m/0bt9lr"}
    lines = ["ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsGroupOf"]
    for name, found in objects.items():
        for kind, (ymin, xmin, ymax, xmax) in found:
            sides = f"{xmin / WIDTH},{xmax / WIDTH},{ymin / HEIGHT},{ymax / HEIGHT}"
            lines.append(f"{name},xclick,{ids[kind]},1,{sides},0,0")
    boxes = root / "boxes.csv"
    boxes.write_text("\n".join(lines) + "\n")
    (root / "labels.csv").write_text(
        "ImageID,Source,LabelName,Confidence\nc,verification,/m/01yrx,0\na,verification,/m/0bt9lr,1\n"
    )
    (root / "classes.csv").write_text("/m/01yrx,cat\n/m/0bt9lr,dog\n")
    options = SourceOptions(
        str(root / "images"), str(boxes), str(root / "classes.csv"), str(root / "labels.csv")
    )
    return Sample("open_images", options, str(boxes), 2)


def yolo(root: pathlib.Path, objects: Any) -> Sample:
    folder = root / "labels"
    folder.mkdir()
    for name, found in objects.items():
        lines = []
        for kind, (ymin, xmin, ymax, xmax) in found:
            centre = f"{(xmin + xmax) / 2 / WIDTH} {(ymin + ymax) / 2 / HEIGHT}"
            size = f"{(xmax - xmin) / WIDTH} {(ymax - ymin) / HEIGHT}"
            lines.append(f"{['cat', 'dog'].index(kind)} {centre} {size}")
        if lines:
            (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (root / "data.yaml").write_text("path: x\nnames:\n  0: cat\n  1: 'dog'\nnc: 2\n")
    options = SourceOptions(str(root / "images"), str(folder), str(root / "data.yaml"))
    return Sample("yolo", options, str(folder / "a.txt"), 1)


def labelme(root: pathlib.Path, objects: Any) -> Sample:
    for name, found in objects.items():
        rows = [
            {"label": kind, "shape_type": "rectangle", "points": [[xmax, ymax], [xmin, ymin]]}
            for kind, (ymin, xmin, ymax, xmax) in found
        ]
        shapes = ",\n".join(map(json.dumps, rows))
        (root / "images" / f"{name}.json").write_text(
            f'{{"imagePath": "{name}.png", "imageData": null, "imageHeight": {HEIGHT},\n'
            f'"imageWidth": {WIDTH}, "shapes": [\n{shapes}]}}'
        )
    folder = str(root / "images")
    return Sample("labelme", SourceOptions(folder, folder), str(root / "images" / "a.json"), 3)


def csv(root: pathlib.Path, objects: Any) -> Sample:
    lines = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
    for name, found in objects.items():
        for kind, (ymin, xmin, ymax, xmax) in found:
            lines.append(f"{name}.png,{WIDTH},{HEIGHT},{kind},{xmin},{ymin},{xmax},{ymax}")
        if not found:
            lines.append(f"{name}.png,{WIDTH},{HEIGHT},,,,,")
    path = root / "boxes.csv"
    path.write_text("\n".join(lines) + "\n")
    return Sample("csv", SourceOptions(str(root / "images"), str(path)), str(path), 2)


def detection_jsonl(root: pathlib.Path, objects: Any) -> Sample:
    lines = []
    ids = {"cat": 1, "dog": 2}
    for name, found in objects.items():
        detections = []
        for kind, (ymin, xmin, ymax, xmax) in found:
            sides = zip(("ymin", "ymax", "xmin", "xmax"), (ymin, ymax, xmin, xmax))
            box = {key: side / (HEIGHT if "y" in key else WIDTH) for key, side in sides}
            row = {"class_id": ids[kind], "name": kind, "score": 0.75, "box": box}
            detections.append(row)
        line = {"file": f"{name}.png", "height": HEIGHT, "width": WIDTH, "detections": detections}
        lines.append(json.dumps(line))
    path = root / "detections.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return Sample("detection_jsonl", SourceOptions(str(root / "images"), str(path)), str(path), 1)


# Every format has its sample here: the tests of the registry run on them.
SAMPLES: Dict[str, Callable[[pathlib.Path, Any], Sample]] = {
    sample.__name__: sample
    for sample in (coco, csv, detection_jsonl, kitti, labelme, open_images, pascal_voc, yolo)
}


def make(root: pathlib.Path, name: str, cat: Sequence[float] = CAT) -> Sample:
    write_images(root / "images")
    objects = {**OBJECTS, "a": [("cat", tuple(cat)), *OBJECTS["a"][1:]]}
    return SAMPLES[name](root, objects)


def convert(sample: Sample, output: pathlib.Path, **options: Any) -> engine.Conversion:
    jobs = options.pop("jobs", 1)
    run = options.pop("run", None)
    given = engine.ConvertOptions(sample.format, sample.options, str(output), **options)
    return engine.convert(given, jobs=jobs, run=run)


def records(output: pathlib.Path, split: str = "train") -> Dict[str, Dict[str, List[Any]]]:
    """Name of the image without suffix -> key -> values."""
    found = {}
    for path in sorted(output.glob(f"{split}.record-*")):
        for record in tf.data.TFRecordDataset(str(path)):
            features = tf.train.Example.FromString(record.numpy()).features.feature
            values = {
                key: list(getattr(feature, feature.WhichOneof("kind")).value)
                for key, feature in features.items()
                if feature.WhichOneof("kind")
            }
            name = values["image/filename"][0].decode()
            found[name.rpartition(".")[0]] = values
    return found


def boxes_of(values: Dict[str, List[Any]]) -> List[Tuple[str, Box]]:
    """Names and boxes in pixels, rounded to 1e-4."""
    sides = [values[f"image/object/bbox/{side}"] for side in ("ymin", "xmin", "ymax", "xmax")]
    scale = (HEIGHT, WIDTH, HEIGHT, WIDTH)
    names = [name.decode() for name in values.get("image/object/class/text", [])]
    boxes = [tuple(round(x * s, 4) for x, s in zip(box, scale)) for box in zip(*sides)]
    return list(zip(names, boxes))  # type: ignore[arg-type]


def faults(output: pathlib.Path) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in (output / "faults.jsonl").read_text().splitlines()]
