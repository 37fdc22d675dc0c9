"""Feature extractors of two-stage detectors: `recipe`, and one file per family of networks."""

from estimator_det.config.advice import TpuAdvice

TPU = TpuAdvice("feature_extractor", "use faster_rcnn_resnet50, whose layers all run on TPU")
