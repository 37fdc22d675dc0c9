"""What breaks each rule for TPU in a configuration that keeps them all."""

from __future__ import annotations

SSD = "model.ssd"
READER = "train_input_reader"
RATE = "train_config.optimizer.momentum_optimizer.learning_rate"
EXTRACTOR = f"{SSD}.feature_extractor"
RCNN = "model.faster_rcnn"

# (rule, severity, what breaks it, the field that is named). {predictor} stands for the box
# predictor that the configuration has.
BROKEN = (
    (
        "model-kind",
        "error",
        ["model={ center_net { image_resizer { fixed_shape_resizer { } } } }"],
        "model.center_net",
    ),
    (
        "resizer",
        "error",
        [f"{SSD}.image_resizer={{ keep_aspect_ratio_resizer {{ }} }}"],
        f"{SSD}.image_resizer.keep_aspect_ratio_resizer.pad_to_max_dimension",
    ),
    *(
        (
            "resizer",
            "error",
            [f"{SSD}.image_resizer={{ {kind} {{ }} }}"],
            f"{SSD}.image_resizer.{kind}",
        )
        for kind in ("identity_resizer", "conditional_shape_resizer", "pad_to_multiple_resizer")
    ),
    ("resizer", "error", [f"{SSD}.image_resizer={{}}"], f"{SSD}.image_resizer"),
    (
        "matcher",
        "error",
        [f"{SSD}.matcher={{ bipartite_matcher {{ }} }}"],
        f"{SSD}.matcher.bipartite_matcher",
    ),
    (
        "matcher",
        "error",
        [f"{SSD}.matcher.argmax_matcher.use_matmul_gather=false"],
        f"{SSD}.matcher.argmax_matcher.use_matmul_gather",
    ),
    (
        "hard-example-miner",
        "error",
        [f"{SSD}.loss.hard_example_miner={{}}"],
        f"{SSD}.loss.hard_example_miner",
    ),
    (
        "sampler",
        "warning",
        [f"{SSD}.loss.random_example_sampler={{}}"],
        f"{SSD}.loss.random_example_sampler",
    ),
    (
        "class-imbalance",
        "warning",
        [f"{SSD}.loss.classification_loss={{ weighted_softmax {{ }} }}"],
        f"{SSD}.loss.classification_loss.weighted_softmax",
    ),
    (
        "in-place-batch-norm",
        "error",
        [f"{SSD}.inplace_batchnorm_update=false"],
        f"{SSD}.inplace_batchnorm_update",
    ),
    *(
        (
            "batch-norm-decay",
            "warning",
            [f"{part}.conv_hyperparams.batch_norm.decay={decay}"],
            f"{part}.conv_hyperparams.batch_norm.decay",
        )
        for part in (EXTRACTOR, f"{SSD}.box_predictor.{{predictor}}")
        for decay in ("0.9997", "0.9")
    ),
    (
        "batch-norm-decay",
        "warning",
        [f"{EXTRACTOR}.conv_hyperparams.sync_batch_norm.decay=0.999"],
        f"{EXTRACTOR}.conv_hyperparams.sync_batch_norm.decay",
    ),
    (
        "backbone-batch-norm",
        "warning",
        [
            f"{EXTRACTOR}.type=ssd_mobilenet_v2",
            f"{EXTRACTOR}.override_base_feature_extractor_hyperparams=false",
        ],
        f"{EXTRACTOR}.override_base_feature_extractor_hyperparams",
    ),
    (
        "raw-detections",
        "advice",
        [f"{SSD}.return_raw_detections_during_predict=true"],
        f"{SSD}.return_raw_detections_during_predict",
    ),
    ("quantization", "error", ["graph_rewriter={ quantization { } }"], "graph_rewriter"),
    ("batch-size", "error", ["train_config.batch_size=100"], "train_config.batch_size"),
    ("batch-size", "error", ["train_config.batch_size=0"], "train_config.batch_size"),
    ("batch-size", "advice", ["train_config.batch_size=72"], "train_config.batch_size"),
    ("batch-size", "advice", ["train_config.batch_size=16"], "train_config.batch_size"),
    (
        "warm-up",
        "warning",
        [f"{RATE}.cosine_decay_learning_rate.warmup_steps=0"],
        f"{RATE}.cosine_decay_learning_rate",
    ),
    *(
        ("warm-up", "warning", [f"{RATE}={{ {kind} {{ {more} }} }}"], f"{RATE}.{kind}")
        for kind, more in (
            ("constant_learning_rate", ""),
            ("exponential_decay_learning_rate", ""),
            ("manual_step_learning_rate", "schedule { step: 9 }"),
            ("manual_step_learning_rate", "warmup: true"),
        )
    ),
    ("bfloat16", "advice", ["train_config.use_bfloat16=false"], "train_config.use_bfloat16"),
    (
        "summaries",
        "error",
        ["train_config.summarize_gradients=true"],
        "train_config.summarize_gradients",
    ),
    ("max-boxes", "error", [f"{READER}.max_number_of_boxes=0"], f"{READER}.max_number_of_boxes"),
    (
        "max-boxes",
        "warning",
        ["eval_input_reader=[{ tf_record_input_reader { input_path: 'gs://b/e' } }]"],
        "eval_input_reader[0].max_number_of_boxes",
    ),
    ("whole-batches", "error", [f"{READER}.drop_remainder=false"], f"{READER}.drop_remainder"),
    (
        "unused-features",
        "warning",
        [f"{READER}.include_source_id=true"],
        f"{READER}.include_source_id",
    ),
    (
        "unused-features",
        "warning",
        [f"{READER}.load_context_image_ids=true"],
        f"{READER}.load_context_image_ids",
    ),
    (
        "masks",
        "warning",
        [f"{READER}.load_instance_masks=true"],
        f"{READER}.load_instance_masks",
    ),
    (
        "unused-features",
        "warning",
        ["train_config.retain_original_images=true"],
        "train_config.retain_original_images",
    ),
    ("reading", "warning", [f"{READER}.num_readers=1"], f"{READER}.num_readers"),
    ("reading", "warning", [f"{READER}.num_prefetch_batches=1"], f"{READER}.num_prefetch_batches"),
    ("reading", "warning", [f"{READER}.shuffle_buffer_size=9"], f"{READER}.shuffle_buffer_size"),
    (
        "reading",
        "advice",
        [f"{READER}.tf_record_input_reader.input_path=gs://b/train.record"],
        f"{READER}.tf_record_input_reader.input_path[0]",
    ),
    (
        "paths",
        "error",
        [f"{READER}.tf_record_input_reader.input_path=data/train-*"],
        f"{READER}.tf_record_input_reader.input_path[0]",
    ),
    (
        "paths",
        "error",
        ["train_config.fine_tune_checkpoint=s3://b/model.ckpt"],
        "train_config.fine_tune_checkpoint",
    ),
    (
        "paths",
        "placeholder",
        [f"{READER}.label_map_path=PATH_TO_BE_CONFIGURED/map.pbtxt"],
        f"{READER}.label_map_path",
    ),
)

# The same for a two-stage model.
BROKEN_TWO_STAGE = (
    *(
        ("two-stage", "error", [f"{RCNN}.{switch}=false"], f"{RCNN}.{switch}")
        for switch in (
            "use_static_shapes",
            "use_matmul_crop_and_resize",
            "use_matmul_gather_in_matcher",
        )
    ),
    (
        "two-stage",
        "advice",
        [f"{RCNN}.clip_anchors_to_image=false"],
        f"{RCNN}.clip_anchors_to_image",
    ),
    ("two-stage", "error", [f"{RCNN}.hard_example_miner={{}}"], f"{RCNN}.hard_example_miner"),
    (
        "resizer",
        "error",
        [f"{RCNN}.image_resizer={{ keep_aspect_ratio_resizer {{ }} }}"],
        f"{RCNN}.image_resizer.keep_aspect_ratio_resizer.pad_to_max_dimension",
    ),
    (
        "raw-detections",
        "advice",
        [f"{RCNN}.return_raw_detections_during_predict=true"],
        f"{RCNN}.return_raw_detections_during_predict",
    ),
    ("masks", "warning", [f"{READER}.load_instance_masks=true"], f"{READER}.load_instance_masks"),
)

BROKEN_FOR_INFERENCE = (
    (
        "static-suppression",
        "warning",
        [],
        f"{SSD}.post_processing.batch_non_max_suppression.static_kernel",
    ),
    ("evaluation-batch", "error", ["eval_config.batch_size=1"], "eval_config.batch_size"),
    ("whole-batches", "warning", [], "eval_input_reader[0].drop_remainder"),
    (
        "unused-features",
        "warning",
        ["eval_input_reader[0].include_source_id=true"],
        "eval_input_reader[0].include_source_id",
    ),
)
