"""Text that must not get to a terminal, a log or a JSON file as it is."""

from __future__ import annotations

# Clears the screen, returns to the start of the line, rings, reverses the direction of writing,
# begins new lines, ends with a byte of a file name that is no text.
CONTROLS = "a\x1b[2J\r\x07\x9b31m\u202eb\u2066\u200f\u2028\u2029\u0085\x0b\udcff"
LAYOUT = "\n\t"


def shows_as_itself(text: str) -> bool:
    """Whether a text has nothing of that kind, and no line that is too long to be read."""
    lines = text.split("\n")
    return all(char.isprintable() or char in LAYOUT for char in text) and all(
        len(line) < 30_000 for line in lines
    )
