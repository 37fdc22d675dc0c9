"""What TensorFlow's errors say, without where in its and our sources."""

from __future__ import annotations

import re
from typing import Any

# Where the graph has no source lines, because another machine ran it.
_OF_ANOTHER_MACHINE = ("Detected at node ", "<stack traces unavailable>")
_NODE = re.compile(r"\{\{[^{}]*\}\} ")


def names_task(error: Any) -> bool:
    """True if the message of an `OpError` names a task of a cluster.

    A node of this process may name its own device, as that of a kernel which writes a file.
    """
    return "/job:" in _NODE.sub("", error.message)


def reason(error: Any) -> str:
    """The line of an `OpError`, or of another exception, that says what is wrong.

    The message of a failed graph is a heading, the node with the source lines that made it, and
    only then the kernel's own words, after an empty line.
    """
    text = str(getattr(error, "message", None) or error)
    words = _NODE.sub("", text.split("\n\t [[")[0].split(" [Op:")[0]).strip()
    if words.startswith("Graph execution error"):
        words = words.split("\n\n")[-1]
    lines = (line for line in words.strip().split("\n") if not line.startswith(_OF_ANOTHER_MACHINE))
    return next(lines, "")
