"""What input functions ask for, by the fields of a configuration; no dataset is made."""

from __future__ import annotations

import copy
import re
from typing import Any, List

import pytest
from google.protobuf import text_format

import inputs
from estimator_det.compat import tf
from estimator_det.config import facts
from estimator_det.errors import ConfigError
from estimator_det.protos import pipeline_pb2
from inputs import pipeline as input_pipeline
from tests.inputs import examples
from tests.inputs.test_pipeline import preprocess_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """Arguments of each call of `_batches`: examples, order, log, run."""
    calls: List[Any] = []

    def gather(examples: Any, order: Any, log: Any, run: Any, needs_masks: bool) -> Any:
        assert not needs_masks
        calls.append((examples, order, log, run))
        return tf.data.Dataset.range(1)

    monkeypatch.setattr(input_pipeline, "_batches", gather)
    return calls


def pipeline(text: str = "") -> pipeline_pb2.TrainEvalPipelineConfig:
    """A configuration whose readers have a path, which nothing reads."""
    config = examples.pipeline(text)
    for _, reader in facts.readers(config):
        reader.tf_record_input_reader.input_path.append("x")
    return config


def test_batch_size_comes_from_params_or_configuration(asked):
    config = pipeline()
    input_fn = inputs.create_train_input_fn(config, preprocess_of(config))
    for params, expected in (({}, 2), ({"batch_size": 3}, 3)):
        input_fn(params)
        assert asked.pop()[0].batch_size == expected
    with pytest.raises(ValueError, match="batch_size is 0"):
        input_fn({"batch_size": 0})


def test_images_of_a_step(asked):
    """Each of three workers gives a third of them, whatever the size of its batches."""
    config = pipeline("train_config { batch_size: 12 }")
    shared = tf.distribute.InputContext(
        num_input_pipelines=3, input_pipeline_id=1, num_replicas_in_sync=6
    )
    for params, context, images, expected in (
        ({}, shared, None, (2, 4)),
        ({"batch_size": 3}, None, None, (3, 3)),
        ({"batch_size": 3}, None, 24, (3, 24)),
    ):
        make = inputs.create_train_input_fn(
            config, preprocess_of(config), first_step=5, images_per_step=images
        )
        make(params, context)
        examples, order, _, _ = asked.pop()
        assert (examples.batch_size, examples.images_per_step) == expected
        assert examples.first_step == 5 and order.shard == ((3, 1) if context else (1, 0))


def test_the_reader_of_an_evaluation_is_known_by_identity(asked):
    config = pipeline("train_input_reader { num_epochs: 3 } eval_input_reader { num_epochs: 5 }")
    changed, equal = copy.deepcopy(config.eval_input_reader[-1]), copy.deepcopy(config)
    changed.sample_1_of_n_examples = 2
    equal.train_input_reader.num_epochs = 5
    del equal.eval_input_reader[:]
    equal.eval_input_reader.append(equal.train_input_reader)
    for whole, reader, passes, field in (
        (config, changed, 5, "eval_input_reader.max_number_of_boxes"),
        (equal, equal.eval_input_reader[0], 5, "eval_input_reader[0].max_number_of_boxes"),
        (equal, equal.train_input_reader, 1, "train_input_reader.max_number_of_boxes"),
    ):
        inputs.create_eval_input_fn(whole, preprocess_of(config), reader)()
        assert asked.pop()[1].num_epochs == passes
        reader.max_number_of_boxes = -1
        with pytest.raises(ConfigError, match="^" + re.escape(field)):
            inputs.create_eval_input_fn(whole, preprocess_of(config), reader)


def test_settings_of_evaluation(asked):
    """Passes over what is to be read; training's settings do not count."""
    text = """train_config { merge_multiple_label_boxes: true use_multiclass_scores: true
        max_number_of_boxes: 9 data_augmentation_options { random_horizontal_flip {} } }
        eval_config { batch_size: 4 retain_original_images: false }
        eval_input_reader { sample_1_of_n_examples: 5 num_epochs: 7 max_number_of_boxes: 8 }"""
    config = pipeline(text)
    reader_config = config.eval_input_reader[-1]
    for sample, expected in ((None, 5), (1, 1), (3, 3)):
        make = inputs.create_eval_input_fn(config, preprocess_of(config), reader_config, sample)
        make()
        examples, order, _, run = asked.pop()
        options = examples.collate
        assert examples.reader == reader_config and not examples.steps
        assert (order.num_epochs, order.sample_1_of_n, examples.batch_size) == (7, expected, 4)
        assert not order.drop_remainder and order.seed is not None and run.cursor is None
        assert options.max_boxes == 8 and not options.retain_original_image
        assert not options.merge_boxes and not options.use_multiclass_scores
    make({"batch_size": 1})
    assert asked.pop()[1].drop_remainder
    config.train_input_reader.num_epochs = 9
    inputs.create_eval_input_fn(config, preprocess_of(config), config.train_input_reader)()
    assert asked.pop()[1].num_epochs == 1
    for drop in (True, False):
        reader_config.drop_remainder = drop
        make()
        assert asked.pop()[1].drop_remainder == drop
    assert options.resizer.spatial_shape == (6, 10)
    assert options.all_classes_labeled_by_default
    text_format.Merge(
        """eval_config { force_no_resize: true image_classes_field_map_empty_to_ones: false
        retain_original_image_additional_channels: true }""",
        config,
    )
    make()
    options = asked.pop()[0].collate
    assert options.resizer.spatial_shape == (None, None)
    assert not options.all_classes_labeled_by_default and not options.retain_additional_channels
    config.eval_config.retain_original_images = True
    make()
    assert asked.pop()[0].collate.retain_additional_channels
