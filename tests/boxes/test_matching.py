import re

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.boxes.matching import (
    IGNORED,
    UNMATCHED,
    ArgMaxMatcher,
    BipartiteMatcher,
    make_matcher,
)
from estimator_det.compat import tf
from estimator_det.protos import matcher_pb2
from tests.conftest import golden_component
from tests.faults import faults

SETTINGS, ARRAYS = golden_component("matchers")
CASES = sorted(name for name in ARRAYS if name.count("__") == 2)


def run(matcher, similarity, valid=None, may_force_match=None):
    similarity = tf.constant(similarity, tf.float32)
    valid = tf.ones(similarity.shape[:2], tf.bool) if valid is None else tf.constant(valid)
    return matcher(similarity, valid, valid if may_force_match is None else may_force_match).numpy()


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    setting, matrix, which = case.split("__")
    is_bipartite = setting == "bipartite"
    matcher = BipartiteMatcher() if is_bipartite else ArgMaxMatcher(**SETTINGS[setting])
    similarity = ARRAYS[f"sim_{matrix}"]
    num_rows = len(similarity)
    may_force_match = np.arange(num_rows) < (num_rows if which == "all" else max(1, num_rows // 2))
    found = run(matcher, similarity[None], may_force_match=may_force_match[None])
    np.testing.assert_array_equal(found[0], ARRAYS[case])


@pytest.mark.parametrize("matcher", [ArgMaxMatcher(), BipartiteMatcher()])
def test_golden_no_rows(matcher):
    found = run(matcher, np.zeros([1, 0, 7]))
    np.testing.assert_array_equal(found[0], ARRAYS["argmax_emptyrows_0x7"])


def test_a_similarity_at_a_threshold_reaches_it():
    similarity = [[[0.5, 0.25, 0.24]]]
    assert run(ArgMaxMatcher(0.5), similarity).tolist() == [[0, UNMATCHED, UNMATCHED]]
    assert run(ArgMaxMatcher(0.5, 0.25), similarity).tolist() == [[0, IGNORED, UNMATCHED]]
    reverse = ArgMaxMatcher(0.5, 0.25, negatives_lower_than_unmatched=False)
    assert run(reverse, similarity).tolist() == [[0, UNMATCHED, IGNORED]]


def test_equal_similarities_below_zero_are_matched_in_order():
    assert run(BipartiteMatcher(), np.full([1, 2, 3], -4.0)).tolist() == [[0, 1, -1]]


ALL_KINDS = [
    ArgMaxMatcher(0.5),
    ArgMaxMatcher(0.7, 0.3, force_match_for_each_row=True),
    ArgMaxMatcher(0.7, 0.3, negatives_lower_than_unmatched=False),
    ArgMaxMatcher(None, force_match_for_each_row=True),
    BipartiteMatcher(),
]


@pytest.mark.parametrize("matcher", ALL_KINDS, ids=repr)
def test_padding_changes_nothing_and_images_do_not_meet(matcher):
    random = np.random.default_rng(3)
    counts = [4, 0, 6, 1]
    padded = np.full([4, 6, 9], 0.99, np.float32)  # padding more alike than anything
    valid = np.arange(6) < np.array(counts)[:, None]
    alone = []
    for image, count in enumerate(counts):
        similarity = random.random([count, 9], np.float32) * 0.95
        padded[image, :count] = similarity
        alone.append(run(matcher, similarity[None])[0])
    np.testing.assert_array_equal(run(matcher, padded, valid), alone)
    assert (alone[1] == UNMATCHED).all()


def make(text):
    return make_matcher(text_format.Parse(text, matcher_pb2.Matcher()))


def test_makers():
    assert make("argmax_matcher {}") == ArgMaxMatcher(0.5, 0.5)
    assert make("argmax_matcher { ignore_thresholds: true }") == ArgMaxMatcher(None, None)
    argmax = make(
        "argmax_matcher { matched_threshold: 0.75 unmatched_threshold: 0 "
        "force_match_for_each_row: true negatives_lower_than_unmatched: false "
        "use_matmul_gather: true }"
    )
    assert argmax == ArgMaxMatcher(0.75, 0.0, False, True, True)
    bipartite = make("bipartite_matcher { use_matmul_gather: true }")
    assert bipartite == BipartiteMatcher(use_matmul_gather=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("argmax_matcher { unmatched_threshold: 0.75 }", "unmatched_threshold: must not be above"),
        ("argmax_matcher { negatives_lower_than_unmatched: false }", "Lower unmatched_threshold"),
    ],
)
def test_contradictions_are_errors(text, message):
    assert re.search(message, faults(matcher_pb2.Matcher(), text))
