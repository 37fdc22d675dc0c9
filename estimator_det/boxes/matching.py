"""Matchers: they choose the groundtruth row, if any, of each anchor."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator, Optional, Protocol, Tuple

from estimator_det.boxes.geometry import sizes
from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import Tpu, rules
from estimator_det.errors import Problem, error
from estimator_det.protos import argmax_matcher_pb2, bipartite_matcher_pb2, matcher_pb2

UNMATCHED = -1  # the anchor is background
IGNORED = -2  # the anchor is not part of any loss


class Matcher(Protocol):
    """Matches anchors to groundtruth rows, for a whole batch at once."""

    @property
    def use_matmul_gather(self) -> bool:
        """True if rows should be fetched with a one-hot product, not a gather (for TPU)."""

    def __call__(
        self, similarity: tf.Tensor, valid: tf.Tensor, may_force_match: tf.Tensor
    ) -> tf.Tensor:
        """Matches similarity [B, G, A], valid bool [B, G] -> int32 [B, A].

        The result is the matched row, `UNMATCHED` or `IGNORED`. Padding rows, which are not valid,
        are never matched. `may_force_match`, bool [B, G], are the rows that may have a forced or
        bipartite match.
        """


MATCHERS: Registry[Callable[[Any], Matcher]] = Registry(
    "matcher",
    tpu="use argmax_matcher with use_matmul_gather: true",
    chosen_by="Matcher.matcher_oneof",
)


@dataclasses.dataclass(frozen=True)
class ArgMaxMatcher:
    """Matches each anchor with the row most similar to it, the first of equals, if similar enough.

    Below `unmatched_threshold` an anchor is unmatched, from there to `matched_threshold` ignored
    (the two are exchanged unless `negatives_lower_than_unmatched`). If `force_match_for_each_row`,
    every row that may force a match then gets the anchor most similar to it, however weak; if
    several rows want the same anchor, the first row gets it. In an image without valid rows all
    anchors are unmatched.
    """

    # Lowest similarity of a match; None matches every anchor.
    matched_threshold: Optional[float] = 0.5
    unmatched_threshold: Optional[float] = None  # None for the value of `matched_threshold`
    negatives_lower_than_unmatched: bool = True  # True if the lowest similarities are the negatives
    force_match_for_each_row: bool = False  # True to force a match for each row
    use_matmul_gather: bool = False  # see `Matcher`

    def __call__(
        self, similarity: tf.Tensor, valid: tf.Tensor, may_force_match: tf.Tensor
    ) -> tf.Tensor:
        masked = tf.where(tf.expand_dims(valid, -1), similarity, similarity.dtype.min)
        if not masked.shape[1]:  # 0, or known only at run time: argmax needs a row
            masked = tf.pad(masked, [[0, 0], [0, 1], [0, 0]], constant_values=similarity.dtype.min)
        matches = self._by_threshold(masked)
        if self.force_match_for_each_row:
            forced_matches = _forced_matches(similarity, tf.logical_and(valid, may_force_match))
            matches = tf.where(forced_matches >= 0, forced_matches, matches)
        return tf.stop_gradient(matches)

    def _by_threshold(self, similarity: tf.Tensor) -> tf.Tensor:
        """Matches by masked similarities [B, G, A] alone: int32 [B, A]."""
        best = tf.reduce_max(similarity, axis=1)
        rows = tf.argmax(similarity, axis=1, output_type=tf.int32)
        no_rows = tf.equal(best, similarity.dtype.min)
        if self.matched_threshold is None:
            return tf.where(no_rows, UNMATCHED, rows)
        low, high = self.unmatched_threshold, self.matched_threshold
        if low is None or low == high:
            return tf.where(best < high, UNMATCHED, rows)
        if self.negatives_lower_than_unmatched:
            weak = tf.where(best < low, UNMATCHED, IGNORED)
        else:
            ignored = tf.logical_and(best < low, tf.logical_not(no_rows))
            weak = tf.where(ignored, IGNORED, UNMATCHED)
        return tf.where(best < high, weak, rows)


def _forced_matches(similarity: tf.Tensor, may_force_match: tf.Tensor) -> tf.Tensor:
    """First row whose most similar anchor this is: [B, G, A], [B, G] -> int32 [B, A], or -1."""
    batch, num_rows, num_anchors = sizes(similarity)
    favourite = tf.argmax(similarity, axis=2, output_type=tf.int32)
    # One segment per anchor of the whole batch, so that one op finds the first row of each.
    flat = favourite + tf.expand_dims(tf.range(batch) * num_anchors, -1)
    segments = tf.where(may_force_match, flat, -1)  # negative segments are dropped
    rows = tf.broadcast_to(tf.range(num_rows), [batch, num_rows])
    first = tf.math.unsorted_segment_min(rows, segments, batch * num_anchors)
    first = tf.where(first < num_rows, first, -1)  # segments without rows hold the highest int32
    return tf.reshape(first, [batch, num_anchors])


@dataclasses.dataclass(frozen=True)
class BipartiteMatcher:
    """Greedy one-to-one matching: the most similar pair first, then the best of the remaining ones.

    Among equally similar pairs the lower row comes first, then the lower anchor. The matching ends
    when every row that may force a match has an anchor, or every anchor a row; all other anchors
    are unmatched.

    The Object Detection API matches as many *leading* rows as may force a match; here the rows
    themselves are matched, which differs only if padding or rows of weight 0 precede others.
    """

    use_matmul_gather: bool = False  # see `Matcher`

    def __call__(
        self, similarity: tf.Tensor, valid: tf.Tensor, may_force_match: tf.Tensor
    ) -> tf.Tensor:
        may_force_match = tf.logical_and(valid, may_force_match)
        lowest = similarity.dtype.min
        remaining = tf.where(tf.expand_dims(may_force_match, -1), similarity, lowest)
        # A last row that is never matched keeps argmax defined when G is 0.
        remaining = tf.pad(remaining, [[0, 0], [0, 1], [0, 0]], constant_values=lowest)
        matches_shape = [remaining.shape[0], remaining.shape[2]]
        remaining_shape = remaining.shape
        batch, num_rows, num_anchors = tf.unstack(tf.shape(remaining), num=3)
        claims = tf.reduce_sum(tf.cast(may_force_match, tf.int32), axis=1)
        # Padded, because reduce_max of no rows is the lowest int32.
        rounds = tf.minimum(tf.reduce_max(tf.pad(claims, [[0, 1]])), num_anchors)
        row_numbers = tf.range(num_rows)[None, :, None]
        anchor_numbers = tf.range(num_anchors)[None, :]

        def take_best(
            rounds_done: tf.Tensor, remaining: tf.Tensor, matches: tf.Tensor
        ) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            pairs = tf.reshape(remaining, [batch, num_rows * num_anchors])
            best = tf.argmax(pairs, axis=1, output_type=tf.int32)[:, None]
            row, anchor = best // num_anchors, best % num_anchors
            is_pair = tf.reduce_max(pairs, axis=1, keepdims=True) > lowest
            is_match = tf.logical_and(tf.equal(anchor_numbers, anchor), is_pair)
            matches = tf.ensure_shape(tf.where(is_match, row, matches), matches_shape)
            is_used = tf.logical_or(is_match[:, None, :], tf.equal(row_numbers, row[:, :, None]))
            remaining = tf.ensure_shape(tf.where(is_used, lowest, remaining), remaining_shape)
            return rounds_done + 1, remaining, matches

        unmatched = tf.ensure_shape(tf.fill([batch, num_anchors], UNMATCHED), matches_shape)
        _, _, matches = tf.while_loop(
            lambda rounds_done, *_: rounds_done < rounds, take_best, (0, remaining, unmatched)
        )
        return tf.stop_gradient(matches)


@rules(argmax_matcher_pb2.ArgMaxMatcher)
def _check_thresholds(config: argmax_matcher_pb2.ArgMaxMatcher, at: str) -> Iterator[Problem]:
    if config.ignore_thresholds:
        return
    matched, unmatched = config.matched_threshold, config.unmatched_threshold
    if unmatched > matched:
        yield error(
            f"{at}.unmatched_threshold",
            f"must not be above matched_threshold; given: {unmatched} and {matched}",
            "Lower the first or raise the second",
        )
    elif unmatched == matched and not config.negatives_lower_than_unmatched:
        yield error(
            f"{at}.negatives_lower_than_unmatched",
            "false needs negatives between unmatched_threshold and matched_threshold, which are "
            f"both {matched}",
            "Lower unmatched_threshold",
        )


@MATCHERS.register("argmax_matcher")
def _make_argmax(config: argmax_matcher_pb2.ArgMaxMatcher) -> Matcher:
    use_thresholds = not config.ignore_thresholds
    return ArgMaxMatcher(
        matched_threshold=config.matched_threshold if use_thresholds else None,
        unmatched_threshold=config.unmatched_threshold if use_thresholds else None,
        negatives_lower_than_unmatched=config.negatives_lower_than_unmatched,
        force_match_for_each_row=config.force_match_for_each_row,
        use_matmul_gather=config.use_matmul_gather,
    )


@rules(bipartite_matcher_pb2.BipartiteMatcher, target="tpu")
def _check_loop(
    _config: bipartite_matcher_pb2.BipartiteMatcher, at: str, _: Tpu
) -> Iterator[Problem]:
    replacement = "argmax_matcher { force_match_for_each_row: true use_matmul_gather: true }"
    yield Problem(
        "error",
        at,
        "matches in a loop whose length depends on the boxes",
        "choose its thresholds",
        (f"{at.rpartition('.')[0]}={{ {replacement} }}",),
    )


@MATCHERS.register("bipartite_matcher")
def _make_bipartite(config: bipartite_matcher_pb2.BipartiteMatcher) -> Matcher:
    return BipartiteMatcher(use_matmul_gather=config.use_matmul_gather)


def make_matcher(config: matcher_pb2.Matcher) -> Matcher:
    """Builds the matcher of a `Matcher` message."""
    return MATCHERS.make_chosen(config)
