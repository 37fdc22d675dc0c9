"""Names of the registry, pixels that networks take, and sizes known only at run time."""

import pathlib

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.extractors.center_net import registry as center_net
from estimator_det.extractors.ssd.registry import EXTRACTORS
from estimator_det.extractors.two_stage.registry import EXTRACTORS as TWO_STAGE_EXTRACTORS
from estimator_det.nets.object_paths import KERAS
from tests.extractors.build import EMBEDDED, SMALL, make


@pytest.mark.parametrize("registry", [EXTRACTORS, TWO_STAGE_EXTRACTORS])
def test_types_of_the_tf2_line_have_networks_of_their_own(registry):
    for name in registry:
        assert registry.get(name).is_tf2_line == name.endswith(KERAS)
    scopes = [registry.get(name).scope for name in registry if name.endswith(KERAS)]
    assert all(scope.endswith(KERAS) for scope in scopes)


def test_page_lists_every_type():
    page = pathlib.Path(__file__).parents[2] / "docs" / "extractors.md"
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| `")]
    names = [row[0].strip("| `") for row in rows]
    assert sorted(names) == sorted([*EXTRACTORS, *TWO_STAGE_EXTRACTORS, *center_net.EXTRACTORS])


@pytest.mark.parametrize("kind", sorted({*EXTRACTORS, *TWO_STAGE_EXTRACTORS}))
def test_pixels(kind):
    """Minus one to one; ResNets subtract means of color images, EfficientNets divide, too."""
    normalize = (EXTRACTORS if kind in EXTRACTORS else TWO_STAGE_EXTRACTORS).get(kind).normalize
    pixels = tf.constant([[[[123.68, 116.779, 103.939], [0.0, 127.5, 255.0]]]])
    found = normalize(pixels)
    if "efficientnet" in kind:
        np.testing.assert_allclose(found[0, 0, 1], [-2.117904, 0.196429, 2.64], atol=1e-6)
        return
    if "resnet" not in kind or "inception" in kind:
        np.testing.assert_allclose(found, pixels / 127.5 - 1.0, atol=1e-6)
        return
    np.testing.assert_allclose(
        found, [[[[0, 0, 0], [-123.68, 127.5 - 116.779, 255 - 103.939]]]], atol=1e-4
    )
    gray = tf.constant([[[[7.0]]]])
    np.testing.assert_array_equal(normalize(gray), gray)


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong", "message"),
    [
        ("ssd_mobilenet_v1", "num_layers: 1", (40, 33), (40, 32), "at least 33 x 33"),
        (EMBEDDED, "", (256, 256), (256, 255), "must be 256 x 256"),
    ],
)
def test_unknown_sizes_are_checked_at_run_time(kind, text, right, wrong, message):
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.float32, [1, None, None, 3])
        features = make(kind, f"{SMALL} {text}").extract(fed)
        if kind == EMBEDDED:
            assert features[-1].shape == (1, 1, 1, 25)
        session.run(tf1.global_variables_initializer())
        found = session.run(features[0], {fed: np.zeros([1, *right, 3])})
        assert found.shape == (1, -(-right[0] // 16), -(-right[1] // 16), 51)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(features[0], {fed: np.zeros([1, *wrong, 3])})
