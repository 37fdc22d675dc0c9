"""Many records with every kind of damage: a check of data finds each, and nothing else."""

from __future__ import annotations

import pathlib
from typing import Dict, List, NamedTuple, Set, Tuple

import numpy as np
import pytest

from inputs.bad_records.policy import make_policy
from inputs.checks import scan
from inputs.datasets import shapes, writer
from tests.inputs.examples import reader
from tests.inputs.faults import DAMAGES, READER, file_bytes

NUM_FILES = 3


class Counts(NamedTuple):
    """Records whose fault was found or missed, and reports of anything else."""

    found: int
    missed: List[str]
    false_alarms: List[str]


def storm(folder: pathlib.Path, num_records: int) -> Counts:
    """At least half of the records are damaged, each kind about equally often."""
    random = np.random.default_rng(num_records)
    damages = [*DAMAGES] * max(1, num_records // 2 // len(DAMAGES))
    names = np.array(damages + [""] * (num_records - len(damages)))
    names = names[random.permutation(len(names))].tolist()
    expected: Dict[Tuple[str, int], str] = {}
    for number in range(NUM_FILES):
        part = names[number::NUM_FILES]
        path = folder / f"storm-{number}.record"
        path.write_bytes(file_bytes(part))
        expected.update({(str(path), i): name for i, name in enumerate(part) if name})
    writer.write_label_map(dict(enumerate(shapes.CLASS_NAMES, 1)), str(folder / "map.pbtxt"))
    options = reader(
        f'{READER} label_map_path: "{folder}/map.pbtxt" '
        f'tf_record_input_reader {{ input_path: "{folder}/storm-*" }}'
    )
    policy = make_policy(options, num_classes=len(shapes.CLASS_NAMES), max_boxes=8)
    (result,) = scan.run([scan.plan("train_input_reader", policy)])
    assert result.num_records == num_records
    reported: Dict[Tuple[str, int], Set[str]] = {}
    for entry in result.entries:
        reported.setdefault((entry.file, entry.record), set()).add(entry.kind)
    missed = [
        name
        for key, name in expected.items()
        if DAMAGES[name].fault not in reported.get(key, set())
    ]
    false_alarms = [
        f"{kind} for {expected.get(key, 'a clean record')!r}"
        for key, kinds in reported.items()
        for kind in kinds
        if key not in expected or kind not in _expected_kinds(expected[key])
    ]
    return Counts(len(expected) - len(missed), missed, false_alarms)


def _expected_kinds(name: str) -> Tuple[str, str]:
    return DAMAGES[name].fault, DAMAGES[name].follows


@pytest.mark.parametrize("num_records", [150, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_every_damage_is_found(tmp_path: pathlib.Path, num_records: int) -> None:
    assert len(DAMAGES) >= 40
    counts = storm(tmp_path, num_records)
    print(f"found {counts.found}, missed {counts.missed}, false alarms {counts.false_alarms}")
    assert (counts.missed, counts.false_alarms) == ([], [])
    assert counts.found >= len(DAMAGES)
