"""A data set of shapes with damage of every kind in some records, and the faults to expect."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from inputs.datasets import shapes, writer
from tests.inputs.examples import pipeline
from tests.inputs.faults import CLEAN, DAMAGES, MAX_BOXES, frames_of
from tests.inputs.faults import OPTIONS as SMALL

NUM_FILES = 6


class Storm(NamedTuple):
    """The files, and the damage of each damaged record."""

    config: Any
    paths: List[str]
    damaged: Dict[Tuple[int, int], str]  # (file, record) -> kind
    names: Dict[Tuple[int, int], str]  # (file, record) -> source id, of damaged ones as well


CHANGES = {
    "missing_key": "no image",
    "length_mismatch": "one xmax too many",
    "undecodable_image": "text as image",
    "truncated_image": "half a jpeg",
    "huge_image": "png bomb",
    "size_mismatch": "wrong height",
    "box_nan": "nan",
    "box_inverted": "x inverted",
    "box_degenerate": "no height",
    "box_outside": "right of the image",
    "unknown_text": "unknown name",
    "unknown_id": "large id",
    "label_contradiction": "name and id differ",
    "too_many_boxes": "too many boxes",
    "unparsable": "labels as floats",
    "rubbish": "rubbish",
    "bad_data": "changed data",
    "bad_length": "changed length",
}  # kind of damage -> its key in DAMAGES


def make_storm(folder: pathlib.Path, of_each_kind: int) -> Storm:
    """Writes the files: some records of each kind of damage, and one file without any bytes."""
    per_file = 2 + 16 * of_each_kind
    random = np.random.default_rng(11)
    places = [(file, record) for file in range(NUM_FILES) for record in range(per_file - 1)]
    chosen = [places[i] for i in random.permutation(len(places))]
    damaged = {chosen.pop(): kind for kind in CHANGES for _ in range(of_each_kind)}
    damaged[(2, per_file - 1)] = "cut_file"
    frames: List[List[bytes]] = [[] for _ in range(NUM_FILES)]
    names = {}
    for file in range(NUM_FILES):
        for record in range(per_file):
            image = shapes.make_image((5, file * per_file + record), SMALL)
            texts = [shapes.CLASS_NAMES[i - 1] for i in image.class_ids]
            example = writer.make_example(
                writer.encode_image(image.pixels),
                writer.Annotations(image.boxes, image.class_ids, texts),
                filename=f"shape_{file}_{record}.jpg",
            )
            names[file, record] = f"shape_{file}_{record}.jpg"
            kind = damaged.get((file, record), "")
            damage = DAMAGES[CHANGES[kind]] if kind in CHANGES else CLEAN
            damage.features(example.features.feature)
            (frame,) = frames_of([damage.record(example.SerializeToString())])
            frame = damage.frame(frame)
            if kind == "cut_file":
                frame = frame[: len(frame) - 30]
            frames[file].append(frame)
    paths = [str(folder / f"storm-{file}.record") for file in range(NUM_FILES)]
    for path, parts in zip(paths, frames):
        pathlib.Path(path).write_bytes(b"".join(parts))
    (folder / "storm-9.record").write_bytes(b"")
    writer.write_label_map(dict(enumerate(shapes.CLASS_NAMES, 1)), str(folder / "map.pbtxt"))
    reported = {"rubbish": "unparsable"}
    framing = dict.fromkeys(("bad_data", "bad_length", "cut_file"), "damaged_record")
    reported.update(framing)
    damaged = {place: reported.get(kind, kind) for place, kind in damaged.items()}
    return Storm(_config(folder), paths, damaged, names)


def _config(folder: pathlib.Path) -> Any:
    config = pipeline("train_config { batch_size: 7 }")
    for reader in (config.train_input_reader, config.eval_input_reader[0]):
        reader.label_map_path = str(folder / "map.pbtxt")
        reader.max_number_of_boxes = MAX_BOXES
        reader.num_epochs = 1
        reader.drop_remainder = False
        reader.include_source_id = True
        reader.tf_record_input_reader.input_path.append(str(folder / "storm-*.record"))
    return config
