"""Options of other trainers, and what to set here instead. Imports no TensorFlow."""

from __future__ import annotations

from typing import Dict

_FIELD = "set {0}, for example --set {0}={1}"
_BATCH_SIZE = _FIELD.format("train_config.batch_size", 8)
_LEARNING_RATE = (
    "set the rate of the configured schedule, for example --set train_config.optimizer."
    "momentum_optimizer.learning_rate.cosine_decay_learning_rate.learning_rate_base=0.01"
)
_EPOCHS = (
    "give --num_train_steps N (a step is a batch), or --num_train_steps 0 --set "
    "train_input_reader.num_epochs=N"
)
_DEVICE = (
    "choose GPUs by the environment variable CUDA_VISIBLE_DEVICES, and the CPU by its value -1"
)
_SIZE = (
    "set the image_resizer of the model, for example --set "
    "model.ssd.image_resizer.fixed_shape_resizer.height=320 --set "
    "model.ssd.image_resizer.fixed_shape_resizer.width=320"
)
_FREEZE = (
    "set patterns of the variables that stay, for example --set "
    "train_config.freeze_variables+=FeatureExtractor"
)
_RECORDS = (
    "set the records of a reader, for example --set "
    "train_input_reader.tf_record_input_reader.input_path[0]=train.record"
)
_OVERLAP = (
    "set the field of the model, for example estimator-det export --set model.ssd."
    "post_processing.batch_non_max_suppression.iou_threshold=0.5"
)
_CLASSES = _FIELD.format("model.ssd.num_classes", 3)
_MIXED = "give --precision mixed_bfloat16"
_RUN = "give the folder of the run, --model_dir RUN"
_MODEL = "give the folder of an export as the first argument"


def _named(remedies: Dict[str, str]) -> Dict[str, str]:
    """`{"a b": text}` -> `{"a": text, "b": text}`."""
    return {name: text for names, text in remedies.items() for name in names.split()}


_OLD_TRAINER = _named(
    {
        "num_clones": "give --strategy mirrored to estimator-det train: it trains on all visible "
        "GPUs",
        "clone_on_cpu": "set CUDA_VISIBLE_DEVICES=-1 to train on the CPU",
        "worker_replicas ps_tasks task worker_job_name master": "describe the cluster in the "
        "TF_CONFIG of each task; see docs/distributed.md",
    }
)
# Verb (or model_main) -> option without dashes -> what to do here.
REMEDIES: Dict[str, Dict[str, str]] = {
    "model_main": {
        **_OLD_TRAINER,
        # Messages about a configuration name these options of `estimator-det train`.
        **_named(
            {
                "set rescale_schedule": "change the configuration, by its file or by "
                "--config_override 'train_config { batch_size: 8 }', or run estimator-det train, "
                "which has the option",
                "hparams_overrides": "change the configuration, by its file or by "
                "--config_override 'train_config { batch_size: 8 }'",
            }
        ),
    },
    "train": {
        **_OLD_TRAINER,
        **_named(
            {
                "epochs num_epochs max_epochs": _EPOCHS,
                "steps num_steps max_steps iters iterations max_iter": "give --num_train_steps N",
                "batch batch_size train_batch_size": _BATCH_SIZE,
                "lr lr0 learning_rate base_lr": _LEARNING_RATE,
                "optimizer optim": _FIELD.format(
                    "train_config.optimizer.adam_optimizer.learning_rate."
                    "constant_learning_rate.learning_rate",
                    0.001,
                ),
                "momentum": _FIELD.format(
                    "train_config.optimizer.momentum_optimizer.momentum_optimizer_value", 0.9
                ),
                "weight_decay": "set the weight of the regularizer, for example --set "
                "model.ssd.feature_extractor.conv_hyperparams.regularizer.l2_regularizer."
                "weight=0.0001",
                "resume resume_from auto_resume": "remove it: a run in --model_dir resumes",
                "device devices gpu gpus gpu_ids": f"{_DEVICE}; --strategy mirrored trains on all",
                "imgsz img img_size image_size input_size": _SIZE,
                "freeze freeze_layers": _FREEZE,
                "weights pretrained checkpoint ckpt": _FIELD.format(
                    "train_config.fine_tune_checkpoint", "imported/model.ckpt"
                ),
                "data dataset data_dir": _RECORDS,
                "cfg config config_file": "give the configuration as an argument",
                "workers num_workers": _FIELD.format("train_input_reader.num_parallel_batches", 4)
                + "; describe the machines of a cluster in TF_CONFIG",
                "cache": _FIELD.format("train_input_reader.cache", "MEMORY"),
                "project name output output_dir out save_dir work_dir logdir log_dir "
                "train_dir": "give --model_dir RUN",
                "amp fp16 half bf16": _MIXED,
                "nc num_classes classes": _CLASSES,
                "val_interval eval_interval eval_steps": "give --eval_every_steps N",
                "save_period save_interval save_steps": "give --save_checkpoints_steps N",
                "hparams_overrides hparams": "change fields by --set or --config_override",
                "eval_on_train_data eval_timeout sample_1_of_n_eval_examples "
                "sample_1_of_n_eval_on_train_examples checkpoint_dir use_tpu record_summaries "
                "logtostderr alsologtostderr": "run python -m estimator_det.model_main, which "
                "takes the flags of model_main.py and model_main_tf2.py",
            }
        ),
    },
    "evaluate": _named(
        {
            "weights checkpoint ckpt model": _RUN,
            "eval_dir": "give --output_dir FOLDER",
            "batch batch_size": _FIELD.format("eval_config.batch_size", 8),
            "data dataset split": "set the records, for example --set "
            "eval_input_reader[0].tf_record_input_reader.input_path[0]=val.record",
            "device gpu gpus": _DEVICE,
            "imgsz img img_size image_size": _SIZE,
            "iou iou_thres iou_threshold": _OVERLAP,
        }
    ),
    "export": _named(
        {
            "weights checkpoint ckpt": "give --trained_checkpoint_prefix PREFIX",
            "include": "give --format NAMES",
            "half fp16": "give --format tflite --quantize float16",
            "int8": "give --format tflite --quantize int8",
            "data": "give --sample_images PHOTOS",
            "dynamic imgsz img img_size image_size batch batch_size": "give --input_shape B,H,W,C",
            "output out": "give --output_dir DIR",
            "device gpu": _DEVICE,
            "centernet_include_keypoints": "remove it: an export has all outputs of its model",
            "keypoint_label_map_path": _FIELD.format(
                "model.center_net.keypoint_label_map_path", "FILE"
            ),
        }
    ),
    "detect": _named(
        {
            "weights checkpoint ckpt": _MODEL,
            "source input images image": "give images, videos and folders as arguments",
            "conf conf_thres conf_threshold score score_threshold confidence": "give --threshold "
            "SCORE",
            "iou iou_thres iou_threshold": _OVERLAP,
            "imgsz img img_size image_size": "remove it: a model resizes its images",
            "save_txt": "remove it: detections.jsonl in --output_dir has all detections",
            "project name output out save_dir": "give --output_dir DIR",
            "device gpu": _DEVICE,
        }
    ),
    "init": _named(
        {
            "epochs num_epochs steps num_steps": "give --hours H or --num_train_steps N",
            "batch batch_size": "change what init chooses in the training: estimator-det train "
            "--set train_config.batch_size=8",
            "lr lr0 learning_rate": f"in estimator-det train, {_LEARNING_RATE}",
            "imgsz img img_size image_size": f"in estimator-det train, {_SIZE}",
            "freeze freeze_layers": f"in estimator-det train, {_FREEZE}",
            "resume": "remove it: estimator-det train resumes a run",
            "device gpu gpus": _DEVICE,
            "weights": "give --pretrained NAME",
            "data": "give --records DIR, or --from FORMAT with --images and --annotations",
            "output out": "give --output_dir DIR",
        }
    ),
}


def refusal(program: str, option: str) -> str:
    """The error for an option of other trainers, without its dashes; "" for any other one."""
    remedy = REMEDIES.get(program, {}).get(option, "")
    return f"--{option} is an option of other trainers. Instead, {remedy}" if remedy else ""
