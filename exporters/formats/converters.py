"""Converters of other packages, run as programs: in this environment, or in one of their own.

Some converters need other releases of packages than TensorFlow here. They are then installed in an
environment of their own, whose interpreter CONVERTERS_VARIABLE or `--converter_python` names.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
from typing import Any, Callable, List, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config.derived_models import with_static_shapes
from estimator_det.config.facts import context_shape
from estimator_det.detectors.base import build_detector
from estimator_det.errors import RunError, UsageError
from estimator_det.protos import pipeline_pb2
from exporters.formats.base import ExportFormat, is_quantized, missing_runtime
from exporters.network import ExportOptions, RestoredNetwork
from inputs.serving import INPUT_TYPES
from model_fn.serving.graph import named_outputs, serve

CONVERTERS_VARIABLE = "ESTIMATOR_DET_CONVERTERS"
_SHOWN_LINES = 15  # last lines of a failed converter's output that are shown
_FIND = (
    "import importlib.util, sys; "
    "sys.path = [p for p in sys.path if p]; "  # not a folder of this name in the current one
    "sys.exit(','.join(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None) or 0)"
)
_SCOPE = "static_outputs"


def static_outputs(network: RestoredNetwork) -> List[str]:
    """Adds detections whose suppression has the operations of TPUs; returns their names.

    Converters know no others. The result is the same.
    """
    config, (receiver, predictions, _) = network.config, network.first
    detector = build_detector(with_static_shapes(config.model), False, config.graph_rewriter)
    if config.model.WhichOneof("model") == "ssd":
        # Static shapes change the suppression only, so that the network is built once.
        detections = detector.postprocess(predictions, receiver.true_shapes)
        outputs = named_outputs(detections, _SCOPE)
    else:
        _, outputs = serve(
            detector, receiver.inputs, receiver.true_shapes, scope=_SCOPE, reuse=True
        )
    return [tensor.op.name for tensor in outputs.values()]


def static_graph(network: RestoredNetwork) -> Any:
    """`GraphDef` of `static_outputs` under the usual names, from the first input type."""
    names = network.variants[static_outputs]
    graph_def = network.folded_graph_of(names)
    for node in graph_def.node:
        if node.name in names:
            node.name = node.name.removeprefix(f"{_SCOPE}/")
    return graph_def


class GraphFormat(ExportFormat):
    """Base class of formats that the converters of other packages write from a graph file."""

    resize_methods: Sequence[str] = ("BILINEAR", "NEAREST_NEIGHBOR")
    variant = staticmethod(static_outputs)
    # Writes a model; takes the path of a `GraphDef` file, the names of its input and outputs, and
    # the path of the model. Its source runs in the interpreter of converters, so that it imports
    # all that it uses.
    convert: Callable[[str, str, List[str], str], None]
    # Functions that `convert` calls, whose source goes with it.
    helpers: Sequence[Callable[..., Any]] = ()
    # Runs `convert` in this process if this is the interpreter of converters: in a new process the
    # import of TensorFlow would take most of the time.
    uses_tensorflow = False

    def check(self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> None:
        super().check(config, options)
        tensors = [name for name in INPUT_TYPES if INPUT_TYPES.get(name) is not tf.string]
        if options.input_types[0] not in tensors:
            raise UsageError(
                f"--format {self.name} takes images as tensors, and the first --input_type is "
                f"{options.input_types[0]}; put one of {', '.join(tensors)} first"
            )
        if context_shape(config.model) is not None:
            raise UsageError(
                f"--format {self.name}: models that attend to context features are not supported "
                "yet; export saved_model or frozen_graph"
            )
        if is_quantized(config):
            raise UsageError(
                f"--format {self.name}: graph_rewriter.quantization is not supported yet; export "
                "saved_model, frozen_graph or tflite, or the float model (--set "
                "graph_rewriter=null)"
            )

    def write(self, network: RestoredNetwork, path: str) -> bool:
        graph_def = static_graph(network)
        names = [name.removeprefix(f"{_SCOPE}/") for name in network.variants[static_outputs]]
        with tempfile.TemporaryDirectory() as folder:
            graph = os.path.join(folder, "graph.pb")
            with open(graph, "wb") as file:
                file.write(graph_def.SerializeToString())
            arguments = (graph, next(iter(network.definitions)), names, path)
            run_converter(self, arguments, network.options.converter_python)
        return True


def converter_interpreter(interpreter: Optional[str]) -> str:
    """The interpreter for converters: the argument, else CONVERTERS_VARIABLE, else this one.

    The variable may also name the folder of a virtual environment.
    """
    named = interpreter or os.environ.get(CONVERTERS_VARIABLE) or sys.executable
    path = os.path.join(named, "bin", "python") if os.path.isdir(named) else named
    if not os.access(path, os.X_OK):
        flag = "--converter_python" if interpreter else CONVERTERS_VARIABLE
        raise UsageError(
            f"{flag}: {named} is no Python interpreter and no virtual environment; make one with "
            f"python3 -m venv {shlex.quote(named)}, then install converters there"
        )
    return path


def find_converter(chosen: ExportFormat, given_python: Optional[str]) -> str:
    """`converter_interpreter`, or this interpreter if only it has the converter of a format."""
    named = converter_interpreter(given_python)
    missing = ""
    # The named interpreter first, then this one; once if they are the same.
    for python in dict.fromkeys((named, sys.executable)):
        command = [python, "-c", _FIND, *chosen.converter]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if not result.returncode:
            return python
        missing = missing or "".join(result.stderr.strip().splitlines()[-1:])
    raise UsageError(
        f"--format {chosen.name}: its converter is not installed: {named} has no module {missing}; "
        f"run pip install 'estimator-det[{chosen.name}]', or set {CONVERTERS_VARIABLE} to an "
        "environment that has it"
    )


def check_installed(chosen: Sequence[ExportFormat], given_python: Optional[str]) -> None:
    """Refuses formats that cannot be written or run; the text lists all, with what to install."""
    missing: List[str] = []
    is_writable = True
    for each in chosen:
        try:
            if each.converter:
                find_converter(each, given_python)
            missing.append(missing_runtime(each))
        except UsageError as error:
            missing.append(str(error))
            is_writable = False
    text = "\n".join(dict.fromkeys(filter(None, missing)))
    if not is_writable:
        raise UsageError(text)
    if text:
        raise RunError(text)


def run_converter(
    chosen: GraphFormat, arguments: Tuple[str, str, List[str], str], given_python: Optional[str]
) -> None:
    """Runs `convert` of a format with the interpreter of `find_converter`."""
    python, path = find_converter(chosen, given_python), arguments[-1]
    code, lines = 0, ["(it prints nothing)"]
    if chosen.uses_tensorflow and python == sys.executable:
        try:
            chosen.convert(*arguments)
        except Exception as error:  # the converter is not ours, so that its errors are of any type
            raise RunError(
                f"the converter to {chosen.name}, {chosen.converter[0]}, fails: "
                f"{type(error).__name__}: {error}"
            ) from error
    else:
        functions = (*chosen.helpers, chosen.convert)
        source = "".join(textwrap.dedent(inspect.getsource(each)) for each in functions)
        program = (
            f"from __future__ import annotations\nimport json, sys\n{source}"
            f"{chosen.convert.__name__}(*json.loads(sys.argv[1]))"
        )
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        result = subprocess.run(
            [python, "-c", program, json.dumps(arguments)], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            check=False,
        )  # fmt: skip
        code, lines = result.returncode, result.stdout.strip().splitlines()[-_SHOWN_LINES:] or lines
    # Some converters end with code 0 although they have written nothing.
    has_output = os.path.isfile(path) or (os.path.isdir(path) and os.listdir(path))
    if code or not has_output:
        what = f"fails with code {code}" if code else "writes no model"
        raise RunError(
            f"the converter to {chosen.name}, {chosen.converter[0]} of {python}, {what}; its last "
            "lines:\n  " + "\n  ".join(lines)
        )
