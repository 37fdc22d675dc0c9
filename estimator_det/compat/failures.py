"""Messages of TensorFlow's errors, without positions in its and our sources."""

from __future__ import annotations

import re
from typing import Any

# Lines instead of source positions if another machine ran the graph.
_REMOTE_GRAPH_LINES = ("Detected at node ", "<stack traces unavailable>")
_NODE = re.compile(r"\{\{[^{}]*\}\} ")


def names_task(error: Any) -> bool:
    """True if the message of an `OpError` names a task of a cluster."""
    # Names of nodes are removed: a node of this process may name its device, e.g. to write a file.
    return "/job:" in _NODE.sub("", error.message)


def reason(error: Any) -> str:
    """Returns the line of an `OpError`, or of another exception, that says what is wrong.

    The message of a failed graph is a heading, the node with its source lines, an empty line, and
    then the kernel's message.
    """
    text = str(error.message if hasattr(error, "node_def") else error)
    text_of_error = _NODE.sub("", text.split("\n\t [[")[0].split(" [Op:")[0]).strip()
    if text_of_error.startswith("Graph execution error"):
        text_of_error = text_of_error.split("\n\n")[-1]
    lines = (
        line
        for line in text_of_error.strip().split("\n")
        if not line.startswith(_REMOTE_GRAPH_LINES)
    )
    return next(lines, "")
