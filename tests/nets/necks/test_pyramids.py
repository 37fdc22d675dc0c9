from __future__ import annotations

import pytest

from estimator_det.compat import tf
from estimator_det.nets.necks.pyramids import FeatureMap, extended_maps
from tests.graphs import shapes


def test_least_depth_holds_for_both_convolutions_of_an_extra_layer():
    with tf.Graph().as_default():
        end_points = {"last": tf.zeros([1, 4, 4, 3])}
        rows = [FeatureMap("last"), FeatureMap(depth=24), FeatureMap(depth=64)]
        maps = extended_maps(end_points, rows, lambda depth: max(int(depth), 16))
        assert [features.shape.as_list()[1:] for features in maps[1:]] == [[2, 2, 24], [1, 1, 64]]
        assert shapes("weights") == {
            "last_1_Conv2d_1_1x1_16/weights": [1, 1, 3, 16],
            "last_2_Conv2d_1_3x3_s2_24/weights": [3, 3, 16, 24],
            "last_1_Conv2d_2_1x1_32/weights": [1, 1, 24, 32],
            "last_2_Conv2d_2_3x3_s2_64/weights": [3, 3, 32, 64],
        }


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (FeatureMap("lat"), r"no activation 'lat'.*'early', 'late'"),
        (FeatureMap(depth=4), "feature map 0 must be an activation"),
    ],
)
def test_the_first_map_is_an_activation(first, message):
    with pytest.raises(ValueError, match=message):
        extended_maps(dict.fromkeys(("early", "late"), tf.zeros([1, 5, 5, 8])), [first], int)
