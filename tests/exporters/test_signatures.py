import pytest

from estimator_det.config.text import ConfigError
from exporters import signatures


def test_input_types():
    assert signatures.resolve_input_types(["all"]) == signatures.INPUT_TYPES
    assert signatures.resolve_input_types(["tf_example", "image_tensor"]) == (
        "tf_example",
        "image_tensor",
    )
    with pytest.raises(ConfigError, match="did you mean 'image_tensor'"):
        signatures.resolve_input_types(["image_tensr"])
    with pytest.raises(ConfigError, match="only once"):
        signatures.resolve_input_types(["tf_example", "tf_example"])
    with pytest.raises(ConfigError, match="give at least one"):
        signatures.resolve_input_types([])


def test_input_shape():
    assert signatures.parse_input_shape("") is None
    assert signatures.parse_input_shape("1, 300,-1,None") == [1, 300, None, None]
    for text, message in (
        ("1,300,300", "has 3 sizes"),
        ("1,300,0,3", "'0' is not a size"),
        ("1,a,300,3", "'a' is not a size"),
    ):
        with pytest.raises(ConfigError, match=message):
            signatures.parse_input_shape(text)
