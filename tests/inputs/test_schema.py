from __future__ import annotations

from inputs import schema


def test_every_key_has_a_specification() -> None:
    keys = {
        value
        for name, value in vars(schema).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    assert keys == set(schema.FEATURES) | set(schema.LABELS)
    assert not set(schema.FEATURES) & set(schema.LABELS)


def test_specifications_use_the_letters_of_the_docstring() -> None:
    assert schema.__doc__ is not None
    for key, spec in {**schema.FEATURES, **schema.LABELS}.items():
        axes = spec.shape.split()
        assert axes[0] == "B", key
        for axis in axes[1:]:
            assert axis.isdigit() or axis in "GKPHWCASFM", key
        assert spec.dtype in ("float32", "int32", "int64", "uint8", "bool", "string"), key


def test_names_that_files_and_programs_rely_on() -> None:
    assert schema.IMAGE == "image"
    assert schema.HASH == "hash"
    assert schema.NUM_BOXES == "num_groundtruth_boxes"
    assert schema.CLASSES == "groundtruth_classes"
    assert schema.ORIGINAL_SPATIAL_SHAPE == "original_image_spatial_shape"


def test_fields_per_box() -> None:
    assert set(schema.Sample._fields) - set(schema.PER_BOX_FIELDS) == {"image", "image_level"}
    # Code that makes samples by position relies on the first four.
    assert schema.Sample._fields[:4] == ("image", "boxes", "classes", "weights")
