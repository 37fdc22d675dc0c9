"""`estimator-det init`: what it decides, and the file that it writes."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, Sequence

import numpy as np
import pytest

from estimator_det.config import pipeline
from estimator_det.errors import UsageError
from estimator_det.programs import (
    cli,
    console,
    starter,
    starter_boxes,
    starter_models,
    starter_plan,
    starter_small,
    starter_text,
    step_speed,
)
from estimator_det.programs.pretrained import Pretrained, find_model
from estimator_det.programs.starter import Budget, Draft
from estimator_det.programs.step_speed import Speed
from inputs.checks.statistics import Columns, join
from inputs.datasets import figures, shapes
from model_fn.checks import config_check, data_check
from model_fn.checks.anchor_coverage import Coverage, MapAnchors
from tests import small_extractor
from tests.programs.test_step_speed import CONVOLUTIONS, FAST


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("records[1]"))
    with open(shapes.make_dataset(folder, seed=0, size="tiny").label_map, "a") as file:
        file.write("item { id: 5 name: 'hexagon' }")
    return folder


@pytest.fixture(scope="module")
def figure_records(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("figures"))
    figures.make_dataset(folder, seed=0, size="tiny")
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(_: Any, precisions: Sequence[str] = (FAST.precision,)) -> List[Speed]:
        return [FAST, CONVOLUTIONS][: len(precisions)]

    monkeypatch.setattr(step_speed, "measure", measure)
    monkeypatch.setattr(
        step_speed, "own_precisions", lambda _: [each.precision for each in (FAST, CONVOLUTIONS)]
    )


@pytest.fixture
def small_network(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with the strides of MobileNet, which is built in no time."""
    small_extractor.use(monkeypatch, 6, 16)


def columns_of(boxes: List[List[float]], num_images: int = 10) -> Columns:
    count = len(boxes)
    return Columns(
        sizes=np.full([num_images, 2], 500, np.int32),
        source_ids=[str(number) for number in range(num_images)],
        images=np.sort(np.arange(count) % num_images),
        boxes=np.asarray(boxes, np.float32).reshape(-1, 4),
        class_ids=np.ones(count, np.int32),
        contents=np.zeros(num_images, np.int64),
    )


def config_of(model: str) -> Any:
    return starter.base_config(model, None, starter.Records("train*", "val*", "label_map.pbtxt"))


@pytest.mark.parametrize(
    "model",
    [
        model
        if model.name
        in ("ssd_mobilenet_v1", "mask_rcnn_inception_v2", "centernet_resnet50_fpn_keypoints")
        else pytest.param(model, marks=pytest.mark.exhaustive)
        for model in starter_models.MODELS
    ],
    ids=lambda model: model.name,
)
def test_each_model_gives_a_short_file_that_can_be_run(model, records, figure_records, quick):
    records = figure_records if "keypoints" in model.name else records
    plan = starter_plan.make_plan(records, Budget(num_steps=1), model=model.name, weights=None)
    text = starter_text.commented(plan.config, plan.reasons, ["estimator-det init"])
    assert pipeline.parse_pipeline(text) == plan.config
    assert not [p for p in config_check.check(plan.config).problems if p.severity == "error"]


def test_the_verb_writes_its_command_and_what_to_expect(records, small_network, tmp_path, capsys):
    arguments = ["init", "--records", records, "--hours", "0.1", "--output_dir", str(tmp_path)]
    assert cli.main(arguments) == console.EXIT_OK
    text = (tmp_path / "pipeline.config").read_text()
    assert text.startswith(f"# estimator-det init --records '{records}' --hours 0.1 --output_dir")
    # 360 s, of which 85 % are for steps, less 25 s for the start.
    config = pipeline.parse_pipeline(text)
    assert config.train_config.num_steps == 3500
    assert config.eval_config.eval_interval_steps == 3500 / 4  # so `train` needs no option
    printed = capsys.readouterr().out
    assert "Expect: 3,500 steps of 8 images" in printed
    assert "0.08 s a step here with --precision auto, 0.10 s without, so about 6 min" in printed
    assert "so never found: 1 class, 'hexagon'" in printed
    assert "ssd_random_crop" in text  # 437 passes over 64 images
    assert "--precision auto" in printed
    assert cli.main(arguments) == console.EXIT_USAGE
    assert "Add --overwrite" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite"]) == console.EXIT_OK


def test_a_data_set_is_converted_first(small_network, tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations").mkdir()
    for number in range(12):
        image = Image.fromarray(np.full([64, 64, 3], 20 * number, np.uint8))
        image.save(tmp_path / "images" / f"{number}.jpg")
        cats = "<object><name>cat</name><bndbox><xmin>8</xmin><ymin>8</ymin><xmax>40</xmax>" \
            "<ymax>48</ymax></bndbox></object>" * (9 if number == 7 else 1)  # fmt: skip
        (tmp_path / "annotations" / f"{number}.xml").write_text(
            f"<annotation><filename>{number}.jpg</filename>{cats}</annotation>"
        )
    (tmp_path / "val.txt").write_text("3.jpg\n7.jpg\n")
    arguments = ["init", "images", "--from", "voc", "--annotations", "annotations",
                 "--num_train_steps", "5", "--split", "train,val=val.txt",
                 "--output_dir", "out"]  # fmt: skip
    cut = tmp_path / "images" / "0.jpg"
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-99])
    assert cli.main(arguments) == console.EXIT_FAILED
    assert (
        "\n  estimator-det convert --from pascal_voc --to tfrecord --images images --annotations "
        "annotations --split train,val=val.txt --output_dir out/records\n"
    ) in capsys.readouterr().err
    cut.write_bytes(whole)
    assert cli.main(arguments) == console.EXIT_OK
    text = (tmp_path / "out" / "pipeline.config").read_text()
    assert "label_map.pbtxt: cat." in text and "num_steps: 5" in text
    assert text.count("max_number_of_boxes: 16") == 2, "the fullest image is held out"
    (tmp_path / "out" / "records" / "val.record-00000-of-00001").write_bytes(b"")
    assert cli.main(["init", "out/records", "--output_dir", "new"]) == console.EXIT_FAILED
    assert "val.record* has no image to evaluate on" in capsys.readouterr().err


ABSENT = ["absent", "--from", "labelme", "--annotations", "absent", "--output_dir", "o"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--records", "r"], "needs --output_dir"),
        (
            [],
            "DIR, a folder that `convert` has written, or --from FORMAT with --images and "
            "--annotations; and --output_dir DIR",
        ),
        (["--records", "r", "--from", "voc", "--output_dir", "o"], "give --records DIR"),
        (["--records", "r", "--images", "i", "--output_dir", "o"], "--images has no effect"),
        (["--records", "r", "--hours", "no", "--output_dir", "o"], "is not a time"),
        (["r", "--records", "s"], "r and --records s are given"),
        (["--list", "--hours", "1"], "--hours has no effect with --list"),
        # Before the data are looked at.
        ([*ABSENT, "--model", "ssdlite_mobilnet_v2"], "mean 'ssdlite_mobilenet_v2'? `est"),
        ([*ABSENT, "--pretrained", "ssd_mobilnet_v2_coco"], "did you mean 'ssd_mobilenet_v2_coco"),
    ],
)
def test_wrong_usage(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        assert cli.main(["init", *arguments]) == console.EXIT_USAGE
    except SystemExit as reason:
        assert reason.code == console.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_models_are_listed(capsys):
    assert cli.main(["init", "--list"]) == console.EXIT_OK
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == [each.name for each in starter_models.MODELS]
    for line, model in zip(lines, starter_models.MODELS):
        published = find_model(model.zoo)
        assert starter.extractor_type(config_of(model.name)) == published.extractor
        assert line.split()[1] == published.line
        assert line.endswith(published.name) and f" {published.quality}  {published.speed} " in line


def test_a_folder_without_held_out_records_is_refused(tmp_path):
    (tmp_path / "train.record-00000-of-00001").touch()
    with pytest.raises(FileNotFoundError, match=r"parts found: train.*--split train=0.8,val=0.2"):
        starter_plan.find_records(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="there is no folder absent"):
        starter_plan.find_records("absent")


def photographs(side: int) -> Columns:
    return columns_of([])._replace(sizes=np.array([[side, side + 400]] * 2 + [[10, 10]]))


def boxes(number: int) -> List[str]:
    readers = ("train_input_reader", "eval_input_reader[0]")
    return [f"{reader}.max_number_of_boxes={number}" for reader in readers]


SSD, MASK_RCNN = "ssd_mobilenet_v1", "mask_rcnn_inception_v2"
FEW, MANY = columns_of([]), columns_of([], num_images=5000)
MATCHING = [
    "model.ssd.matcher.argmax_matcher.matched_threshold=0.4",
    "model.ssd.matcher.argmax_matcher.unmatched_threshold=0.4",
    "model.ssd.loss.localization_weight=2.0",
]
FAST_JPEG = ["train_input_reader.fast_jpeg=true", "eval_input_reader[0].fast_jpeg=true"]
NARROW = ["model.ssd.feature_extractor.depth_multiplier=0.5"]
NMS = "model.ssd.post_processing.batch_non_max_suppression"
MANY_DETECTIONS = [f"{NMS}.max_detections_per_class=272", f"{NMS}.max_total_detections=272"]
BATCH = "train_config.batch_size"


@pytest.mark.parametrize(
    "model, decide, arguments, assignments",
    [
        (SSD, starter.set_matching, (FEW,), MATCHING),
        (SSD, starter.set_matching, (MANY,), []),
        (MASK_RCNN, starter.set_matching, (FEW,), []),
        (SSD, starter.set_decoding, (photographs(1200),), FAST_JPEG),
        (SSD, starter.set_decoding, (photographs(500),), []),
        (MASK_RCNN, starter.set_decoding, (photographs(1200),), []),
        (SSD, starter.set_width, (40.0,), NARROW),
        (SSD, starter.set_width, (400.0,), []),
        ("ssd_resnet50_fpn", starter.set_width, (40.0,), []),
        (SSD, starter.set_batch, (FEW, FAST, 3 * 10**9), [f"{BATCH}=8"]),
        (SSD, starter.set_batch, (FEW, FAST, 10**9), [f"{BATCH}=4"]),
        (SSD, starter.set_batch, (MANY, FAST, 2**40), [f"{BATCH}=16"]),
        (SSD, starter.set_boxes, (np.array([2, 130]),), [*boxes(136), *MANY_DETECTIONS]),
        (SSD, starter.set_boxes, (np.array([2, 3]),), boxes(8)),
    ],
)
def test_decisions(model, decide, arguments, assignments):
    draft = Draft(config_of(model))
    decide(draft, *arguments)
    assert draft.config == pipeline.apply_overrides(config_of(model), assignments)
    assert bool(draft.reasons) == bool(assignments)


@pytest.mark.parametrize(
    "names, flips", [(["cat", "dog"], True), (["left_hand", "right_hand"], False)]
)
def test_classes_with_a_side_are_not_mirrored(names, flips):
    draft = Draft(config_of("ssd_mobilenet_v1"))
    starter.set_augmentation(draft, names)
    text = str(draft.config.train_config) + str(draft.reasons)
    assert ("random_horizontal_flip" in text) == flips
    assert "random_vertical_flip" not in text
    assert "ssd_random_crop" in text and "cropped" in text
    starter.set_augmentation(draft, names, crops=False)
    assert "crop" not in str(draft.config.train_config) + str(draft.reasons)


@pytest.mark.parametrize("model", ["ssd_mobilenet_v1", "faster_rcnn_resnet50"])
def test_anchors_follow_from_elongated_boxes(model, small_network):
    config = config_of(model)
    generator = np.random.default_rng(0)
    corners = generator.uniform(0.0, 0.4, [40, 2])
    extents = generator.uniform([0.03, 0.3], [0.06, 0.5], [40, 2])  # wide and low
    columns = columns_of(np.concatenate([corners, corners + extents], axis=1).tolist())
    before = data_check.coverage_of(config, columns, progress=False)
    after = starter_boxes.fit(config, columns, {}, has_heads=False)
    assert after.coverage.best_iou.mean() > before.best_iou.mean() + 0.1
    assert f"{after.coverage.best_iou.mean():.2f} on average" in after.reason
    if model == "ssd_mobilenet_v1":
        ratios = after.config.model.ssd.anchor_generator.ssd_anchor_generator.aspect_ratios
        assert max(ratios) == 10  # Some boxes are even wider.
        # Heads that are restored keep their anchors only if each class has enough of them.
        large = columns_of([[0.1, 0.1, 0.6, 0.6]] * 1000, num_images=1000)
        both = join([large, columns._replace(class_ids=columns.class_ids + 1)])
        assert (both.class_ids == 2).mean() < starter_boxes.MANY_UNMATCHED
        kept = starter_boxes.fit(config, large, {}, has_heads=True)
        assert (kept.config, kept.reason[:5]) == (config, "Those")
        assert not starter_boxes.fit(config, both, {}, has_heads=True).reason.startswith("Those")


RARE = {1: "common", 2: "rare"}


def coverage(
    size: int, unmatched: Dict[int, float], part: float = 0.2, stride: int = 16
) -> Coverage:
    """100 boxes of each class, of which a share has no anchor; class 2 is `part` of an image."""
    ids = np.repeat(list(unmatched), 100)
    poor = np.concatenate([np.arange(100) < 100 * share for share in unmatched.values()])
    sides = np.where(ids == 2, size * part, 40.0)
    level = MapAnchors((size // stride, size // stride), 1, np.ones([1, 2]), len(ids))
    return Coverage(
        pixels=np.stack([sides, sides], axis=1), class_ids=ids, best_iou=np.full(len(ids), 0.6),
        num_anchors=np.ones(len(ids)), below=poor, poor=poor, reasons={},
        maps=[level, level._replace(size=(1, 1), num_best=0)], input_sizes=[(size, size)],
        threshold=0.4, background=0.4, forced=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "limits", "part", "size", "larger", "reason"),
    [
        # A class with anchors at every size is found from 2 cells of 16 pixels on.
        (lambda s: 0.0, (50.0,), 0.08, 416, None, "At 300 pixels a class is too small"),
        # Images are so few that these passes are few steps.
        (lambda s: 0.0, (50.0, math.inf, 60.0), 0.08, 288, 416, "300 pixels would allow 50"),
        # The rare class decides, although the common one has anchors at every size.
        (
            lambda s: 250 / s - 0.5,
            (None,),
            0.2,
            428,
            None,
            r"At 300 pixels 3.% of the boxes of 'rare'",
        ),
        (lambda s: 0.0, (None,), 0.2, 300, None, "At this size 100% of the boxes of each class"),
        # Half of the size gives 200 passes.
        (lambda s: 0.0, (50.0,), 0.2, 160, None, "300 pixels would allow 50 passes"),
        # Time or memory forbid the size that the class needs.
        (lambda s: 250 / s - 0.5, (10.0,), 0.2, 288, 448, "300 pixels would allow 10"),
        # No larger input helps, even if it shows more pixels of a class that no anchor fits.
        (lambda s: 0.9, (None,), 0.2, 300, 600, "At this size 10% of the boxes"),
        (lambda s: 0.95, (None,), 0.02, 300, 600, "At this size nearly no box of 'rare' matches"),
    ],
)
def test_the_size_of_the_input_leaves_no_class_without_anchors(
    shares, limits, part, size, larger, reason
):
    def at(size: int) -> starter_boxes.Fit:
        share = min(max(shares(size), 0.0), 1.0)
        return starter_boxes.Fit(None, coverage(size, {1: 0.0, 2: share}, part))

    limits = starter_boxes.SizeLimits(*limits)
    chosen, beyond, why = starter_boxes._choose_size(300, limits, at, RARE, 32)
    assert (chosen, beyond and beyond.coverage.input_sizes[0][0]) == (size, larger), why
    assert re.match(reason, why), why
    lines = starter_boxes._lines(at(size), columns_of([[0, 0, 1, 1]]), beyond, RARE)
    assert ("would match none" in lines[-1]) == (larger == 448)


@pytest.mark.parametrize(
    ("side", "needs_finer", "text"),
    [
        (0.12, False, ""),
        # An input that is a little larger costs less than a pyramid.
        (0.105, False, r"below 31 pixels.*be 32.*an input of 305 pixels, or --model ssd_mob"),
        (0.08, True, "an input of 400 pixels, or --model ssd_mobilenet_v2_fpnlite_keras"),
        # Tiles of 84 pixels would cut most boxes of 75.
        (0.02, True, r"below 6 pixels of the input of 300x300; it.*be 32.*--tiles 125"),
    ],
)
def test_a_class_of_small_boxes_gets_a_finer_map_or_a_line(side, needs_finer, text):
    wide = columns_of([[0.1, 0.1, 0.1 + side * factor, 0.25] for factor in (1, 1.2) * 20])
    wide = wide._replace(class_ids=np.int32([1, 2] * 20))
    assert starter_small.needs_finer_map(wide) == needs_finer
    lines = starter_small.small_classes(wide, (300, 300), 16, RARE)
    assert re.search(text, lines.get(1, "")) and bool(lines) == bool(text), lines
    assert len({re.search(r"--tiles \d+", line)[0] for line in lines.values()}) <= 1
    # Tiles as large as the image are none.
    wide.boxes[:, 3] = 0.9
    lines = starter_small.small_classes(wide, (20, 20), 8, RARE)
    assert all(line.endswith("Give pictures from a shorter distance") for line in lines.values())
    # Whatever the feature map, fewer pixels than 16 show no shape.
    assert bool(starter_small.small_classes(wide, (144, 144), 4, RARE)) == (side < 0.11)


def test_tiles_fit_the_published_input_and_name_classes_that_they_lose():
    both = columns_of([[0.1, 0.1, 0.6, 0.6], [0.1, 0.1, 0.104, 0.104]] * 10)
    both = both._replace(class_ids=np.int32([1, 2] * 10), sizes=np.full([10, 2], 3750))
    for size in (1000, 160):
        (line,) = starter_small.small_classes(both, (size, size), 8, RARE, 320).values()
        assert re.search("--tiles 270,.* boxes of 'common' are too large for such tiles$", line)


def test_a_map_that_no_box_uses_gives_way_to_a_finer_one():
    size = "model.ssd.image_resizer.fixed_shape_resizer"
    changes = [f"{size}.height=160", f"{size}.width=160"]
    config = pipeline.apply_overrides(config_of("ssd_mobilenet_v1_fpnlite"), changes)
    corners = np.random.default_rng(0).uniform(0.0, 0.9, [40, 2])
    columns = columns_of(np.concatenate([corners, corners + 0.04], axis=1).tolist())
    fit = starter_boxes.fit(config, columns, {}, has_heads=False)
    levels = fit.config.model.ssd.feature_extractor.fpn
    anchors = fit.config.model.ssd.anchor_generator.multiscale_anchor_generator
    assert (levels.min_level, levels.max_level) == (2, 6)
    assert (anchors.min_level, anchors.max_level) == (2, 6)
    assert fit.coverage.maps[0].size == (40, 40)


@pytest.mark.parametrize(
    "budget, is_fine_tuned, steps",
    [
        (Budget(num_steps=77), False, 77),
        (Budget(hours=1.0), False, 25240),  # (3,600 s - 600 s) * 0.85 - 25 s, at 0.1 s, rounded
        (Budget(), True, 500),  # 30 passes are fewer
        (Budget(), False, 3000),
    ],
)
def test_steps_follow_from_the_budget(budget, is_fine_tuned, steps):
    assert starter.num_steps(budget, 10, 8, is_fine_tuned, 0.1, evaluation_secs=600)[0] == steps


@pytest.mark.parametrize("secs, number", [(10.0, 4), (300.0, 3), (2000.0, 1), (0.0, 4)])
def test_evaluations_take_at_most_a_quarter_of_the_time(secs, number):
    assert starter.num_evaluations(Budget(hours=1.0), secs) == number


def test_weights_keep_their_anchors_and_classes_are_replaced(records, small_network, tmp_path):
    theirs = config_of("ssdlite_mobilenet_v2")
    theirs.model.ssd.num_classes = 90
    theirs.model.ssd.anchor_generator.ssd_anchor_generator.min_scale = 0.15
    weights = Pretrained("weights", str(tmp_path), "model.ckpt", "detection", None, theirs)
    plan = starter_plan.make_plan(records, Budget(), model=None, weights=weights)
    ssd = plan.config.model.ssd
    assert (ssd.num_classes, ssd.feature_extractor.type) == (5, "ssd_mobilenet_v2")
    assert ssd.feature_extractor.use_depthwise
    assert ssd.anchor_generator == theirs.model.ssd.anchor_generator
    assert plan.config.train_config.fine_tune_checkpoint == "model.ckpt"
    assert plan.config.train_config.load_all_detection_checkpoint_vars
    with pytest.raises(UsageError, match="have ssd_mobilenet_v2"):
        starter_plan.make_plan(records, Budget(), model="ssd_mobilenet_v1", weights=weights)


@pytest.mark.usefixtures("small_network")
@pytest.mark.parametrize(("hours", "height"), [(None, 600), (1.0, 600), (0.1, 300)])
def test_weights_take_larger_inputs_only_if_time_allows(hours, height):
    draft = Draft(config_of("ssdlite_mobilenet_v2"))
    columns = columns_of([[0.5, 0.5, 0.53, 0.53]] * 2000, 2000)
    starter_plan._set_sizes(draft, columns, Budget(hours=hours), {1: "bee"}, True)
    assert draft.config.model.ssd.image_resizer.fixed_shape_resizer.height == height
    assert "0.08 of a pass over the data, which is little" in starter_plan._passes(0.08, True, 99)
    for is_fine_tuned, images in [(False, 2399), (False, 2400), (True, 2399)]:
        text = starter_plan._passes(25.2, is_fine_tuned, images)
        assert (text == "25 passes over the data") == (is_fine_tuned or images > 2399)


def test_the_chosen_size_of_centernet_is_too_small_for_a_class():
    draft, columns = Draft(config_of("centernet_mobilenet_v2_fpn")), columns_of([[0, 0, 0.04, 1]])
    limits = starter_boxes.SizeLimits(epochs=20.0)
    (line,) = starter_boxes.fit_boxes(draft, columns, limits, RARE, has_heads=False)
    assert "class common:" in line and "below 8 pixels of the input of 192x192" in line


def test_weights_in_a_folder_of_any_name():
    draft = Draft(pipeline.parse_pipeline(""))
    checkpoint = "/a/'b [c] "
    starter.set_weights(draft, Pretrained("b", "", checkpoint, "detection", None, None))
    assert draft.config.train_config.fine_tune_checkpoint == checkpoint
    assert draft.config.train_config.load_all_detection_checkpoint_vars
