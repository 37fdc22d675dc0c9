"""What TFLite files contain."""

from __future__ import annotations

from typing import List

from estimator_det.compat.private import tflite_schema


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
