"""Images of several records: which records, in which order, until which step."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs import schema
from inputs.bad_records.log import FaultLog
from inputs.examples import with_partners
from inputs.records.cursor import DataCursor
from tests.inputs.examples import BOXES, encoded, example, picture, write
from tests.inputs.reading import entries_of, train_fn
from tests.inputs.records.test_cursor import LABELS, files, read, reading

IN_ORDER = "train_input_reader { shuffle: false num_readers: 1 read_block_length: 1 }"


def mixing(*steps: str) -> str:
    return " ".join(f"train_config {{ data_augmentation_options {{ {one} }} }}" for one in steps)


def batches_of(config: Any, count: int, log: Any = None, **options: Any) -> List[Tuple[Any, Any]]:
    dataset = train_fn(config, 1, log, **options)()
    return list(dataset.take(count).as_numpy_iterator())


def sources(batches: List[Tuple[Any, Any]]) -> List[List[int]]:
    """For each image the numbers of its record and of the others in it."""
    found = []
    for features, _ in batches:
        records = np.concatenate(
            [features[schema.RECORD][:, np.newaxis], features[schema.PARTNER_RECORDS]], axis=1
        )
        found += records[..., 1].tolist()
    return found


def partners(num_elements: int, count: int, distance: int) -> List[List[int]]:
    dataset = with_partners(tf.data.Dataset.range(num_elements), count, distance, tf.stack, 2)
    return [found.tolist() for found in dataset.as_numpy_iterator()]


def test_partners_follow_at_a_distance():
    """Each element comes first once; at the end those that are left come again."""
    assert partners(5, 2, 1) == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 4]]
    assert partners(5, 4, 2) == [
        [0, 2, 4, 0], [1, 3, 1, 3], [2, 4, 2, 4], [3, 3, 3, 3], [4, 4, 4, 4]
    ]  # fmt: skip
    assert partners(1, 4, 3) == [[0] * 4]
    assert partners(40, 4, 5)[11] == [11, 16, 21, 26]


def test_bad_records_are_no_partners(tmp_path):
    """Mixtures have one box too many, which no record is to blame for: it is dropped and counted.

    Though the policy rejects it: a record that alone has too many stops the run.
    """
    good = {**BOXES, **LABELS}
    records = [
        example({**good, "image/source_id": "0"}),
        example({**good, "image/encoded": b"rubbish"}),
        example({**good, "image/source_id": "2"}),
        example({**good, "image/source_id": "3"}),
    ]
    text = "train_input_reader { bad_records { policy: SKIP exception { kind: 'too_many_boxes' "
    text += "policy: FAIL } } }" + IN_ORDER + mixing("mixup {}")
    config = reading([write(tmp_path / "r", records)], text)
    log = FaultLog(str(tmp_path / "log"))
    batches = batches_of(config, 3, log)
    assert sources(batches) == [[0, 3], [2, 0], [3, 2]] * 2
    assert [labels[schema.NUM_BOXES].tolist() for _, labels in batches] == [[3, 3]] * 3
    assert log.counts()["skipped_records"] == 1
    counted = [one for one in entries_of(log) if one["action"] == "clip"]
    assert [(one["kind"], one["source_id"]) for one in counted] == [
        ("too_many_boxes", number) for number in "023"
    ]
    assert all("max_number_of_boxes: 1, dropped" in one["message"] for one in counted)


def test_a_resumed_run_mixes_the_same_records(tmp_path):
    """Shuffled, with bad records, two mixtures, and one of them ends at step 6."""
    text = "train_input_reader { bad_records { policy: SKIP } }"
    text += mixing("mixup { stop_at_step: 6 }", "random_horizontal_flip {}", "mixup {}")
    config = reading(files(tmp_path, 7, 6, bad=(2, 3, 9)), text)
    states: List[DataCursor] = []
    expected = read(config, DataCursor(), 8, seed=5, states=states)
    found = read(config, states[2], 5, seed=5, first_step=3)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected[3:])
    # The first mixture's partners come first and last; the latter is one of a later image.
    used = np.array([one[schema.PARTNER_RECORDS][..., 1] >= 0 for one, _ in expected])
    assert used[:6, :, 0].all() and not used[6:, :, [0, 2]].any()
    assert used[:5, :, 2].all() and used[..., 1].all()


def test_the_host_of_a_tpu_gives_the_same_batches(tmp_path):
    """A step uses two batches of one, as on two cores.

    One record has scores with a background column, one has none: its classes.
    """
    scores = {"image/object/class/multiclass_scores": [0.5, 0.1, 0.2, 0.3, 0.4] * 2}
    records = [example({**BOXES, **LABELS, **scores}), example({**BOXES, **LABELS})]
    text = "train_input_reader { load_multiclass_scores: true max_number_of_boxes: 4 }"
    text += "train_config { use_multiclass_scores: true batch_size: 1 }"
    text += mixing("mixup { stop_at_step: 7 }")
    config = reading([write(tmp_path / "r", records)], IN_ORDER + text)
    here, there = (
        batches_of(config, 6, runs_elsewhere=flag, first_step=5, images_per_step=2)
        for flag in (False, True)
    )
    tf.nest.map_structure(np.testing.assert_array_equal, here, there)
    assert sources(here) == [[0, 1], [1, 0]] * 2 + [[0, -1], [1, -1]]
    given, one_hot = [0.1, 0.2, 0.3, 0.4], [[0, 1, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(here[0][1][schema.CLASSES][0], [given, given, *one_hot])


def test_waiting_records_are_not_missed(tmp_path):
    """Samples wait for a batch of 60, and for partners; none must count as failed."""
    records = [example({**BOXES, **LABELS, "image/encoded": encoded(picture(4, 4))})] * 3
    text = "train_config { batch_size: 60 }" + mixing("mixup {}")
    config = reading([write(tmp_path / "r", records)], IN_ORDER + text)
    log = FaultLog()
    assert len(batches_of(config, 3, log)) == 3
    assert set(log.counts()) <= {"too_many_boxes"} and not log.stop_reason
