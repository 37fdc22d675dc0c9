from estimator_det.protos import input_reader_pb2
from inputs.bad_records import kinds
from inputs.bad_records.kinds import CLIP, FAIL, KEEP, SKIP
from tests.faults import faults


def test_policies():
    reference = kinds.resolve_actions(kinds.REFERENCE, {})
    assert {reference[kind] for kind in ("box_nan", "unknown_text", "too_many_boxes")} == {CLIP}
    assert reference["box_outside"] == reference["label_contradiction"] == KEEP
    assert reference["damaged_record"] == reference["box_inverted"] == FAIL
    fail = kinds.resolve_actions("fail", {})
    assert {kind for kind, action in fail.items() if action != FAIL} == {
        "corrupt_image",
        "exif_rotation",
    }
    skip = kinds.resolve_actions("skip", {})
    assert skip["box_outside"] == skip["truncated_image"] == skip["label_contradiction"] == SKIP
    assert skip["unknown_text"] == skip["too_many_boxes"] == CLIP
    clip = kinds.resolve_actions("clip", {"box_nan": "fail"})
    assert clip["box_outside"] == clip["unknown_id"] == CLIP
    assert clip["size_mismatch"] == KEEP
    assert clip["huge_image"] == SKIP
    assert clip["box_nan"] == FAIL
    for kind, message in (
        ("corrupt_image", "'corrupt_image', which only check-data finds"),
        ("box_nans", "did you mean 'box_nan'"),
    ):
        text = f"exception {{ kind: '{kind}' policy: FAIL }}"
        assert message in faults(input_reader_pb2.BadRecords(), text)
