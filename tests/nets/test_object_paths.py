"""Paths of layers in object-based checkpoints, by hand."""

from estimator_det.nets import object_paths


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
