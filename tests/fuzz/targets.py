"""What is fed with damaged inputs: each target makes one input of a seed, and uses it."""

from __future__ import annotations

import os
import pathlib
from typing import Callable, Dict, List, NamedTuple

from estimator_det.compat import tf, tf1
from estimator_det.programs import console, demo
from exporters import image_files
from inputs.bad_records.policy import make_policy
from inputs.checks import scan
from inputs.label_map import read_label_map
from model_fn.checkpoints.repair import require_whole
from tests.fuzz.mutate import mutate_bytes, mutate_text
from tests.inputs import examples, faults
from tests.inputs.faults import frames_of, gzipped, picture_bytes

LABEL_MAP = """
item { id: 1 name: "/m/cat" display_name: "cat" keypoints { id: 0 label: "nose" } }
item { id: 2 name: "dog" ancestor_ids: 1 }
item { id: 4 name: "owl" descendant_ids: [1, 2] }
"""

Target = Callable[[int, pathlib.Path], None]


class Inputs(NamedTuple):
    """What is damaged."""

    examples: List[bytes]
    images: List[bytes]
    checkpoint: Dict[str, bytes]  # file name -> content


def make_inputs(checkpoint: str) -> Inputs:
    """Small ones; `checkpoint` is a prefix."""
    folder = pathlib.Path(checkpoint).parent
    return Inputs(
        [faults.clean_example(index, True).SerializeToString() for index in range(4)],
        [picture_bytes(kind, 40, 50) for kind in ("JPEG", "PNG", "GIF", "BMP")],
        {path.name: path.read_bytes() for path in folder.glob("model.ckpt*")},
    )


def save_checkpoint(prefix: str) -> None:
    """Some variables."""
    with tf.Graph().as_default(), tf1.Session() as session:
        for index, shape in enumerate(([3, 3, 8, 4], [4], [])):
            tf1.get_variable(f"layer/variable_{index}", shape)
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, prefix, write_meta_graph=False)


def make_targets(inputs: Inputs) -> Dict[str, Target]:
    """Targets by name; each raises what it cannot handle as an error of the user's input."""

    def records(seed: int, folder: pathlib.Path) -> None:
        """Damage to one record, to its frame or to a compressed file; all records are examined."""
        contents = list(inputs.examples)
        where = seed % 3
        if where == 0:
            contents[seed % 4] = mutate_bytes(contents[seed % 4], seed)
        data = b"".join(frames_of(contents))
        if where == 1:
            data = mutate_bytes(data, seed)
        if where == 2:
            data = mutate_bytes(gzipped(data), seed)
        path = folder / ("damaged.record.gz" if where == 2 else "damaged.record")
        path.write_bytes(data)
        reader = examples.reader(
            f'{faults.READER} tf_record_input_reader {{ input_path: "{path}" }}'
        )
        plan = scan.plan("train_input_reader", make_policy(reader, 4, faults.MAX_BOXES))
        (found,) = scan.run([plan])
        assert found.num_records > 0 or found.entries

    def images(seed: int, folder: pathlib.Path) -> None:
        path = folder / "damaged.jpg"
        path.write_bytes(mutate_bytes(inputs.images[seed % len(inputs.images)], seed))
        try:
            image_files.read_image(str(path))
        except OSError as error:
            assert str(path) in str(error), error

    def label_maps(seed: int, folder: pathlib.Path) -> None:
        read_label_map(damaged_text(LABEL_MAP, seed, folder))

    def configurations(seed: int, folder: pathlib.Path) -> None:
        path = damaged_text(demo.CONFIG_FILE.read_text(), seed, folder)
        console.check_config(console.load_config(path))

    def checkpoints(seed: int, folder: pathlib.Path) -> None:
        names = sorted(inputs.checkpoint)
        for index, name in enumerate(names):
            content = inputs.checkpoint[name]
            chosen = index == seed % len(names)
            (folder / name).write_bytes(mutate_bytes(content, seed) if chosen else content)
        prefix = os.path.join(folder, "model.ckpt")
        require_whole(prefix)
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)

    return {
        "records": records,
        "images": images,
        "label_maps": label_maps,
        "configurations": configurations,
        "checkpoints": checkpoints,
    }


def damaged_text(text: str, seed: int, folder: pathlib.Path) -> str:
    """Path of a file with damaged words, at times with damaged bytes as well."""
    path = folder / "damaged.txt"
    content = mutate_text(text, seed).encode()
    path.write_bytes(mutate_bytes(content, seed) if seed % 4 == 0 else content)
    return str(path)
