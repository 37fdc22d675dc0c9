import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.protos import input_reader_pb2
from inputs.bad_records.policy import make_policy
from inputs.checks.examine import examine_record
from inputs.datasets import writer
from inputs.decoding.decoder import make_decoder

PIXELS = np.full((4, 6, 3), 100, np.uint8)


def _values(example, key):
    feature = example.features.feature[key]
    return list(getattr(feature, feature.WhichOneof("kind")).value)


def test_example_holds_what_is_given():
    encoded = writer.encode_image(PIXELS, "png")
    keypoints = np.array([[[0.1, 0.2], [np.nan, np.nan]]])
    annotations = writer.Annotations([[0, 0.25, 0.5, 1]], [3], weights=[0.5], keypoints=keypoints)
    example = writer.make_example(encoded, annotations, filename="a.png")
    expected = {
        "encoded": [encoded], "format": [b"png"], "source_id": [b"a.png"], "height": [4],
        "object/bbox/xmin": [0.25], "object/weight": [0.5], "object/keypoint/visibility": [2, 0],
    }  # fmt: skip
    for key, values in expected.items():
        assert _values(example, f"image/{key}") == values
    assert "image/object/difficult" not in example.features.feature


def test_our_reader_decodes_an_image_without_objects():
    names = {"class_names": [], "weights": [], "is_crowd": [], "masks": []}
    keypoints = np.zeros((0, 2, 2))
    annotations = writer.Annotations(np.zeros((0, 4)), [], keypoints=keypoints, **names)
    example = writer.make_example(writer.encode_image(PIXELS), annotations, filename="a.jpg")
    reader = input_reader_pb2.InputReader(load_instance_masks=True, mask_type="PNG_MASKS")
    reader.num_keypoints = 2
    with tf.Graph().as_default(), tf1.Session() as session:
        sample = make_decoder(reader)(tf.constant(example.SerializeToString()))
        boxes, classes = session.run((sample.boxes, sample.classes))
    assert (boxes.shape, classes.shape) == ((0, 4), (0,))
    assert examine_record(example.SerializeToString(), make_policy(reader)).faults == []


def test_the_background_is_no_class():
    with pytest.raises(ValueError, match="start at 1"):
        writer.write_label_map({0: "background"}, "unused")


def test_unreadable_image_is_named():
    with pytest.raises(ValueError, match=r"broken\.jpg: not a readable image"):
        writer.make_example(b"no image", writer.Annotations([], []), filename="broken.jpg")


def test_records_go_to_shards_in_turn_and_a_failure_leaves_none(tmp_path):
    def examples(is_whole):
        for index in range(5):
            encoded = writer.encode_image(PIXELS)
            yield writer.make_example(encoded, writer.Annotations([], []), filename=f"{index}.jpg")
        if not is_whole:
            raise RuntimeError("source failed")

    folder = tmp_path / "new"
    path = str(folder / "train.record")
    with pytest.raises(RuntimeError, match="source failed"):
        writer.write_sharded(examples(False), path, 2)
    assert all(file.suffix == ".incomplete" for file in folder.iterdir())
    writer.write_sharded(examples(True), path, 2)
    assert sorted(file.name for file in folder.iterdir()) == [
        "train.record-00000-of-00002", "train.record-00001-of-00002",
    ]  # fmt: skip
    records = tf.data.TFRecordDataset(path + "-00000-of-00002").as_numpy_iterator()
    found = map(tf.train.Example.FromString, records)
    names = [_values(example, "image/filename")[0] for example in found]
    assert names == [b"0.jpg", b"2.jpg", b"4.jpg"]
