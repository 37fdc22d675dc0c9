"""What TFLite files contain."""

from __future__ import annotations

import tempfile
from typing import Any, List, Optional

from estimator_det.compat.private import tflite_schema
from exporters.formats.tflite import TfliteGraph, build_tflite_graph, raw_outputs
from exporters.network import ExportOptions, TfliteOptions, restored_network


def tflite_graph(
    config: Any, checkpoint: str, options: Optional[TfliteOptions] = None
) -> TfliteGraph:
    """The graph of a checkpoint that an export gives the TFLite converter."""
    export_options = ExportOptions(tflite=options or TfliteOptions())
    with tempfile.TemporaryDirectory() as folder:
        variants = [raw_outputs]
        with restored_network(config, checkpoint, folder, export_options, variants) as network:
            return build_tflite_graph(network)


def operation_names(content: bytes) -> List[str]:
    """The operations of a model in their order."""
    schema = tflite_schema()
    codes = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    model = schema.Model.GetRootAsModel(content, 0)
    found = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    names = [
        (each.CustomCode() or codes[max(each.BuiltinCode(), each.DeprecatedBuiltinCode())].encode())
        for each in found
    ]
    graph = model.Subgraphs(0)
    operators = [graph.Operators(i) for i in range(graph.OperatorsLength())]
    return [names[each.OpcodeIndex()].decode() for each in operators]
