"""Options that explain why the shapes of a checkpoint differ from a model."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from estimator_det.protos import faster_rcnn_pb2, model_pb2, ssd_pb2

Shapes = Mapping[str, Sequence[int]]  # by name of variable

_BOX_CODE_SIZE = 4
_CLASS_HEAD = "ClassPredictor"
_BOX_HEADS = ("BoxEncodingPredictor", "BoxPredictor")  # beside it, in the order of preference
HEADS = "BoxPredictor"  # in the names of all variables of predictors, and of no others
_DEPTHWISE = "depthwise_weights"
_DEPTHWISE_PART = f"_depthwise/{_DEPTHWISE}"
_SAME_NETWORK = 0.5  # share of the backbone's names; below it, another network explains everything
_SAME_MULTIPLIER = 0.9  # share of the layers, whose widths are rounded
_WIDTH_ROUNDING = 8  # channels
_EXPANDED_ROUNDING = 1 / 3  # share of the channels of layers that are multiples of rounded ones


class _Comparison(NamedTuple):
    """Variables of a part of the model in the checkpoint and in the model."""

    stored: Dict[str, List[int]]
    wanted: Dict[str, List[int]]


def explain_shapes(
    model: model_pb2.DetectionModel,
    stored: Shapes,
    wanted: Shapes,
    *,
    has_own_classes: bool = False,
) -> List[str]:
    """A sentence for each option of the model that explains shapes, with its value.

    Args:
        has_own_classes: The number of classes may differ, as in fine-tuning.
    """
    kind = model.WhichOneof("model")
    if kind not in ("ssd", "faster_rcnn"):
        return []
    message, path = getattr(model, kind), f"model.{kind}"
    heads, backbone = (
        _Comparison(
            *(
                {name: list(each[name]) for name in each if (HEADS in name) == are_heads}
                for each in (stored, wanted)
            )
        )
        for are_heads in (True, False)
    )
    explanations = [] if has_own_classes else [*_explain_classes(message, path, heads)]
    if kind == "ssd":
        explanations += _explain_heads(message, path, heads)
        explanations += _explain_backbone(message, path, backbone)
    return explanations


def explanation(path: str, value: Any, current: Any, source: str = "checkpoint") -> str:
    """The sentence for a field whose value is another one in the source of the weights."""
    return (
        f"The {source} has the shapes of {path}={_text(value)}, the configuration has "
        f"{_text(current)}: use --set {path}={_text(value)}"
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _explain_classes(
    message: Union[faster_rcnn_pb2.FasterRcnn, ssd_pb2.Ssd], path: str, heads: _Comparison
) -> Iterator[str]:
    """`num_classes`, from the difference of columns of class heads with the same anchors."""
    differences = set()
    for name, shape in heads.wanted.items():
        scope, _, last = name.rpartition("/")
        if last != "biases" or not scope.endswith(_CLASS_HEAD) or name not in heads.stored:
            continue
        anchors = _anchors_beside(scope, heads)
        if anchors is None:
            return
        differences.add((heads.stored[name][0] - shape[0]) / anchors)
    if len(differences) == 1:
        (difference,) = differences
        value = message.num_classes + difference
        if difference and value >= 1 and value == int(value):
            yield explanation(f"{path}.num_classes", int(value), message.num_classes)


def _anchors_beside(class_scope: str, heads: _Comparison) -> Optional[int]:
    """Anchors at each place; None if checkpoint and model do not have the same number."""
    parent = class_scope[: -len(_CLASS_HEAD)]
    if parent.startswith("SecondStage"):
        return 1
    for head in _BOX_HEADS:
        name = f"{parent}{head}/biases"
        if name in heads.wanted:
            size = heads.wanted[name]
            return size[0] // _BOX_CODE_SIZE if heads.stored.get(name) == size else None
    return None


def _explain_heads(message: ssd_pb2.Ssd, path: str, heads: _Comparison) -> Iterator[str]:
    kind = message.box_predictor.WhichOneof("box_predictor_oneof")
    predictor: Any = getattr(message.box_predictor, kind) if kind else None
    if not hasattr(predictor, "kernel_size"):
        return
    path = f"{path}.box_predictor.{kind}"
    if _only_one_is_depthwise(heads, predictor.use_depthwise):
        yield explanation(
            f"{path}.use_depthwise", not predictor.use_depthwise, predictor.use_depthwise
        )
        return
    sizes = {
        (tuple(heads.stored[name][:2]), tuple(shape[:2]))
        for name, shape in heads.wanted.items()
        if len(shape) == 4 and len(heads.stored.get(name, ())) == 4
    }
    theirs, ours = (max((pair[i] for pair in sizes), default=()) for i in range(2))
    current = predictor.kernel_size
    if theirs and theirs != ours == (current, current) and theirs[0] == theirs[1]:
        yield explanation(f"{path}.kernel_size", theirs[0], current)


def _explain_backbone(message: ssd_pb2.Ssd, path: str, backbone: _Comparison) -> Iterator[str]:
    extractor, path = message.feature_extractor, f"{path}.feature_extractor"
    common = [name for name in backbone.wanted if name in backbone.stored]
    if len(common) < _SAME_NETWORK * len(backbone.wanted):
        return
    if _only_one_is_depthwise(backbone, extractor.use_depthwise):
        yield explanation(
            f"{path}.use_depthwise", not extractor.use_depthwise, extractor.use_depthwise
        )
    widths = [
        (backbone.stored[name][-1], backbone.wanted[name][-1])
        for name in common
        if len(backbone.wanted[name]) == 4 and not name.endswith(_DEPTHWISE)
    ]
    differing = [(theirs, ours) for theirs, ours in widths if theirs != ours]
    if not differing:
        return
    theirs, ours = max(differing, key=lambda pair: pair[1])
    factor = theirs / ours
    agreeing = sum(
        abs(stored_size - model_size * factor)
        <= max(_WIDTH_ROUNDING, model_size * factor * _EXPANDED_ROUNDING)
        for stored_size, model_size in differing
    )
    value = round(extractor.depth_multiplier * factor, 2)
    if agreeing >= _SAME_MULTIPLIER * len(differing) and value > 0:
        current = round(extractor.depth_multiplier, 6)
        yield explanation(f"{path}.depth_multiplier", value, current)


def _only_one_is_depthwise(part: _Comparison, is_depthwise: bool) -> bool:
    """True if either the model or the checkpoint alone has depthwise layers.

    The layers themselves must be in both, without their depthwise parts in one of them.
    """
    stored, wanted = (
        {name for name in each if name.endswith(_DEPTHWISE)} for each in (part.stored, part.wanted)
    )
    larger, smaller = (wanted, stored) if is_depthwise else (stored, wanted)
    if not part.stored or not smaller < larger:
        return False
    layers = [name[: -len(_DEPTHWISE_PART)] for name in larger - smaller]
    return not smaller or all(
        f"{layer}/weights" in part.stored and f"{layer}/weights" in part.wanted for layer in layers
    )
