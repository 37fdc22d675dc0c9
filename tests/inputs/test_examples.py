"""Images of several records: which records, in which order, until which step."""

from __future__ import annotations

import pathlib
from typing import Any, List, Tuple

import numpy as np
import pytest

import inputs
from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from estimator_det.images.resize import make_resizer
from inputs import schema
from inputs.bad_records.log import FaultLog
from inputs.checks import guard
from inputs.records.cursor import DataCursor
from tests.inputs.examples import BOXES, encoded, example, picture, write
from tests.inputs.records.test_cursor import LABELS, files, read, reading, resume

IN_ORDER = "train_input_reader { shuffle: false num_readers: 1 read_block_length: 1 }"


def mixing(*steps: str) -> str:
    return " ".join(f"train_config {{ data_augmentation_options {{ {one} }} }}" for one in steps)


def batches_of(config: Any, count: int, log: Any = None, **options: Any) -> List[Tuple[Any, Any]]:
    preprocess = make_resizer(config.model.ssd.image_resizer).resize
    dataset = inputs.create_train_input_fn(config, preprocess, 1, log, **options)()
    return list(dataset.take(count).as_numpy_iterator())


def sources(batches: List[Tuple[Any, Any]]) -> List[List[int]]:
    """For each image the numbers of its record and of the others in it."""
    found = []
    for features, _ in batches:
        records = np.concatenate(
            [features[schema.RECORD][:, np.newaxis], features[schema.PARTNER_RECORDS]], axis=1
        )
        assert set(np.unique(records[..., 0])) <= {0, -1}
        found += records[..., 1].tolist()
    return found


def test_partners_follow_one_batch_apart(tmp_path: pathlib.Path) -> None:
    """Of nine records in batches of two: every record once an epoch, and four in each image."""
    config = reading(files(tmp_path, 9), IN_ORDER + mixing("mosaic {}"))
    batches = batches_of(config, 6)
    assert sources(batches) == [[(k + 2 * part) % 9 for part in range(4)] for k in range(12)]
    for _, labels in batches:
        assert labels[schema.BOXES].shape == (2, 3, 4)
        assert (labels[schema.NUM_BOXES] <= 3).all()


def test_the_last_records_are_mixed_with_what_is_left(tmp_path: pathlib.Path) -> None:
    once = "train_input_reader { num_epochs: 1 drop_remainder: false }"
    config = reading(files(tmp_path, 5), IN_ORDER + once + mixing("mosaic {}"))
    expected = [[0, 2, 4, 0], [1, 3, 1, 3], [2, 4, 2, 4], [3, 3, 3, 3], [4, 4, 4, 4]]
    assert sources(batches_of(config, 9)) == expected


def test_one_record_is_mixed_with_itself(tmp_path: pathlib.Path) -> None:
    config = reading(files(tmp_path, 1), mixing("mosaic {}", "mixup {}"))
    assert sources(batches_of(config, 2)) == [[0] * 8] * 4


def test_bad_records_are_no_partners(tmp_path: pathlib.Path) -> None:
    skip = "train_input_reader { bad_records { policy: SKIP } }"
    config = reading(files(tmp_path, 6, bad=(1, 4)), IN_ORDER + skip + mixing("mixup {}"))
    log = FaultLog()
    good = [0, 2, 3, 5]
    expected = [[good[k % 4], good[(k + 2) % 4]] for k in range(8)]
    assert sources(batches_of(config, 4, log)) == expected
    assert log.num_skipped == 2


@pytest.mark.parametrize("counts", [(3, 5), pytest.param((1, 1, 6), marks=pytest.mark.exhaustive)])
def test_a_resumed_run_mixes_the_same_records(
    tmp_path: pathlib.Path, counts: Tuple[int, ...]
) -> None:
    """Shuffled, with bad records, two mixtures, and one of them ends at step 6."""
    text = "train_input_reader { bad_records { policy: SKIP } }"
    text += mixing("mosaic { stop_at_step: 6 }", "random_adjust_hue {}", "mixup {}")
    config = reading(files(tmp_path, 7, 6, bad=(2, 3, 9)), text)
    expected = read(config, DataCursor(), 8, seed=5)
    cursor, found = DataCursor(), []
    for count in counts:
        found += read(config, cursor, count, seed=5, first_step=len(found))
        cursor = resume(cursor)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    # Of the eight sources four are the first mosaic's; the mean of two images goes on.
    used = np.array([one[schema.PARTNER_RECORDS][..., 1] >= 0 for one, _ in found])
    assert used[:6, :, :4].all() and not used[6:, :, :3].any() and used[:, :, 3].all()


@pytest.mark.parametrize(
    ("first_step", "images_per_step", "expected"),
    [(1, None, 2), (2, 6, 3)],
)
def test_a_mixture_stops_at_its_step(
    tmp_path: pathlib.Path, first_step: int, images_per_step: Any, expected: int
) -> None:
    """How many batches of two are mixed before step 3, if each step uses that many images."""
    config = reading(files(tmp_path, 3), IN_ORDER + mixing("mixup { stop_at_step: 3 }"))
    batches = batches_of(config, 5, first_step=first_step, images_per_step=images_per_step)
    mixed = [(one[schema.PARTNER_RECORDS] >= 0).all((1, 2)).tolist() for one, _ in batches]
    assert mixed == [[True, True]] * expected + [[False, False]] * (5 - expected)
    # Images of one record are those without the step.
    plain = batches_of(reading(files(tmp_path, 3), IN_ORDER), 5)
    for (found, labels), (features, others) in list(zip(batches, plain))[expected:]:
        assert found[schema.RECORD].tolist() == features[schema.RECORD].tolist()
        assert labels[schema.NUM_BOXES].tolist() == others[schema.NUM_BOXES].tolist() == [2, 2]


def test_a_step_that_is_not_known_is_refused(tmp_path: pathlib.Path) -> None:
    config = reading(files(tmp_path, 1), mixing("mixup { stop_at_step: 3 }"))
    with pytest.raises(ConfigError, match=r"\[1\].mixup.stop_at_step: the workers of a cluster"):
        batches_of(config, 1, first_step=None)


def test_the_host_of_a_tpu_gives_the_same_batches(tmp_path: pathlib.Path) -> None:
    config = reading(files(tmp_path, 5), mixing("mosaic {}", "mixup { stop_at_step: 2 }"))
    here, there = (batches_of(config, 3, runs_elsewhere=flag) for flag in (False, True))
    tf.nest.map_structure(np.testing.assert_array_equal, here, there)


def test_boxes_beyond_the_maximum_are_counted(tmp_path: pathlib.Path) -> None:
    """Two records of two boxes have one too many for three; not a record's fault, so it is kept."""
    for policy in ("REFERENCE", "FAIL"):
        log = FaultLog()
        text = f"train_input_reader {{ bad_records {{ policy: {policy} }} }} {IN_ORDER}"
        config = reading(files(tmp_path, 3), text + mixing("mixup {}"))
        batches = batches_of(config, 2, log)
        assert [labels[schema.NUM_BOXES].tolist() for _, labels in batches] == [[3, 3]] * 2
        assert log.counts() == {"too_many_boxes": 3}  # of each record once
        assert {entry.action for entry in log.entries} == {"clip"}
        assert "max_number_of_boxes: 1, dropped" in log.entries[0].message


def test_a_record_with_too_many_boxes_is_still_rejected(tmp_path: pathlib.Path) -> None:
    many = {key: values * 2 for key, values in {**BOXES, **LABELS}.items()}
    records = [example({**many, "image/source_id": "many"}), example({**BOXES, **LABELS})]
    config = reading([write(tmp_path / "r", records)], IN_ORDER + mixing("mixup {}"))
    config.train_input_reader.bad_records.policy = 2  # SKIP
    log = FaultLog()
    assert sources(batches_of(config, 2, log)) == [[1, 1]] * 4
    assert [(one.kind, one.source_id, one.action) for one in log.entries if one.action == "skip"]
    assert log.num_skipped == 1


def test_scores_of_all_classes_are_mixed(tmp_path: pathlib.Path) -> None:
    """Of a record with a background column, and of one without any: its classes."""
    scores = {"image/object/class/multiclass_scores": [0.5, 0.1, 0.2, 0.3, 0.4] * 2}
    records = [example({**BOXES, **LABELS, **scores}), example({**BOXES, **LABELS})]
    text = "train_input_reader { load_multiclass_scores: true max_number_of_boxes: 4 }"
    text += "train_config { use_multiclass_scores: true batch_size: 1 }"
    config = reading([write(tmp_path / "r", records)], IN_ORDER + text + mixing("mixup {}"))
    ((_, labels),) = batches_of(config, 1)
    given, one_hot = [0.1, 0.2, 0.3, 0.4], [[0, 1, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(labels[schema.CLASSES][0], [given, given, *one_hot])


def test_waiting_records_are_not_missed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """56 decoded samples wait; none of them must count as one that failed."""
    monkeypatch.setattr(guard, "MAX_PENDING", 30)
    text = "train_config { batch_size: 8 }" + mixing("mosaic {}", "mixup {}")
    records = [example({**BOXES, **LABELS, "image/encoded": encoded(picture(4, 4))})] * 3
    config = reading([write(tmp_path / "r", records)], IN_ORDER + text)
    log = FaultLog()
    assert len(batches_of(config, 3, log)) == 3
    assert set(log.counts()) <= {"too_many_boxes"} and not log.stop_reason
