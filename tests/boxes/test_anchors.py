import json
import re

import numpy as np
import pytest
from google.protobuf import json_format, text_format

from estimator_det.boxes.anchors import SsdAnchors, make_anchor_generator
from estimator_det.boxes.geometry import clip_to_window
from estimator_det.compat import tf, tf1
from estimator_det.protos import anchor_generator_pb2, pipeline_pb2
from tests.conftest import MODELS, golden_component
from tests.faults import faults

SETTINGS, ARRAYS = golden_component("anchors")
RECT_MAPS = [(8, 16), (4, 8), (2, 4), (1, 2), (1, 1), (1, 1)]


KINDS = {
    "ssd": "ssd_anchor_generator",
    "multiscale": "multiscale_anchor_generator",
    "grid": "grid_anchor_generator",
    "flexible": "flexible_grid_anchor_generator",
}
# Fields for height and width, by the name of the pair in the golden files.
SIDES = {
    "base_anchor_size": ("base_anchor_height", "base_anchor_width"),
    "anchor_stride": ("height_stride", "width_stride"),
    "anchor_offset": ("height_offset", "width_offset"),
}


def golden_fields(kind, settings):
    """The fields of a message that has the settings of a golden case."""
    fields = dict(settings)
    if kind == "grid":
        defaults = [0.5, 1.0, 2.0]
        fields = {"scales": defaults, "aspect_ratios": defaults, **settings}
        if "base_anchor_size" in settings:
            fields["height"], fields["width"] = fields.pop("base_anchor_size")
    if kind == "flexible":
        grids = zip(*(settings[name] for name in ("base_sizes", "aspect_ratios")))
        sides = zip(settings["anchor_strides"], settings["anchor_offsets"])
        fields["anchor_grid"] = [
            {
                "base_sizes": sizes,
                "aspect_ratios": ratios,
                **dict(zip(SIDES["anchor_stride"], stride)),
                **dict(zip(SIDES["anchor_offset"], offset)),
            }
            for (sizes, ratios), (stride, offset) in zip(grids, sides)
        ]
    for name, (height, width) in SIDES.items():
        if name in fields:
            fields[height], fields[width] = fields[name]
        if kind == "ssd" and f"{name}s" in fields:
            fields[height], fields[width] = map(list, zip(*fields[f"{name}s"]))
    return fields


def golden_case(case):
    """Generator, feature-map shapes and image shape of a golden case."""
    settings = SETTINGS[case]
    kind = case.split("_")[0]
    message = {KINDS[kind]: golden_fields(kind, settings)}
    config = anchor_generator_pb2.AnchorGenerator()
    generator = make_anchor_generator(json_format.ParseDict(message, config, True))
    if case == "ssd_rect":
        return generator, RECT_MAPS, (256, 512)
    image = settings.get("im", (settings.get("im_height", 64), settings.get("im_width", 64)))
    return generator, settings["feature_maps"], tuple(image)


def check(case, anchors):
    rows = ARRAYS.get(f"{case}__rows", np.arange(len(anchors)))
    # Strides multiplied in another order differ in the last bits of pixel coordinates.
    np.testing.assert_allclose(anchors[rows], ARRAYS[case], rtol=1e-5, atol=1e-6)
    if f"{case}__sum" in ARRAYS:
        sums = anchors.sum(axis=0, dtype=np.float64)
        np.testing.assert_allclose(sums, ARRAYS[f"{case}__sum"], rtol=1e-5)


@pytest.mark.parametrize("case", sorted(SETTINGS))
def test_golden(case):
    generator, shapes, image = golden_case(case)
    with tf.Graph().as_default() as graph:
        tensor = generator.generate(shapes, image)
        assert tensor.dtype == tf.float32
        assert len(graph.get_operations()) == 1  # a constant
        # Tensors of known value are as good as numbers.
        generator.generate([tuple(map(tf.constant, pair)) for pair in shapes], image)
        assert {op.type for op in graph.get_operations()} == {"Const"}
    anchors = tf.get_static_value(tensor)
    check(case, anchors)
    settings = SETTINGS[case]
    assert generator.num_per_location == settings.get(
        "num_anchors_per_location", generator.num_per_location
    )
    counts = [h * w * k for (h, w), k in zip(shapes, generator.num_per_location)]
    assert counts == ARRAYS.get(f"{case}__counts", np.array(counts)).tolist()
    assert len(anchors) == sum(counts)


# Sides that are no multiples of the strides: the offset depends on whether they are known.
BY_KNOWN_SIDES = ["multiscale_rect_300x500"]


@pytest.mark.parametrize("case", sorted(set(SETTINGS) - set(BY_KNOWN_SIDES)))
def test_golden_with_sizes_known_only_at_run_time(case):
    generator, shapes, image = golden_case(case)
    counts = zip(shapes, generator.num_per_location)
    num_anchors = sum(height * width * number for (height, width), number in counts)
    with tf.Graph().as_default() as graph:
        sizes = tf1.placeholder(tf.int32, [len(shapes), 2])
        image_sizes = tf1.placeholder(tf.int32, [2])
        maps = [tuple(tf.unstack(row)) for row in tf.unstack(sizes)]
        anchors = generator.generate(maps, tuple(tf.unstack(image_sizes)))
        assert anchors.shape.as_list() == [None, 4]
        mixed = generator.generate(shapes, tuple(tf.unstack(image_sizes)))
        if is_normalized(generator):  # pixels come from the grids alone
            assert mixed.op.type != "Const"
        assert mixed.shape.as_list() == [num_anchors, 4]
    with tf1.Session(graph=graph) as session:
        feed = {sizes: shapes, image_sizes: image}
        for result in session.run([anchors, mixed], feed):
            check(case, result)


def is_normalized(generator):
    return isinstance(generator, SsdAnchors) or generator.normalized


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (MODELS / "pipelines").glob("*.config"))
)
def test_golden_configurations(name):
    golden = json.loads((MODELS / "configs" / f"{name}.json").read_text())
    sample = golden.get("anchors_sample")
    if sample is None:
        pytest.skip("the Object Detection API does not build this configuration")
    text = (MODELS / "pipelines" / f"{name}.config").read_text()
    model = text_format.Parse(text, pipeline_pb2.TrainEvalPipelineConfig()).model
    outputs = golden["prediction_dict_train"]
    if golden["model_type"] == "ssd":
        generator = make_anchor_generator(model.ssd.anchor_generator)
        maps = outputs["feature_maps"]
        image = outputs["preprocessed_inputs"]
    else:
        generator = make_anchor_generator(model.faster_rcnn.first_stage_anchor_generator)
        maps = [outputs["rpn_box_predictor_features"][0]]
        image = [None, 1, 1]  # a grid does not look at it
    anchors = generator.generate([shape[1:3] for shape in maps], image[1:3]).numpy()
    if not is_normalized(generator):  # recorded after clipping to an image that is not recorded
        rows = sample["first5"] + sample["last5"] + sample["rows20"]
        window = [0.0, 0.0, *np.max(rows, axis=0)[2:]]
        anchors = clip_to_window(tf.constant(anchors), tf.constant(window)).numpy()
    assert is_normalized(generator) == (golden["model_type"] == "ssd")
    assert len(anchors) == golden["num_anchors"]
    np.testing.assert_allclose(anchors[:5], sample["first5"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(anchors[-5:], sample["last5"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(anchors[sample["idx20"]], sample["rows20"], rtol=1e-5, atol=1e-6)
    absolute = np.abs(anchors.astype(np.float64)).sum()
    np.testing.assert_allclose(absolute, sample["abs_sum"], rtol=1e-6)


def make(text):
    return make_anchor_generator(text_format.Parse(text, anchor_generator_pb2.AnchorGenerator()))


def test_multiscale_offset_by_side():
    generator = make(
        "multiscale_anchor_generator { min_level: 5 max_level: 5 aspect_ratios: 1 "
        "anchor_scale: 1 scales_per_octave: 1 normalize_coordinates: false }"
    )
    anchors = generator.generate([(2, 1)], (64, 40)).numpy()
    # 64 is a multiple of the stride 32: centers at 16 and 48; 40 is not: centers at 0.
    np.testing.assert_allclose(anchors, [[0, -16, 32, 16], [32, -16, 64, 16]])
    assert not generator.normalized
    # 1 stands for a size that does not matter.
    np.testing.assert_allclose(generator.generate([(1, 1)], (1, 1)), [[0, 0, 32, 32]])
    with tf.Graph().as_default(), tf1.Session() as session:
        side = tf1.placeholder(tf.int32, [])
        images = ((side, side), (64, side))
        unknown = [generator.generate([(1, 1)], image) for image in images]
        found = session.run(unknown, {side: 40})
    np.testing.assert_allclose(found, [[[0, 0, 32, 32]], [[-16, -16, 16, 16]]])


@pytest.mark.parametrize("known", [0, 1])
def test_normalized_anchors_if_one_side_is_known_only_at_run_time(known):
    generator = make(
        "multiscale_anchor_generator { min_level: 5 max_level: 5 aspect_ratios: 1 "
        "anchor_scale: 1 scales_per_octave: 1 }"
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        sides = [tf1.placeholder(tf.int32, []) for _ in range(2)]
        image = [*sides[:known], (64, 40)[known], *sides[known + 1 :]]
        anchors = generator.generate([(1, 1)], image)
        found = session.run(anchors, dict(zip(sides, (64, 40))))
    np.testing.assert_allclose(found, [[-16 / 64, -16 / 40, 16 / 64, 16 / 40]], rtol=1e-6)


SSD_STRIDES = (
    "ssd_anchor_generator { num_layers: 1 scales: 0.5 aspect_ratios: 1 "
    "interpolated_scale_aspect_ratio: 0 reduce_boxes_in_lowest_layer: false "
    "base_anchor_height: 0.5 base_anchor_width: 2 height_stride: 50 width_stride: 100 %s }"
)


@pytest.mark.parametrize(
    ("offsets", "first_y", "first_x"),
    [
        ("", 0.125, 0.125),
        ("height_offset: 0 width_offset: 40", 0.0, 0.1),
        ("height_offset: 30 width_offset: 60", 0.15, 0.15),
    ],
)
def test_ssd_strides_offsets_and_base_size_by_hand(offsets, first_y, first_x):
    anchors = make(SSD_STRIDES % offsets).generate([(2, 2)], (200, 400)).numpy()
    # A box of scale 1 is as large as the shorter side: 200 of 200 pixels high, 200 of 400 wide.
    half_height, half_width = 0.5 * 0.5 / 2, 0.5 * 2 * 0.5 / 2
    centers = [
        (first_y + 0.25 * row, first_x + 0.25 * column) for row in (0, 1) for column in (0, 1)
    ]
    expected = [
        [y - half_height, x - half_width, y + half_height, x + half_width] for y, x in centers
    ]
    np.testing.assert_allclose(anchors, expected, atol=1e-7)


def test_scales_beyond_the_layers_only_end_the_last_one():
    text = "num_layers: 1 scales: [%s] aspect_ratios: 1 reduce_boxes_in_lowest_layer: false"
    for scales, interpolated in (("0.25", 0.5), ("0.25, 0.64, 0.9", 0.4)):
        generator = make(f"ssd_anchor_generator {{ {text % scales} }}")
        boxes = generator.generate([(1, 1)], (8, 8)).numpy()
        np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], [[0.25] * 2, [interpolated] * 2])
        assert tuple(generator.num_per_location) == (2,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ssd_anchor_generator { scales: [0.1, 0.2] }", r"scales: has 2 values for 6 layers"),
        ("ssd_anchor_generator { interpolated_scale_aspect_ratio: 0 }", "aspect_ratios: is empty"),
        ("ssd_anchor_generator { height_stride: 8 }", "height_stride: has 1 value and width_"),
        ("ssd_anchor_generator { height_offset: 8 width_offset: 8 }",
         "height_offset: has 1 value and width_offset has 1, for 6 layers"),
        ("grid_anchor_generator { aspect_ratios: 1 }", "is empty: there are no anchors"),
        ("multiscale_anchor_generator {}", "is empty: there are no anchors"),
        ("multiscale_anchor_generator { min_level: 8 }", "not be above max_level; given: 8 and 7"),
        ("flexible_grid_anchor_generator {}", "anchor_grid: is empty"),
        ("flexible_grid_anchor_generator { anchor_grid { base_sizes: [1, 2] aspect_ratios: 1 } }",
         r"anchor_grid\[0\].base_sizes: has 2 values, and aspect_ratios has 1"),
    ],
)  # fmt: skip
def test_contradictions_are_errors(text, message):
    assert re.search(message, faults(anchor_generator_pb2.AnchorGenerator(), text))
