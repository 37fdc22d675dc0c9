"""Keypoints of a starter configuration: tasks, readers, mirroring, metrics and skeletons."""

from __future__ import annotations

import copy
from typing import Dict, Iterable, List, Optional

from estimator_det.console.printing import listed
from estimator_det.errors import UsageError
from estimator_det.programs.starter import Draft
from estimator_det.protos import center_net_pb2
from inputs.label_map import LabelMap

# Deviations of the labels of people's keypoints, from COCO; by names without a side.
COCO_SIGMAS = {
    "nose": 0.026, "eye": 0.025, "ear": 0.035, "shoulder": 0.079, "elbow": 0.072, "wrist": 0.062,
    "hip": 0.107, "knee": 0.087, "ankle": 0.089,
}  # fmt: skip
# Lines of a skeleton, on each side; keypoints without a side belong to both.
BONES = (
    ("nose", "eye"), ("eye", "ear"), ("nose", "shoulder"), ("shoulder", "elbow"),
    ("elbow", "wrist"), ("shoulder", "hip"), ("hip", "knee"), ("knee", "ankle"),
)  # fmt: skip
ACROSS = ("shoulder", "hip")  # joints whose left and right keypoint a line connects
_SIDES = {"left": "right", "right": "left"}
_TASKS = "model.center_net.keypoint_estimation_task"


def set_keypoints(draft: Draft, label_map: LabelMap) -> List[str]:
    """Makes a CenterNet learn the keypoints of the label map; returns lines about them.

    Raises UsageError if the model has keypoints and the data have none.
    """
    if not draft.config.model.HasField("center_net"):
        return []
    model = draft.config.model.center_net
    if not model.keypoint_estimation_task:
        model.ClearField("keypoint_label_map_path")
        is_left_out = bool(label_map.keypoints)
        line = "keypoints: not learned; --model centernet_resnet50_fpn_keypoints learns them"
        return [line] if is_left_out else []
    if not label_map.keypoints:
        raise UsageError(
            f"{label_map.path} lists no keypoints, and the model learns them. Convert annotations "
            "whose categories name their keypoints, or use a model without, such as --model "
            "centernet_resnet50_fpn"
        )
    _set_tasks(model, label_map)
    names = [listed(ids, 20) for ids in label_map.keypoints.values()]
    draft.reasons[_TASKS] = f"The keypoints of label_map.pbtxt: {'; '.join(names)}."
    number = 1 + max(id for ids in label_map.keypoints.values() for id in ids.values())
    for reader in ("train_input_reader", "eval_input_reader[0]"):
        draft.set(f"{reader}.num_keypoints", number)
    _set_metrics(draft, label_map)
    draft.flip = _flip(label_map.keypoints.values(), number)
    lines = [f"keypoints: {number} of {listed(map(label_map.names.get, label_map.keypoints), 5)}"]
    if not draft.config.eval_config.keypoint_edge:
        lines.append(
            "skeletons: eval_config.keypoint_edge is empty; add { start: 0 end: 1 } for a line "
            "between the keypoints 0 and 1"
        )
    return lines


def _set_tasks(model: center_net_pb2.CenterNet, label_map: LabelMap) -> None:
    """Repeats the first task for each class with keypoints."""
    template = copy.deepcopy(model.keypoint_estimation_task[0])
    template.keypoint_label_to_std.clear()
    model.keypoint_label_map_path = label_map.path
    del model.keypoint_estimation_task[:]
    names = {class_id: name for name, class_id in label_map.ids.items()}  # not the display names
    for number, (class_id, ids) in enumerate(label_map.keypoints.items()):
        task = model.keypoint_estimation_task.add()
        task.CopyFrom(template)
        task.keypoint_class_name = names[class_id]
        if number:  # The first keeps its name, which is part of the names of restored variables.
            task.task_name = f"{template.task_name}_{number}"
        for name in ids:
            if sigma := _sigma(name):
                task.keypoint_label_to_std[name] = 10.0 * sigma


def _set_metrics(draft: Draft, label_map: LabelMap) -> None:
    """Similarity of keypoints, and the lines of skeletons."""
    config = draft.config.eval_config
    for class_id, ids in label_map.keypoints.items():
        metric = config.parameterized_metric.add().coco_keypoint_metrics
        metric.class_label = label_map.names[class_id]
        for name in ids:
            if sigma := _sigma(name):
                metric.keypoint_label_to_sigmas[name] = sigma
        for start, end in _edges(ids):
            config.keypoint_edge.add(start=start, end=end)
    draft.reasons["eval_config.parameterized_metric"] = (
        "Deviations of labels, relative to the size of an object; others have 0.05."
    )
    draft.reasons["eval_config.keypoint_edge"] = "Lines of the skeleton in pictures."


def _sigma(name: str) -> Optional[float]:
    """Deviation of the keypoint of people with this name, as `left_knee`."""
    return COCO_SIGMAS.get(name.removeprefix("left_").removeprefix("right_"))


def _edges(ids: Dict[str, int]) -> List[List[int]]:
    """Lines of the skeleton of people, as pairs of ids; only lines whose two keypoints exist."""
    names = [
        tuple(f"{side}_{joint}" if f"{side}_{joint}" in ids else joint for joint in bone)
        for bone in BONES
        for side in _SIDES
    ]
    names += [(f"left_{joint}", f"right_{joint}") for joint in ACROSS]
    return [[ids[start], ids[end]] for start, end in names if start in ids and end in ids]


def _flip(classes: Iterable[Dict[str, int]], number: int) -> str:
    """The step that mirrors images; "" if a keypoint with a side has no partner."""
    permutation = [*range(number)]
    for ids in classes:
        for name, place in ids.items():
            words = [_SIDES.get(word, word) for word in name.split("_")]
            partner = ids.get("_".join(words))
            if partner is None or permutation[place] not in (place, partner):
                return ""
            permutation[place] = partner
    return f"random_horizontal_flip {{ keypoint_flip_permutation: {permutation} }}"
