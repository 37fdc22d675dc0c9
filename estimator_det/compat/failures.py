"""Messages of TensorFlow's errors, without positions in its and our sources."""

from __future__ import annotations

import re
from typing import Any, Optional, Tuple

# Lines instead of source positions if another machine ran the graph.
_REMOTE_GRAPH_LINES = ("Detected at node ", "<stack traces unavailable>")
_NODE = re.compile(r"\{\{[^{}]*\}\} ")
_END_OF_SOURCES = re.compile(r"\nNode: .*\n|\n\n")
# TPUEstimator's report of a variable after a loop, even if something else is NaN.
_NOT_FINITE = re.compile(r"Gradient for (\S+?)(:0)? is NaN")
_NO_TPU = ("Cannot find any TPU cores", "Failed to connect to the Tensorflow master")
_REPORTED = re.compile(r"reported from /job:(\w+)/(?:replica:\d+/)?task:(\d+)")


def names_task(error: Any) -> bool:
    """True if the message of an `OpError` names a task of a cluster."""
    # Names of nodes are removed: a node of this process may name its device, e.g. to write a file.
    return "/job:" in _NODE.sub("", error.message)


def reason(error: Any) -> str:
    """Returns the line of an `OpError`, or of another exception, that says what is wrong.

    The message of a failed graph is a heading, the node with its source lines, perhaps an empty
    line, and then the kernel's message.
    """
    text = str(error.message if hasattr(error, "node_def") else error)
    text = _NODE.sub("", text.split("\n\t [[")[0].split(" [Op:")[0]).strip()
    lines = without_sources(text).split("\n")
    return next((x for x in lines if x.strip() and not x.startswith(_REMOTE_GRAPH_LINES)), "")


def without_sources(text: str) -> str:
    """The message of a failed graph without its heading and the source lines of its nodes.

    What a Python function raised keeps its traceback, which names the place.
    """
    if not text.startswith("Graph execution error"):
        return text
    message, heading, lines = text.rstrip().partition("\nTraceback (most recent call last):\n")
    return _END_OF_SOURCES.split(message)[-1] + heading + lines


def reported_task(error: Any) -> Optional[Tuple[str, int]]:
    """Job and number of the task from which TensorFlow has heard nothing; None if not known."""
    match = _REPORTED.search(error.message)
    return (match[1], int(match[2])) if match else None


def variable_with_nan(error: Any) -> Optional[str]:
    """Variable whose gradients TPUEstimator reports as NaN; None for any other error."""
    match = _NOT_FINITE.search(str(error))
    return match[1] if match else None


def lacks_tpu(error: Exception) -> bool:
    """True if TPUEstimator found no TPU."""
    return any(text in str(error) for text in _NO_TPU)


def lacks_variables(error: Any) -> bool:
    """True if the variables of a worker's session have no values."""
    return "Session was not ready" in error.message
