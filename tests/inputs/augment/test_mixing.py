from __future__ import annotations

import re
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.errors import ConfigError
from inputs import schema
from inputs.augment import check_mixtures, make_steps
from inputs.augment.mixing import (
    NO_CLASS,
    apply_mixture,
    image_limit,
    merge,
    num_sources,
    partner_distances,
)
from tests.inputs.augment.helpers import sample_of, step
from tests.inputs.examples import reader

FLIP = "random_vertical_flip { keypoint_flip_permutation: [0, 1, 2] }"
CHAIN = (FLIP, "mosaic {}", FLIP, "mixup {}", FLIP, FLIP)


def links(*texts: str) -> List[Any]:
    return make_steps([step(text) for text in texts])


def test_no_record_is_twice_in_a_batch():
    """The eight sources of each of five images: all different."""
    chain = links(*CHAIN)
    assert num_sources(chain) == 8 and num_sources(links(FLIP)) == 1
    far, near = partner_distances(chain, batch_size=5)
    assert (far, near) == (10, 5)
    sources = [
        image + near * mixed + far * part
        for image in range(5)
        for mixed in range(2)
        for part in range(4)
    ]
    assert sorted(sources) == list(range(40))


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        (["mixup {}"], "load_context_features: true", r"\[0\].mixup: mixes images, but with "),
        ([FLIP, "copy_paste {}"], "", r"\[1\].copy_paste: needs train_input_reader.load_instance"),
        (["mosaic {}", "convert_class_logits_to_softmax {}"], "",
         r"\[0\].mosaic: has .*; move convert_class_logits_to_softmax before this step"),
        (["scale_boxes_to_pixel_coordinates {}", "mixup {}"], "",
         r"\[1\].mixup: has .*; move scale_boxes_to_pixel_coordinates after this step"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_mixture(texts, settings, message):
    (problem,) = check_mixtures([step(text) for text in texts], reader(settings))
    assert re.search(message, f"{problem.field}: {problem.message}; {problem.remedy}")
    assert not list(check_mixtures([step("copy_paste {}")], reader("load_instance_masks: true")))


def test_what_goes_with_a_mixture_in_the_right_order():
    texts = (
        "convert_class_logits_to_softmax {}",
        "mosaic {}",
        "scale_boxes_to_pixel_coordinates {}",
    )
    assert not list(check_mixtures([step(text) for text in texts], reader("")))


def test_images_until_a_mixture_stops():
    stopping, endless = links("mosaic { stop_at_step: 12 }", "mosaic {}")
    assert image_limit(stopping, 0, 8) == 96
    assert image_limit(stopping, 10, 8) == 16
    assert image_limit(stopping, 13, 8) == 0
    assert image_limit(endless, None, 8) is None
    with pytest.raises(ConfigError, match=r"\[0\].mosaic.stop_at_step: the workers of a cluster"):
        image_limit(stopping, None, 8)


Labels = Tuple[List[int], List[float]]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Annotated exhaustively in both; the confidence is the higher one.
        (([1, 2, 3], [1, 0, 1]), ([3, 2, 5], [0, 1, 1]), ([2, 3], [1, 1])),
        # An empty list means all classes.
        (([], []), ([3, 2], [0, 1]), ([3, 2], [0, 1])),
        (([3, 2], [0, 1]), ([], []), ([3, 2], [0, 1])),
        (([], []), ([], []), ([], [])),
        # Nothing in common must not become an empty list.
        (([1, 2], [1, 1]), ([3], [1]), ([NO_CLASS], [0])),
    ],
)
def test_classes_of_the_image(first, second, expected):
    def level(labels: Labels) -> Dict[str, tf.Tensor]:
        return {
            schema.IMAGE_CLASSES: tf.constant(labels[0], tf.int64),
            schema.IMAGE_CONFIDENCES: tf.constant(labels[1], tf.float32),
        }

    samples = [sample_of("bare")._replace(image_level=level(x)) for x in (first, second)]
    merged = merge(samples).image_level
    np.testing.assert_array_equal(merged[schema.IMAGE_CLASSES], expected[0])
    np.testing.assert_array_equal(merged[schema.IMAGE_CONFIDENCES], expected[1])


def test_other_labels_of_the_image():
    def level(negative: List[int], incomplete: List[int], annotated: bool, name: str) -> Any:
        return {
            schema.VERIFIED_NEG_CLASSES: tf.constant(negative, tf.int64),
            schema.NOT_EXHAUSTIVE_CLASSES: tf.constant(incomplete, tf.int64),
            schema.IS_ANNOTATED: tf.constant(annotated),
            schema.SOURCE_ID: tf.constant(name),
        }

    levels = [
        level([1, 2], [3], True, "a"),
        level([2, 4], [5], True, "b"),
        level([2], [], False, ""),
    ]
    samples = [sample_of("bare")._replace(image_level=one) for one in levels]
    merged = merge(samples).image_level
    np.testing.assert_array_equal(merged[schema.VERIFIED_NEG_CLASSES], [2])
    np.testing.assert_array_equal(merged[schema.NOT_EXHAUSTIVE_CLASSES], [3, 5])
    assert not merged[schema.IS_ANNOTATED].numpy()
    assert merged[schema.SOURCE_ID].numpy() == b"a"
    assert merge([sample_of("bare")] * 2).image_level is None


def test_probability_and_permission():
    samples = [sample_of("bare"), sample_of("bare")]
    mixed_at = {}
    for probability, allowed in ((0.3, True), (1.0, False)):
        chain = links(f"mixup {{ probability: {probability} }}")
        found = []
        for seed in range(60):
            sample, mixed = apply_mixture(
                chain, samples, [tf.constant([seed, 7])], tf.constant(allowed)
            )
            assert len(sample.boxes) == (6 if mixed else 3)
            assert sample.image.dtype == tf.float32
            found.append(bool(mixed))
        mixed_at[probability, allowed] = sum(found)
    assert 7 <= mixed_at[0.3, True] <= 29  # 18 expected; three standard deviations are 10.6
    assert mixed_at[1.0, False] == 0
