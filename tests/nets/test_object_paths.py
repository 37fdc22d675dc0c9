"""Paths of layers in object-based checkpoints, on a few layers by hand."""

from estimator_det.nets import object_paths, resnet
from estimator_det.nets.necks import fpn, pyramids


def test_branches_count_in_turn_from_their_join_backwards():
    assert object_paths.joined("ab", "wxyz") == list("wxaybz")
    unit = "block2/unit_1/bottleneck_v1/"
    layers = [f"{unit}{layer}" for layer in ("shortcut", "conv1", "conv2", "conv3")]
    scopes = [scope for layer in layers for scope in (layer, f"{layer}/BatchNorm")]
    order = resnet.keras_order(["conv1", "conv1/BatchNorm", *scopes])
    assert [scope.removeprefix(unit) for scope in order] == [
        *("conv1", "conv1/BatchNorm", "conv1", "conv1/BatchNorm", "conv2", "conv2/BatchNorm"),
        *("shortcut", "conv3", "shortcut/BatchNorm", "conv3/BatchNorm"),
    ]


def test_variables_have_the_names_of_keras():
    names = ["a/depthwise_weights", "a/BatchNorm/gamma", "a/weights/Momentum", "b/biases"]
    scopes = object_paths.layer_scopes(names)
    assert scopes == ["a", "a/BatchNorm", "b"]
    paths = object_paths.nested("model", object_paths.functional(scopes))
    assert object_paths.variable_paths(names, paths) == {
        "a/depthwise_weights": "model/layer_with_weights-0/depthwise_kernel",
        "a/BatchNorm/gamma": "model/layer_with_weights-1/gamma",
        "b/biases": "model/layer_with_weights-2/bias",
    }
    assert object_paths.classifier_paths(
        {"a": "x/classification_backbone/0", "b": "x/z"}, "x/"
    ) == {"a": "feature_extractor/0"}


def test_lists_of_necks():
    scopes = ["fpn/projection_3", "fpn/projection_2", "fpn/smoothing_2", "fpn/projection_1",
              "fpn/smoothing_1", "fpn/smoothing_1/BatchNorm", "fpn/bottom_up_block5"]  # fmt: skip
    assert fpn.object_paths(["block1/conv", *scopes], prefix="") == {
        "fpn/projection_3": "fpn_features_generator/top_layers/0",
        "fpn/projection_2": "fpn_features_generator/residual_blocks/0/0",
        "fpn/smoothing_2": "fpn_features_generator/conv_layers/0/0",
        "fpn/projection_1": "fpn_features_generator/residual_blocks/1/0",
        "fpn/smoothing_1": "fpn_features_generator/conv_layers/1/0",
        "fpn/smoothing_1/BatchNorm": "fpn_features_generator/conv_layers/1/1",
        "fpn/bottom_up_block5": "coarse_feature_layers/0/0",
    }
    name = "layer_19_2_Conv2d_2_3x3_s2_512"
    scopes = ["layer_19", "layer_19_1_Conv2d_2_1x1_256", f"{name}_depthwise",
              f"{name}_depthwise/BatchNorm", name]  # fmt: skip
    places = [0, 3, 4, 6]
    assert pyramids.object_paths(scopes) == {
        scope: f"feature_map_generator/convolutions/2/{place}"
        for scope, place in zip(scopes[1:], places)
    }
