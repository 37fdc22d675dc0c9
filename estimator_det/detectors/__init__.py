"""Detectors by model name."""

from estimator_det.config.registry import import_modules
from estimator_det.detectors.base import DETECTORS as DETECTORS
from estimator_det.detectors.base import BatchDetections as BatchDetections
from estimator_det.detectors.base import Context as Context
from estimator_det.detectors.base import Groundtruth as Groundtruth
from estimator_det.detectors.base import Predictions as Predictions
from estimator_det.detectors.base import TrainableDetector as TrainableDetector
from estimator_det.detectors.base import build_detector as build_detector
from estimator_det.detectors.base import build_preprocessor as build_preprocessor
from estimator_det.detectors.base import make_detector as make_detector
from estimator_det.detectors.base import make_preprocessor as make_preprocessor

import_modules(__name__, __path__)
