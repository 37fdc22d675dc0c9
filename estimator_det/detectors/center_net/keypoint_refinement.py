"""Choice between a regressed keypoint and the candidates of its heatmap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Tuple

from estimator_det.boxes import geometry, heatmaps
from estimator_det.boxes.geometry import sizes
from estimator_det.compat import tf
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.config.rules import rules
from estimator_det.config.text import nearest
from estimator_det.console.printing import quoted
from estimator_det.errors import Problem, error
from estimator_det.protos import center_net_pb2

MIN_DISTANCE, GAUSSIAN_WEIGHTED = "min_distance", "gaussian_weighted"
SCORE_DISTANCE_RATIO = "score_distance_ratio"
SCORE_SCALED_DISTANCE_RATIO = "score_scaled_distance_ratio"
# Modes of candidate_ranking_mode, and the field that a mode alone uses.
RANKINGS = {
    MIN_DISTANCE: "",
    SCORE_DISTANCE_RATIO: "score_distance_offset",
    SCORE_SCALED_DISTANCE_RATIO: "score_distance_multiplier",
    GAUSSIAN_WEIGHTED: "std_dev_multiplier",
}
_RANKING_IOU = 0.7  # min_iou of the Gaussians of GAUSSIAN_WEIGHTED
_FAR = 1e5  # pixels; distance of candidates with a low score

KeypointEstimation = center_net_pb2.CenterNet.KeypointEstimation


@dataclass(frozen=True)
class Refinement:
    """Choice between a regressed keypoint and the candidates of a heatmap."""

    num_candidates: int
    least_score: float  # the least score of a candidate
    window: int  # pixels of the window of a peak
    unmatched_score: float  # score of a keypoint that stays as it was regressed
    box_scale: float  # candidates lie in the box enlarged by this factor
    search_scale: float  # most distance of a candidate, relative to that box's longer side
    ranking: str  # one of RANKINGS
    distance_offset: float  # pixels added to a distance, in the ratio of score and distance
    distance_multiplier: float = 0.1  # the same as a share of the longer side of the box
    deviations: Tuple[float, ...] = ()  # factors of the object's deviation, for each keypoint


def refine(
    regressed: tf.Tensor,  # float32 [B, N, P, 2], rows and columns
    candidates: tf.Tensor,  # float32 [B, M, P, 2]
    scores: tf.Tensor,  # float32 [B, M, P], of the candidates
    boxes: tf.Tensor,  # float32 [B, N, 4], of the objects
    options: Refinement,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Replaces regressed keypoints by candidates that are close: points and their scores."""
    ways = regressed[:, :, tf.newaxis] - candidates[:, tf.newaxis]  # [B, N, M, P, 2]
    distances = tf.sqrt(tf.reduce_sum(tf.square(ways), axis=4))
    all_scores = scores[:, tf.newaxis]
    distances = tf.where(all_scores < options.least_score, _FAR, distances)
    ranks = _ranks(distances, all_scores, boxes, options)
    chosen = tf.argmax(ranks, axis=2, output_type=tf.int32)  # [B, N, P]
    selected = tf.one_hot(chosen, sizes(candidates)[1], axis=2)  # [B, N, M, P]
    points = tf.einsum("bnmk,bmkc->bnkc", selected, candidates)
    if options.ranking == GAUSSIAN_WEIGHTED:
        score = tf.reduce_max(ranks, axis=2)
    else:
        score = tf.einsum("bnmk,bmk->bnk", selected, scores)

    middles = (boxes[..., :2] + boxes[..., 2:]) / 2.0
    halves = options.box_scale * (boxes[..., 2:] - boxes[..., :2]) / 2.0
    low, high = (middles - halves)[:, :, tf.newaxis], (middles + halves)[:, :, tf.newaxis]
    is_outside = tf.reduce_any((points < low) | (points > high), axis=3)
    reach = options.search_scale * tf.reduce_max(2.0 * halves, axis=2)[..., tf.newaxis]
    # The Object Detection API looks for any candidate within reach, whichever one the ranks choose.
    is_far = tf.reduce_min(distances, axis=2) > reach
    stays = is_outside | (score < options.least_score) | is_far
    return (
        tf.where(stays[..., tf.newaxis], regressed, points),
        tf.where(stays, options.unmatched_score, score),
    )


def _ranks(
    distances: tf.Tensor,  # float32 [B, N, M, P]
    scores: tf.Tensor,  # float32 [B, 1, M, P]
    boxes: tf.Tensor,  # float32 [B, N, 4]
    options: Refinement,
) -> tf.Tensor:
    """Ranks of candidates, float32 [B, N, M, P]; the one with the highest rank is chosen."""
    if options.ranking == MIN_DISTANCE:
        return -distances
    if options.ranking == SCORE_DISTANCE_RATIO:
        return scores / (distances + options.distance_offset)
    _, _, heights, widths = geometry.centers_and_sizes(boxes[:, :, tf.newaxis, tf.newaxis])
    if options.ranking == SCORE_SCALED_DISTANCE_RATIO:
        return scores / (distances + tf.maximum(heights, widths) * options.distance_multiplier)
    deviations = heatmaps.gaussian_deviations(heights, widths, _RANKING_IOU)
    deviations *= tf.constant(options.deviations)
    return scores * tf.exp(-tf.square(distances / deviations) / 2.0)


@rules(KeypointEstimation)
def _check_ranking(config: KeypointEstimation, at: str) -> Iterator[Problem]:
    if config.candidate_ranking_mode not in RANKINGS:
        field = f"{at}.candidate_ranking_mode"
        yield error(
            field,
            f"{quoted(config.candidate_ranking_mode)} is not supported yet"
            f"{nearest(config.candidate_ranking_mode, list(RANKINGS))}",
            f"use one of {', '.join(RANKINGS)}",
        )
        return
    unused = {*RANKINGS.values()} - {"", RANKINGS[config.candidate_ranking_mode]}
    for name in non_default_fields(config, sorted(unused)):
        mode = next(mode for mode, field in RANKINGS.items() if field == name)
        yield no_effect(f"{at}.{name}", f"candidate_ranking_mode is not {mode}")


def make_refinement(config: KeypointEstimation, deviations: Tuple[float, ...]) -> Refinement:
    """Builds the refinement of a task; the deviations are the factors of its keypoints."""
    return Refinement(
        num_candidates=config.num_candidates_per_keypoint,
        least_score=config.keypoint_candidate_score_threshold,
        window=config.peak_max_pool_kernel_size,
        unmatched_score=config.unmatched_keypoint_score,
        box_scale=config.box_scale,
        search_scale=config.candidate_search_scale,
        ranking=config.candidate_ranking_mode,
        distance_offset=config.score_distance_offset,
        distance_multiplier=config.score_distance_multiplier,
        deviations=tuple(config.std_dev_multiplier * each for each in deviations),
    )
