from estimator_det.config.pipeline import read_pipeline as read_pipeline
from exporters.detector import Detections as Detections
from exporters.detector import Detector as Detector
from exporters.formats.export import ExportedModel as ExportedModel
from exporters.formats.export import export_saved_model as export_saved_model
from inputs.pipeline import create_eval_input_fn as create_eval_input_fn
from inputs.pipeline import create_train_input_fn as create_train_input_fn
from inputs.serving import create_predict_input_fn as create_predict_input_fn
from model_fn.model_fn import ModelFn as ModelFn
from model_fn.model_fn import create_model_fn as create_model_fn
from model_fn.runs.context import Hook as Hook
from model_fn.runs.context import RunContext as RunContext
from model_fn.runs.context import StepResult as StepResult
from model_fn.runs.evaluator import continuous_eval as continuous_eval
from model_fn.runs.evaluator import evaluate as evaluate
from model_fn.runs.options import CheckpointOptions as CheckpointOptions
from model_fn.runs.options import EvaluationOptions as EvaluationOptions
from model_fn.runs.options import LoopOptions as LoopOptions
from model_fn.runs.options import TpuOptions as TpuOptions
from model_fn.runs.options import TrainOptions as TrainOptions
from model_fn.runs.runner import train_and_evaluate as train_and_evaluate

__version__: str
is_program: bool
