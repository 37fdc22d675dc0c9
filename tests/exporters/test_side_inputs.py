"""Side inputs of context models: flags, what is refused, and an export that attends to them."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import Context, make_detector
from estimator_det.errors import RunError, UsageError
from estimator_det.programs import cli
from estimator_det.protos import model_pb2
from exporters.formats.saved_model import SavedModelDetector
from exporters.signatures import SideInput, check_side_inputs, parse_side_inputs
from tests import small_extractor
from tests.detectors.two_stage import configs
from tests.model_fn import fake

CONTEXT = """context_config {
  max_num_context_features: 3 context_feature_length: 5 attention_bottleneck_dimension: 4
}"""
MODEL = configs.small_config(CONTEXT)
NEEDED = (
    SideInput("context_features", tf.float32, (None, 3, 5)),
    SideInput("valid_context_size", tf.int32, (None,)),
)
NAMES = "context_features,valid_context_size"


@pytest.mark.parametrize("types", ["float,int", "tf.float32, tf.int32", ""])
def test_flags(types):
    assert parse_side_inputs("", types, "", MODEL) == NEEDED
    one, other = parse_side_inputs("1/1,-1,5", "", "valid_context_size,context_features", MODEL)
    assert one == NEEDED[1]._replace(shape=(1,))
    assert other == NEEDED[0]._replace(shape=(1, None, 5))
    assert check_side_inputs(MODEL, [one, other]) == (one, other)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("1,3,5", "", ""), r"side_input_shapes: has 1 entries for the side inputs \['context_f"),
        (("", "float,string", ""), r"side_input_types: 'string' is not known; allowed: \['float'"),
        (("", "int,int", ""), "context_features is int32; it must be float32"),
        (("0,3,5/1", "", ""), "side_input_shapes: '0,3,5': '0' is not a size"),
        (("1,3,6/1", "", ""), "context_features is 1,3,6; it must be -1,3,5, where the first"),
        (("", "", "context_features"), r"are \['context_features'\]; the model takes"),
    ],
)
def test_flags_that_do_not_fit(flags, message):
    with pytest.raises(UsageError, match=message):
        check_side_inputs(MODEL, parse_side_inputs(*flags, MODEL))


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (MODEL, None, "add --use_side_inputs"),
        (configs.small_config(), (), "takes no side inputs"),
        (model_pb2.DetectionModel(), NEEDED, "takes no side inputs"),
    ],
)
def test_models_that_do_not_fit(model, given, message):
    with pytest.raises(UsageError, match=message):
        check_side_inputs(model, given)
    assert check_side_inputs(configs.small_config(), None) == ()


def test_export(tmp_path, monkeypatch):
    small_extractor.use(monkeypatch)
    config = fake.pipeline_config("")
    config.model.CopyFrom(MODEL)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        context = Context(tf.zeros([1, 3, 5]), tf.constant([0]))
        with tf1.variable_scope(tf1.get_variable_scope(), use_resource=True):
            make_detector(MODEL, False).predict(tf.zeros([1, 64, 64, 3]), None, None, context)
        session.run(tf1.global_variables_initializer())
        checkpoint = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    (tmp_path / "pipeline.config").write_text(pipeline.format_pipeline(config))
    folder = tmp_path / "exported"
    arguments = ["export", "--pipeline_config_path", str(tmp_path / "pipeline.config")]
    arguments += ["--trained_checkpoint_prefix", checkpoint, "--output_directory", str(folder)]
    assert cli.main(arguments) == 2  # without side inputs
    assert cli.main([*arguments, "--use_side_inputs", "True"]) == 0
    with pytest.raises(RunError, match="takes context features with every image"):
        SavedModelDetector(str(folder))
    serve = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
    given = {key: spec.shape for key, spec in serve.structured_input_signature[1].items()}
    assert given["context_features"].as_list() == [None, 3, 5]
    assert given["valid_context_size"].as_list() == [None]
    assert serve.inputs[0].name.startswith(("context_features", "image_tensor", "inputs"))
    images = tf.constant(np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)), tf.uint8)
    features = tf.constant(np.random.default_rng(1).normal(size=(2, 3, 5)), tf.float32)

    def scores(first: int, second: int) -> np.ndarray:
        found = serve(
            inputs=images,
            context_features=features,
            valid_context_size=tf.constant([first, second]),
        )
        return found["raw_detection_scores"].numpy()

    both, one = scores(3, 3), scores(3, 0)
    np.testing.assert_allclose(one[0], both[0], rtol=1e-5)
    assert np.abs(one[1] - both[1]).max() > 1e-4
