from __future__ import annotations

import numpy as np
import pytest

from estimator_det.boxes.assign import count_assignment
from estimator_det.boxes.matching import IGNORED, UNMATCHED
from estimator_det.compat import tf, tf1
from tests.detectors import configs


def test_counts_by_hand() -> None:
    matches = tf.constant(
        [[0, 0, 2, UNMATCHED, IGNORED, UNMATCHED], [1, UNMATCHED, UNMATCHED, IGNORED, 1, 1]]
    )
    valid = tf.constant([[True, True, True], [True, True, False]])
    counts = count_assignment(matches, valid)
    # Boxes 3 and 2; rows 0 and 2, row 1; anchors 3 and 3, 2 and 2, 1 and 1.
    assert [float(count) for count in counts.values()] == [2.5, 1.5, 3.0, 2.0, 1.0]


@pytest.mark.parametrize("mined", [True, False])
def test_a_loss_returns_its_counts(mined: bool) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        detector = configs.small_detector("loss { hard_example_miner {} }" if mined else "")
        inputs, shapes = detector.preprocess(tf.zeros([2, 64, 64, 3]))
        predictions = detector.predict(inputs, shapes)
        counts = detector.loss(predictions, configs.groundtruth(padding=3)).counts
        session.run(tf1.global_variables_initializer())
        values = session.run(counts)
        num_anchors = predictions.anchors.shape[0]
    anchors = [
        values[f"TargetAssignment/AvgNum{kind}AnchorsPerImage"]
        for kind in ("Positive", "Negative", "Ignored")
    ]
    np.testing.assert_allclose(sum(anchors), num_anchors)
    assert anchors[0] >= 2  # each box forces a match
    assert values["TargetAssignment/AvgNumGroundtruthBoxesPerImage"] == 2
    assert values["TargetAssignment/AvgNumGroundtruthBoxesMatchedPerImage"] == 2
    assert ("HardExampleMiner/num_positives" in values) == mined
