from __future__ import annotations

from model_fn.checkpoints import networks


def test_scopes_of_a_detector_are_those_in_its_extractors_the_largest_first() -> None:
    names = [
        "FirstStageFeatureExtractor/small/w",
        *(f"SecondStageFeatureExtractor/large/{name}" for name in "abc"),
        "FirstStageFeatureExtractor/small/w/Momentum",
        "SecondStageBoxPredictor/w",
        "optimizer/beta1_power",
        "other/w",
    ]
    scopes = networks.network_scopes(names)
    assert list(scopes.items()) == [
        ("SecondStageFeatureExtractor/large", 3),
        ("FirstStageFeatureExtractor/small", 1),
    ]
    text = networks.scopes_text(scopes)
    assert text.startswith("SecondStageFeatureExtractor/large (3 variables), First")


def test_scopes_of_a_classifier_are_its_outermost() -> None:
    names = ["MobilenetV1/a", "MobilenetV1/b/c", "scope/beta2_power", "global_step"]
    assert networks.network_scopes(names) == {"MobilenetV1": 2}
