from __future__ import annotations

import pathlib

import pytest

from estimator_det import demo
from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from model_fn.preflight import run_check

SMALL = [
    "train_config.batch_size=2",
    "model.ssd.image_resizer.fixed_shape_resizer.height=64",
    "model.ssd.image_resizer.fixed_shape_resizer.width=64",
    "model.ssd.feature_extractor.num_layers=2",
    "model.ssd.anchor_generator.ssd_anchor_generator.num_layers=2",
    "model.ssd.anchor_generator.ssd_anchor_generator.scales=[0.3, 0.5]",
]


def _config(*more: str):
    return pipeline.apply_overrides(pipeline.read_pipeline(str(demo.CONFIG_FILE)), [*SMALL, *more])


@pytest.fixture(scope="module")
def small():
    return run_check.examine(_config())


def test_memory_of_parts(small):
    assert small.problems == [] and small.warm_start is None
    memory = small.memory
    images = 2 * 64 * 64 * 3 * 4
    assert images < memory.batch < 1.1 * images
    assert memory.parameters > memory.gradients > 0
    # Adam keeps two slots of each trainable variable.
    assert memory.slots == pytest.approx(2 * memory.gradients, rel=0.01)
    assert small.num_variables > 100 and small.num_operations > 1000


def test_activations_grow_with_the_batch_and_parameters_do_not(small):
    double = run_check.examine(_config("train_config.batch_size=4")).memory
    assert double.parameters == small.memory.parameters
    # Not all grow: the largest gradient is of a kernel.
    assert 1.5 < double.activations / small.memory.activations < 2.01
    assert double.training > small.memory.training > run_check.BASE_BYTES
    assert small.memory.graph == int(
        run_check.BASE_BYTES + run_check.OPERATION_BYTES * small.num_operations
    )


def test_too_little_memory_is_told(monkeypatch):
    assert run_check.check_memory(10**6, 4) == []
    monkeypatch.setattr(run_check, "available_memory", lambda: 8 * 10**9)
    (problem,) = run_check.check_memory(9 * 10**9, 4)
    assert "about 9.0 GB at batch 4, this machine has 8.0" in problem.message
    assert run_check.check_memory(8 * 10**9, 4) == []


def test_what_cannot_be_built_is_a_problem():
    examined = run_check.examine(_config("model.ssd.feature_extractor.num_layers=9"))
    (problem,) = examined.problems
    assert problem.severity == "error" and "num_layers: 9" in problem.message
    assert examined.memory is None


def test_options_without_effect_are_told():
    ppn = _config(
        "model.ssd.feature_extractor.type=ssd_mobilenet_v1_ppn",
        "model.ssd.feature_extractor.num_layers=null",
        "model.ssd.feature_extractor.use_depthwise=true",
        "model.ssd.anchor_generator.ssd_anchor_generator.num_layers=6",
        "model.ssd.anchor_generator.ssd_anchor_generator.scales=[]",
    )
    problems = run_check.examine(ppn).problems
    fields = [problem.field for problem in problems if "no effect" in problem.message]
    assert fields == ["model.ssd.feature_extractor.use_depthwise"]


def test_warm_start_is_told_and_checked(tmp_path: pathlib.Path):
    name = "FeatureExtractor/MobilenetV1/Conv2d_0/weights"
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable(name, [3, 3, 3, 16])
        session.run(tf1.global_variables_initializer())
        saved = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    kind = "train_config.fine_tune_checkpoint_type=detection"
    from_it = [f"train_config.fine_tune_checkpoint={saved}", kind]
    examined = run_check.examine(_config(*from_it))
    assert list(examined.warm_start.restored) == [name]
    assert [problem.severity for problem in examined.problems] == ["warning"]
    assert "are missing" in examined.problems[0].message
    # Of the model's variables alone: the graph has slots besides.
    everything = run_check.examine(
        _config(*from_it, "train_config.load_all_detection_checkpoint_vars=true")
    )
    asked = [*everything.warm_start.restored, *everything.warm_start.missing]
    assert name in asked and not [each for each in asked if "Adam" in each]
    assert everything.num_variables > len(asked) > everything.warm_start.backbone
    for assignments, message in (
        ([*from_it, "train_config.min_restored_share=0.5"], "less than"),
        ([from_it[0], "train_config.fine_tune_checkpoint_type=classification"], "no variable"),
        (["train_config.fine_tune_checkpoint=gone/model.ckpt", kind], "no checkpoint"),
    ):
        examined = run_check.examine(_config(*assignments))
        (problem,) = examined.problems
        assert problem.severity == "error" and message in problem.message
        assert examined.warm_start is None


def test_input_memory(small, tmp_path: pathlib.Path):
    path = tmp_path / "some.record"
    with tf.io.TFRecordWriter(str(path)) as out:
        for _ in range(10):
            out.write(bytes(1000))
    records = f'train_input_reader.tf_record_input_reader.input_path=["{path}"]'
    few = _config(records, "train_input_reader.shuffle_buffer_size=4")
    needed = run_check.input_memory(few, small.memory, cores=2)
    assert needed.shuffled == 4000
    many = _config(records, "train_input_reader.shuffle_buffer_size=4000")
    assert run_check.input_memory(many, small.memory, cores=2).shuffled == path.stat().st_size
    assert needed.total > needed.prefetched >= 2 * small.memory.batch
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="no records"):
        run_check.input_memory(few, small.memory, cores=2)


def test_files_that_cannot_be_read(tmp_path: pathlib.Path):
    folder = tmp_path / "a_folder"
    folder.mkdir()
    config = _config(
        f'train_input_reader.tf_record_input_reader.input_path=["{folder}"]',
        "train_input_reader.label_map_path=ram://nowhere/map.pbtxt",
        'eval_input_reader[0].tf_record_input_reader.input_path=["ram://nowhere/x.record"]',
        "eval_input_reader[0].label_map_path=",
    )
    problems = {problem.field: problem.message for problem in run_check.check_files(config)}
    assert set(problems) == {
        "train_input_reader.tf_record_input_reader.input_path[0]",
        "train_input_reader.label_map_path",
        "eval_input_reader[0].tf_record_input_reader.input_path[0]",
    }
    assert "cannot be read" in problems["train_input_reader.tf_record_input_reader.input_path[0]"]
    assert "no file matches" in problems["train_input_reader.label_map_path"]
    (folder / "a.record").write_bytes(b"x")
    (folder / "b.record").mkdir()  # Every file of a pattern is looked at.
    twice = tmp_path / "map.pbtxt"
    twice.write_text("item { id: 1 name: 'a' } item { id: 1 name: 'b' }")
    config = _config(
        f'train_input_reader.tf_record_input_reader.input_path=["{folder}/*.record"]',
        f"train_input_reader.label_map_path={twice}",
        "eval_input_reader=[]",
    )
    first, second = run_check.check_files(config)
    assert "id 1 is given twice" in first.message and "ids from 1" in first.remedy
    assert "b.record' cannot be read" in second.message
