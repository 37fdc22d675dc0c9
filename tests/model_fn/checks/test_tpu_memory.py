from __future__ import annotations

import pytest

from model_fn.checks import tpu_memory
from model_fn.checks.tpu_memory import MARGIN, CoreMemory, TensorGroup, padded_size
from tests.model_fn.checks.small import small_config

FIT = [
    "model.ssd.inplace_batchnorm_update=true",
    "train_config.fine_tune_checkpoint=nowhere/model.ckpt",
]
IMAGES = 4


@pytest.fixture(scope="module")
def small(small_network: None) -> CoreMemory:
    return tpu_memory.estimate(small_config(*FIT), IMAGES)


@pytest.mark.parametrize(
    "shape, convolved, size",
    [
        ((), False, 1),
        ((5,), False, 5),
        # Channels along the lanes: 64 become 128, a batch of 8 stays.
        ((8, 160, 160, 64), True, 8 * 160 * 160 * 128),
        # A batch of 128 along the lanes wastes nothing.
        ((128, 150, 150, 32), True, 128 * 150 * 150 * 32),
        ((1, 10, 10, 3), True, 10 * 10 * 8 * 128),
        # 1,000 rows of 91 columns: rows along the lanes become 1,024, the batch goes along.
        ((8, 1000, 91), False, 8 * 1024 * 91),
        ((3, 7), False, 8 * 128),
    ],
)
def test_tiles_pad(shape, convolved, size):
    assert padded_size(shape, convolved) == size


def test_total_of_hand_made_parts():
    block = TensorGroup((2, 8, 128), 4, False)
    memory = CoreMemory(
        variables=100, gradients=10, kept=[block, block], largest=block, batch=[block], images=2
    )
    size = 2 * 8 * 128 * 4
    assert memory.activations() == 2 * size
    assert memory.total() == 110 + (2 + 2 + 2) * size
    assert memory.total(6) == 110 + 3 * 6 * size
    exact = int(memory.total(5) * MARGIN) + 1
    assert memory.fitting(exact) == 5 and memory.fitting(0) == 0
    # From 8 on by eights, and within what anybody asks for.
    assert memory.fitting(int(memory.total(15) * MARGIN) + 1) == 8
    assert memory.fitting(1 << 40) == tpu_memory.MOST_PER_CORE


def test_estimate_of_a_small_model(small):
    # Adam keeps two slots of each trained variable, gradients one value more; statistics have none.
    assert 3 * small.gradients < small.variables < 3.1 * small.gradients
    shapes = {block.shape for block in small.kept}
    # The first convolution's output is kept, what batch norm and ReLU6 make of it is not.
    assert [b.shape for b in small.kept].count((IMAGES, 16, 16, 16)) <= 3
    assert (IMAGES, 16, 16, 16) in shapes
    assert any(block.shape == (IMAGES, 64, 64, 3) for block in small.batch)
    assert small.total(8) > small.total(4) > small.variables + small.gradients


@pytest.mark.usefixtures("small_network")
def test_what_is_not_static_has_no_estimate():
    resizer = "model.ssd.image_resizer={ keep_aspect_ratio_resizer { } }"
    with pytest.raises(ValueError, match="depends on the picture"):
        tpu_memory.estimate(small_config(*FIT, resizer), IMAGES)
