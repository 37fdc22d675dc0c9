"""Many records with every kind of damage: a check of data finds each, and nothing else."""

from __future__ import annotations

from typing import Dict, Set

import numpy as np
import pytest

from inputs.bad_records.policy import make_policy
from inputs.checks import scan
from inputs.datasets import shapes, writer
from tests.inputs.examples import reader
from tests.inputs.faults import CLEAN, DAMAGES, READER, file_bytes

NUM_FILES = 3


@pytest.mark.parametrize("num_records", [150, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_every_damage_is_found(tmp_path, num_records):
    """At least half of the records are damaged, each kind about equally often."""
    random = np.random.default_rng(num_records)
    damages = [*DAMAGES] * max(1, num_records // 2 // len(DAMAGES))
    names = np.array(damages + [""] * (num_records - len(damages)))
    names = names[random.permutation(len(names))].tolist()
    for number in range(NUM_FILES):
        (tmp_path / f"storm-{number}.record").write_bytes(file_bytes(names[number::NUM_FILES]))
    writer.write_label_map(dict(enumerate(shapes.CLASS_NAMES, 1)), str(tmp_path / "map.pbtxt"))
    options = reader(
        f'{READER} label_map_path: "{tmp_path}/map.pbtxt" '
        f'tf_record_input_reader {{ input_path: "{tmp_path}/storm-*" }}'
    )
    policy = make_policy(options, num_classes=len(shapes.CLASS_NAMES), max_boxes=8)
    (result,) = scan.run([scan.plan("train_input_reader", policy)])
    assert result.num_records == num_records
    reported: Dict[int, Set[str]] = {}
    for entry in result.entries:
        file = int(entry.file.rpartition("-")[2].partition(".")[0])
        reported.setdefault(entry.record * NUM_FILES + file, set()).add(entry.kind)
        assert entry.message and entry.remedy
    for position, name in enumerate(names):
        kinds = reported.get(position, set())
        damage = DAMAGES.get(name, CLEAN)
        assert kinds - {damage.follows} == {damage.fault} - {""}, (name, kinds)
