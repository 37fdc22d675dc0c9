"""`estimator-det init`: keypoints of the label map."""

from __future__ import annotations

from typing import Any, Tuple

import pytest

from estimator_det.errors import UsageError
from estimator_det.programs import starter, starter_keypoints
from estimator_det.programs.starter import Draft
from inputs.label_map import parse_label_map
from tests.programs.test_init import config_of


def draft_of(labels: str, model: str = "centernet_resnet50_fpn_keypoints") -> Tuple[Draft, Any]:
    """A configuration for one class with these keypoints, and lines about them."""
    points = "".join(
        f"keypoints {{ id: {i} label: '{name}' }}" for i, name in enumerate(labels.split())
    )
    label_map = parse_label_map(f"item {{ id: 1 name: 'animal' {points} }}", "map.pbtxt")
    draft = Draft(config_of(model))
    return draft, starter_keypoints.set_keypoints(draft, label_map)


def test_keypoints_of_the_label_map_are_learned_mirrored_and_drawn():
    draft, lines = draft_of("nose tail left_knee right_knee left_hip right_hip")
    net = draft.config.model.center_net
    assert net.keypoint_label_map_path == "map.pbtxt"
    (task,) = net.keypoint_estimation_task
    assert (task.task_name, task.keypoint_class_name) == ("pose", "animal")
    assert dict(task.keypoint_label_to_std) == pytest.approx(
        {"nose": 0.26, "left_knee": 0.87, "right_knee": 0.87, "left_hip": 1.07, "right_hip": 1.07}
    )
    assert draft.config.train_input_reader.num_keypoints == 6
    assert draft.config.eval_input_reader[0].num_keypoints == 6
    (metric,) = draft.config.eval_config.parameterized_metric
    assert metric.coco_keypoint_metrics.keypoint_label_to_sigmas["left_hip"] == pytest.approx(0.107)
    edges = {(edge.start, edge.end) for edge in draft.config.eval_config.keypoint_edge}
    assert edges == {(4, 2), (5, 3), (4, 5)}
    assert lines == ["keypoints: 6 of animal"]
    starter.set_augmentation(draft, ["animal"])
    mirror = draft.config.train_config.data_augmentation_options[0].random_horizontal_flip
    assert list(mirror.keypoint_flip_permutation) == [0, 1, 3, 2, 5, 4]


def test_keypoints_without_partners_or_lines():
    draft, lines = draft_of("left_tip handle")
    assert draft.flip == "" and "keypoint_edge is empty" in lines[1]
    starter.set_augmentation(draft, ["animal"])
    assert "flip" not in str(draft.config.train_config)
    with pytest.raises(UsageError, match=r"map\.pbtxt lists no keypoints"):
        draft_of("")
    draft, lines = draft_of("tip", "centernet_resnet50_fpn")
    assert lines == ["keypoints: not learned; --model centernet_resnet50_fpn_keypoints learns them"]
    assert not draft.config.model.center_net.HasField("keypoint_label_map_path")
