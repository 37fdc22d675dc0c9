"""Matchers: which groundtruth row, if any, each anchor is matched with."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Protocol, Tuple

from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError

TPU = TpuAdvice("matcher", "use argmax_matcher with use_matmul_gather: true")

UNMATCHED = -1  # the anchor is background
IGNORED = -2  # the anchor takes no part in any loss


class Matcher(Protocol):
    """Matches anchors to groundtruth rows, a whole batch at once."""

    @property
    def use_matmul_gather(self) -> bool:
        """Whether rows should be fetched with a one-hot product instead of a gather (for TPU)."""

    def __call__(
        self, similarity: tf.Tensor, valid: tf.Tensor, claiming: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        """Similarity [B, G, A], valid bool [B, G] -> int32 [B, A].

        Args:
            similarity: float32 [B, G, A], higher is closer.
            valid: bool [B, G]; other rows are padding and never matched.
            claiming: bool [B, G], the valid rows that may claim an anchor of their own (forced and
                bipartite matches); all valid ones where not given.

        Returns:
            int32 [B, A]: the row matched, `UNMATCHED` or `IGNORED`.
        """


MATCHERS: Registry[Callable[[Any], Matcher]] = Registry("matcher")


@dataclasses.dataclass(frozen=True)
class ArgMaxMatcher:
    """Each anchor takes the row it is most similar to, the first of equals, if similar enough.

    Below `unmatched_threshold` an anchor is unmatched, from there to `matched_threshold` ignored
    (the two change places unless `negatives_lower_than_unmatched`). Then, when
    `force_match_for_each_row`, every claiming row takes the anchor most similar to it, however
    weak; of rows that want the same anchor the first one has it. An image without valid rows has
    all anchors unmatched.

    Attributes:
        matched_threshold: lowest similarity of a match; None matches every anchor.
        unmatched_threshold: None is the same as `matched_threshold`.
        negatives_lower_than_unmatched: whether the lowest similarities are the negatives.
        force_match_for_each_row: whether rows claim an anchor each.
        use_matmul_gather: see `Matcher`.
    """

    matched_threshold: Optional[float] = 0.5
    unmatched_threshold: Optional[float] = None
    negatives_lower_than_unmatched: bool = True
    force_match_for_each_row: bool = False
    use_matmul_gather: bool = False

    def __post_init__(self) -> None:
        matched, unmatched = self.matched_threshold, self.unmatched_threshold
        if matched is None:
            if unmatched is not None:
                raise ConfigError(
                    "unmatched_threshold needs a matched_threshold; "
                    f"given: {unmatched} without matched_threshold"
                )
            return
        if unmatched is not None and unmatched > matched:
            raise ConfigError(
                "unmatched_threshold must not be above matched_threshold; "
                f"given: {unmatched} and {matched}"
            )
        if not self.negatives_lower_than_unmatched and unmatched in (None, matched):
            raise ConfigError(
                "negatives_lower_than_unmatched: false takes negatives from between "
                f"unmatched_threshold and matched_threshold, which are both {matched}. "
                "Remedy: lower unmatched_threshold"
            )

    def __call__(
        self, similarity: tf.Tensor, valid: tf.Tensor, claiming: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        shown = tf.where(tf.expand_dims(valid, -1), similarity, similarity.dtype.min)
        if not shown.shape[1]:  # 0, or known only at run time: argmax needs a row
            shown = tf.pad(shown, [[0, 0], [0, 1], [0, 0]], constant_values=similarity.dtype.min)
        matches = self._by_threshold(shown)
        if self.force_match_for_each_row:
            claiming = valid if claiming is None else tf.logical_and(valid, claiming)
            claimed_by = _claims(similarity, claiming)
            matches = tf.where(claimed_by >= 0, claimed_by, matches)
        return tf.stop_gradient(matches)

    def _by_threshold(self, similarity: tf.Tensor) -> tf.Tensor:
        """[B, G, A] with the lowest number on rows that are not valid -> int32 [B, A]."""
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


def _claims(similarity: tf.Tensor, claiming: tf.Tensor) -> tf.Tensor:
    """The first row whose most similar anchor this is: [B, G, A], [B, G] -> int32 [B, A], or -1."""
    dynamic = tf.shape(similarity)
    batch, num_rows, num_anchors = (
        dynamic[axis] if size is None else size for axis, size in enumerate(similarity.shape)
    )
    favourite = tf.argmax(similarity, axis=2, output_type=tf.int32)
    flat = favourite + tf.expand_dims(tf.range(batch) * num_anchors, -1)
    segments = tf.where(claiming, flat, -1)  # negative segments are dropped
    rows = tf.broadcast_to(tf.range(num_rows), [batch, num_rows])
    first = tf.math.unsorted_segment_min(rows, segments, batch * num_anchors)
    first = tf.where(first < num_rows, first, -1)  # segments without rows hold the highest int32
    return tf.reshape(first, [batch, num_anchors])


@dataclasses.dataclass(frozen=True)
class BipartiteMatcher:
    """Greedy one-to-one matching: the most similar pair first, then the best of what is left.

    Of equally similar pairs the lower row comes first, then the lower anchor. Goes on until every
    claiming row has an anchor, or every anchor a row; all other anchors are unmatched.

    The reference counts the claiming rows and matches as many of the *leading* ones; here the rows
    themselves count, which differs only where padding or weightless rows precede others.

    Attributes:
        use_matmul_gather: see `Matcher`.
    """

    use_matmul_gather: bool = False

    def __call__(
        self, similarity: tf.Tensor, valid: tf.Tensor, claiming: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        claiming = valid if claiming is None else tf.logical_and(valid, claiming)
        lowest = similarity.dtype.min
        left = tf.where(tf.expand_dims(claiming, -1), similarity, lowest)
        # A last row that is never taken keeps argmax defined when G is 0.
        left = tf.pad(left, [[0, 0], [0, 1], [0, 0]], constant_values=lowest)
        left_shape, matches_shape = left.shape, [left.shape[0], left.shape[2]]
        batch, num_rows, num_anchors = tf.unstack(tf.shape(left), num=3)
        claims = tf.reduce_sum(tf.cast(claiming, tf.int32), axis=1)
        rounds = tf.minimum(tf.reduce_max(tf.pad(claims, [[0, 1]])), num_anchors)
        row_numbers = tf.range(num_rows)[None, :, None]
        anchor_numbers = tf.range(num_anchors)[None, :]

        def take_best(
            done: tf.Tensor, left: tf.Tensor, matches: tf.Tensor
        ) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            pairs = tf.reshape(left, [batch, num_rows * num_anchors])
            best = tf.argmax(pairs, axis=1, output_type=tf.int32)[:, None]
            row, anchor = best // num_anchors, best % num_anchors
            found = tf.reduce_max(pairs, axis=1, keepdims=True) > lowest
            here = tf.logical_and(tf.equal(anchor_numbers, anchor), found)
            matches = tf.ensure_shape(tf.where(here, row, matches), matches_shape)
            taken = tf.logical_or(here[:, None, :], tf.equal(row_numbers, row[:, :, None]))
            left = tf.ensure_shape(tf.where(taken, lowest, left), left_shape)
            return done + 1, left, matches

        unmatched = tf.ensure_shape(tf.fill([batch, num_anchors], UNMATCHED), matches_shape)
        _, _, matches = tf.while_loop(
            lambda done, *_: done < rounds, take_best, (0, left, unmatched)
        )
        return tf.stop_gradient(matches)


@MATCHERS.register("argmax_matcher")
def _make_argmax(config: Any) -> Matcher:
    use_thresholds = not config.ignore_thresholds
    return ArgMaxMatcher(
        matched_threshold=config.matched_threshold if use_thresholds else None,
        unmatched_threshold=config.unmatched_threshold if use_thresholds else None,
        negatives_lower_than_unmatched=config.negatives_lower_than_unmatched,
        force_match_for_each_row=config.force_match_for_each_row,
        use_matmul_gather=config.use_matmul_gather,
    )


@MATCHERS.register("bipartite_matcher")
def _make_bipartite(config: Any) -> Matcher:
    return BipartiteMatcher(use_matmul_gather=config.use_matmul_gather)


def make_matcher(config: Any) -> Matcher:
    """The matcher of a `Matcher` message; ConfigError if none is set or its thresholds conflict."""
    return MATCHERS.make_chosen(config, "matcher_oneof", "matcher")
