"""Options of the second stage, both kinds of it."""

from __future__ import annotations

from typing import Any

import pytest

from estimator_det.detectors.two_stage import losses, roi_stage
from estimator_det.predictors.rfcn import RfcnHead
from tests.detectors.two_stage.configs import MASKS, RFCN, small_config
from tests.small_extractor import SmallTwoStageExtractor


def stage(overrides: str, is_training: bool = True) -> Any:
    model = small_config(overrides).faster_rcnn
    return roi_stage.make_region_stage(model, SmallTwoStageExtractor(), is_training)


@pytest.mark.parametrize("matmul", ["true", "false"])
def test_crops(matmul: str) -> None:
    options = f"""initial_crop_size: 6 maxpool_kernel_size: 3 maxpool_stride: 1
        use_matmul_crop_and_resize: {matmul}"""
    wanted = roi_stage.CropOptions(6, pool_size=3, pool_stride=1, matmul=matmul == "true")
    for more in ("", MASKS):
        assert stage(options + more).crops == wanted


@pytest.mark.parametrize("matmul", ["true", "false"])
def test_position_sensitive_maps(matmul: str) -> None:
    head = stage(
        f"""use_matmul_crop_and_resize: {matmul} second_stage_box_predictor {{
        rfcn_box_predictor {{ depth: 5 num_spatial_bins_height: 2 num_spatial_bins_width: 3
        crop_height: 4 crop_width: 9 }} }}"""
    ).head
    assert isinstance(head, RfcnHead)
    assert (head.num_classes, head.depth) == (2, 5)
    assert (head.num_bins, head.crop_size) == ((2, 3), (4, 9))
    assert head.matmul == (matmul == "true")


def test_defaults_of_position_sensitive_maps_are_those_of_the_message() -> None:
    head = stage(RFCN).head
    assert (head.depth, head.num_bins, head.crop_size) == (4, (2, 3), (4, 6))


def test_every_option_of_the_losses_is_read() -> None:
    config = small_config(
        """first_stage_minibatch_size: 7 first_stage_positive_balance_fraction: 0.25
        first_stage_localization_loss_weight: 2 first_stage_objectness_loss_weight: 3
        second_stage_localization_loss_weight: 4 second_stage_classification_loss_weight: 5
        hard_example_miner { num_hard_examples: 9 }"""
    ).faster_rcnn
    first, second = losses.make_rpn_loss(config), losses.make_region_loss(config)
    assert (first.sampling.batch_size, first.sampling.positive_fraction) == (7, 0.25)
    assert (first.terms.localization_weight, first.terms.classification_weight) == (2.0, 3.0)
    assert (second.terms.localization_weight, second.terms.classification_weight) == (4.0, 5.0)
    assert second.miner is not None and second.miner.num_hard_examples == 9
    assert (second.miner.loc_weight, second.miner.cls_weight) == (4.0, 5.0)
    plain = small_config().faster_rcnn
    sampling = losses.make_rpn_loss(plain).sampling
    assert (sampling.batch_size, sampling.positive_fraction) == (256, 0.5)
    assert losses.make_region_loss(plain).miner is None
