"""Every step against results of the Object Detection API, with the values that it drew.

A step that differs on purpose is listed with its reason in `DIFFERENCES`; CHANGELOG.md has them,
too.
"""

from __future__ import annotations

from typing import Any, Dict, List, Set

import numpy as np
import pytest

from inputs.augment import AUGMENTATIONS
from tests.inputs.augment.goldens import FIELDS, Goldens, load, run_case, sample_of_case

# Steps of our own, which have no golden results.
OWN = {"copy_paste", "mixup", "mosaic", "rand_augment"}
STEPS = sorted(set(AUGMENTATIONS) - OWN)

_ROWS = {"classes", "weights", "confidences", "multiclass_scores", "masks", "keypoints"}
_FLAT = {"boxes"}  # the Object Detection API leaves a small box without extent, we leave it a pixel
_GRAY = {"image"}  # the Object Detection API blends with pixels / 256, we with the mean gray

# Case -> fields in which we differ on purpose.
DIFFERENCES: Dict[str, Set[str]] = {
    # Masks are resized along the wrong axes.
    "random_image_scale__0.77_masks": {"masks"},
    # Visibilities do not follow their keypoints.
    "random_vertical_flip__p1_perm120": {"visibilities"},
    "random_rotation90__p1_perm120": {"visibilities"},
    # Boxes outside the crop stay in all fields but `boxes`.
    "random_crop_to_aspect_ratio__0.5_ov0": _ROWS,
    # Masks are resized bilinearly, to fractions; ours are 0 or 1.
    **{
        f"random_scale_crop_and_pad_to_square__{name}": {"masks"}
        for name in ("1.6", "2", "0.1")
    },
    **{
        f"autoaugment_image__{name}": _FLAT
        for name in (
            "Rotate_BBox_24", "TranslateX_BBox_5", "TranslateY_BBox_5", "TranslateX_BBox_-7",
            "TranslateY_BBox_-7", "ShearX_BBox_0.3", "ShearY_BBox_0.3", "ShearX_BBox_-0.3",
            "ShearY_BBox_-0.3", "ShearX_BBox_0.06", "ShearY_BBox_0.06",
        )
    },
    **{
        f"autoaugment_image__Contrast_{name}": _GRAY
        for name in ("0.46", "1.18", "1.9", "0.1", "1.9_medium")
    },
}  # fmt: skip


def _image_errors(name: str, result: np.ndarray, golden: Any, pixels: Any) -> List[str]:
    if list(result.shape) != golden["shape"]:
        return [f"shape {result.shape}, not {golden['shape']}"]
    if name.startswith("random_jpeg_quality"):  # depends on the decoder
        off = np.abs(result.mean(axis=(0, 1)) - golden["channel_mean"]).max()
        return [f"channel means differ by {off}"] if off > 0.5 else []
    is_whole = golden["store"] == "uint8_full"
    tolerance = 0 if is_whole else 1e-2 if "area" in name or "bicubic" in name else 1e-3
    flat = result.astype(np.float64).ravel()
    weights = (np.arange(flat.size) % 1009 + 1) / 1009
    found = {"sum": flat.sum(), "weighted_sum": (flat * weights).sum()}
    off = {key: abs(value - golden[key]) for key, value in found.items()}
    errors = [
        f"{key} differs by {value}"
        for key, value in off.items()
        if value > tolerance * flat.size + 1e-8 * abs(golden[key])
    ]
    if pixels is not None:
        own = result if is_whole else result[np.ix_(golden["yi"], golden["xi"])]
        most = np.abs(own.astype(np.float64) - pixels).max()
        errors += [f"pixels differ by {most}"] if most > tolerance else []
    return errors


def _label_errors(field: str, result: np.ndarray, golden: Any) -> List[str]:
    if isinstance(golden, dict):  # masks
        if list(result.shape) != golden["shape"]:
            return [f"{field}: shape {result.shape}, not {golden['shape']}"]
        if not result.size:
            return []
        rows, columns = (np.arange(side) + 1.0 for side in result.shape[1:])
        found = [
            result.sum(axis=(1, 2)),
            (result.sum(axis=2) * rows).sum(axis=1),
            (result.sum(axis=1) * columns).sum(axis=1),
        ]
        wanted = [golden["sum"], golden["row_moment"], golden["col_moment"]]
        return [] if np.allclose(found, wanted, atol=1e-2) else [f"{field} differ"]
    wanted = np.array(golden, np.float64)
    if wanted.size == result.size == 0:
        return []
    if wanted.shape != result.shape:
        return [f"{field}: shape {result.shape}, not {wanted.shape}"]
    is_close = np.allclose(result, wanted, rtol=1e-6, atol=2e-6, equal_nan=True)
    return [] if is_close else [f"{field}: {result}, not {wanted}"]


def errors_of(goldens: Goldens, name: str) -> Dict[str, List[str]]:
    """What differs in a case, by field; empty lists for fields that do not."""
    case = goldens.document["exact"][name]
    before, after = sample_of_case(goldens, case), run_case(goldens, case)
    errors = {}
    for field, golden in case["out"].items():
        if field != "image" and field not in FIELDS:
            continue
        own = FIELDS.get(field, field)
        result = np.array(getattr(after, own))
        if isinstance(golden, str):
            same = np.array_equal(result, np.array(getattr(before, own)), equal_nan=True)
            errors[field] = [] if same else [f"{field} changed"]
        elif field == "image":
            pixels = goldens.arrays.get(f"{name}__image")
            errors[field] = _image_errors(name, result, golden, pixels)
        else:
            errors[field] = _label_errors(field, result, golden)
    return errors


def check_case(goldens: Goldens, name: str) -> None:
    errors = errors_of(goldens, name)
    expected = DIFFERENCES.get(name, set())
    wrong = {field: found for field, found in errors.items() if found and field not in expected}
    assert not wrong, (name, wrong)
    same = {field for field in expected if not errors[field]}
    assert not same, f"{name} does not differ in {same}"


@pytest.mark.parametrize("name", STEPS)
def test_all_cases(name):
    goldens = load()
    cases = goldens.exact(name)
    assert cases
    for case in cases:
        check_case(goldens, case)


def test_no_case_is_left_out():
    goldens = load()
    assert {case.split("__")[0] for case in goldens.document["exact"]} == set(STEPS)
    assert set(DIFFERENCES) <= set(goldens.document["exact"])
