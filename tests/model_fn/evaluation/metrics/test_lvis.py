"""LVIS by hand: which detections count."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import EvaluatedBatch, make_metrics
from tests.model_fn.evaluation.metrics import hand

CAT = (1, 0, 0, 10, 10)
CAT_FOUND = (0.5, *CAT)
WRONG_CAT, WRONG_DOG = (0.9, 1, 50, 50, 60, 60), (0.9, 2, 50, 50, 60, 60)
DOG = (2, 0, 0, 50, 50)


def _results(*batches: EvaluatedBatch, name: str = "lvis_box_metrics") -> Dict[str, float]:
    (metrics,) = make_metrics(eval_pb2.EvalConfig(metrics_set=[name]), hand.CATEGORIES)
    for batch in batches:
        metrics.add(batch)
    found = metrics.results()
    assert set(found) == set(metrics.names)
    return {key.split("_")[1]: value for key, value in found.items()}


@pytest.mark.parametrize("name", ["lvis_box_metrics", "lvis_mask_metrics"])
def test_a_class_counts_where_its_absence_is_verified(name: str) -> None:
    """A wrong dog, in an image without dogs, counts if someone has looked for dogs."""
    dogs = hand.with_masks(hand.image([DOG], [(0.5, *DOG)]))
    none = hand.image([CAT], [CAT_FOUND, WRONG_DOG], verified_negatives=[0, 0, 1])
    unknown = hand.with_masks(none)
    verified = hand.with_masks(
        hand.image([CAT], [CAT_FOUND, WRONG_DOG], verified_negatives=[0, 1, 1])
    )
    assert _results(dogs, unknown, name=name)["APr"] == pytest.approx(1.0)
    results = _results(dogs, verified, name=name)
    assert results["APr"] == pytest.approx(0.5)  # The wrong one is first, by its score.
    assert results["APf"] == pytest.approx(1.0) and results["APc"] == -1.0
    assert results["AP"] == pytest.approx(0.75)
    assert results["AR@300"] == pytest.approx(1.0)


def test_what_matches_nothing_may_lack_its_box() -> None:
    complete = hand.image([CAT], [CAT_FOUND, WRONG_CAT], not_exhaustive=[0, 1, 1])
    incomplete = hand.image([CAT], [CAT_FOUND, WRONG_CAT], not_exhaustive=[1, 0, 0])
    assert _results(complete)["AP"] == pytest.approx(0.5)
    assert _results(incomplete)["AP"] == pytest.approx(1.0)


def test_the_300_best_of_an_image_count_of_whatever_class() -> None:
    detections: List[Any] = [(0.9, 2, 60, 60, 70, 70)] * 299 + [(0.8, *CAT), (0.7, 1, 0, 0, 10, 9)]
    both = [CAT, (1, 0, 0, 10, 9)]
    assert _results(hand.image(both, detections))["AR@300"] == pytest.approx(0.5)
    assert _results(hand.image(both, detections[1:]))["AR@300"] == pytest.approx(1.0)


def test_there_are_no_crowds() -> None:
    batch = hand.image([CAT], [CAT_FOUND], is_crowd=[True])
    assert _results(batch)["AP"] == pytest.approx(1.0)


def test_frequencies_are_required() -> None:
    categories = [{"id": k, "name": str(k)} for k in range(1, 9)]
    categories[2]["frequency"] = "r"
    config = eval_pb2.EvalConfig(metrics_set=["lvis_detection_metrics"])
    with pytest.raises(ConfigError, match="'1', '2', '4', '5', '6' and 2 more has none") as error:
        make_metrics(config, categories)
    assert str(error.value).startswith("eval_config.metrics_set: 'lvis_box_metrics' needs")
