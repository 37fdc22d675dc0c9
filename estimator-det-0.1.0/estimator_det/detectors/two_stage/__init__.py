"""Detectors of two stages: Faster R-CNN, Mask R-CNN and R-FCN."""

from __future__ import annotations

from estimator_det.detectors.two_stage import faster_rcnn  # noqa: F401  (fills the registry)
