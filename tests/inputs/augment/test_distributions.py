"""What random steps draw, against many draws of the Object Detection API.

Seeds are fixed, so that a run always has the same result; for other seeds it fails by chance with a
probability of at most `ERROR`, see `draws`.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Set

import numpy as np
import pytest

from tests.inputs.augment.draws import (
    BOX_MEANS,
    ERROR,
    PLACES,
    compare_probability,
    compare_quantiles,
    draw,
)
from tests.inputs.augment.goldens import Goldens, load, sample_of_case

NUMBERS = (
    "height", "width", "num_boxes", "box_area", *BOX_MEANS, "image_mean", "image_std", "mean_r",
    "mask_sum", "keypoints_not_nan", *PLACES,
)  # fmt: skip
# Case -> numbers in which we differ on purpose.
DIFFERENCES: Dict[str, Set[str]] = {
    # The Object Detection API's `Contrast` blends with the number of pixels / 256, not mean gray.
    "autoaugment_image__v2": {"image_std"},
    # The Object Detection API's second crop clips boxes and keypoints, whatever clip_boxes says.
    "ssd_random_crop_fixed_aspect_ratio__ops": {
        "box_area", "ymin", "ymax", "xmax", "keypoints_not_nan",
    },
}  # fmt: skip

# Cases with small images, of which the Object Detection API drew many.
SMALL = [
    name
    for name, case in load().document["statistics"].items()
    if case["input_image"] == "small" and case["draws"] >= 500
]


def _count(goldens: Goldens) -> int:
    """How many comparisons with an error probability of their own a run makes at most."""
    cases = goldens.document["statistics"].values()
    # Two sides of eleven quantiles, or a probability; our draws and the known ones may err.
    return sum(2 * (22 * len(case["dist"]) + 1 + len(case.get("p_box_kept", []))) for case in cases)


def errors_of(goldens: Goldens, name: str, most: int) -> List[str]:
    case = goldens.document["statistics"][name]
    budget = math.log(_count(goldens) / ERROR)
    numbers = [
        number
        for number in NUMBERS
        if number in case["dist"] and number not in DIFFERENCES.get(name, set())
    ]
    sample = sample_of_case(goldens, case)
    if name.endswith("no_boxes"):
        sample = sample._replace(
            boxes=sample.boxes[:0], classes=sample.classes[:0], weights=sample.weights[:0]
        )
    drawn = draw(case["step"], sample, most, with_places=bool(set(PLACES) & set(numbers)))
    errors: List[str] = []
    changed = int(drawn["image_changed"].sum())
    errors += compare_probability(
        "image_changed", changed, most, case["p_image_changed"], case["draws"], budget
    )
    for index, share in enumerate(case.get("p_box_kept", [])):
        kept = int(drawn[f"box_kept {index}"].sum())
        errors += compare_probability(f"box {index}", kept, most, share, case["draws"], budget)
    for number in numbers:
        errors += _number_errors(number, drawn[number], case["dist"][number], case, budget)
    return errors


def _number_errors(
    number: str, values: np.ndarray, known: Any, case: Dict[str, Any], budget: float
) -> List[str]:
    undefined = known.get("n_undefined", 0)
    values = values[np.isfinite(values)]
    if undefined == case["draws"] or not len(values):
        both = undefined == case["draws"] and not len(values)
        return [] if both else [f"{number}: {len(values)} draws have boxes"]
    quantiles = [known["const"]] * 11 if "const" in known else known["q"]
    return list(compare_quantiles(number, values, quantiles, case["draws"] - undefined, budget))


@pytest.mark.parametrize("name", SMALL)
def test_draws_of_a_step(name):
    assert not errors_of(load(), name, most=500)


@pytest.mark.exhaustive
def test_draws_of_every_step():
    goldens = load()
    assert {name.split("__")[0] for name in goldens.document["statistics"]} == {
        name for name, step in goldens.document["steps"].items() if step["random"]
    }
    wrong = {}
    for name, case in goldens.document["statistics"].items():
        is_large = case["draws"] < 500
        errors = errors_of(goldens, name, most=100 if is_large else 4000)
        if errors:
            wrong[name] = errors
    assert not wrong
