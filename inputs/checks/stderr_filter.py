"""Copies standard input to standard output and counts the warnings of libjpeg and libpng.

A program of its own, started by `inputs.checks.decoder_warnings.count`; it imports no package of
ours, so that it starts at once.
"""

from __future__ import annotations

import os
import re
from typing import Tuple

# The messages of libjpeg's jerror.h and of libpng, as far as damaged images cause them.
_WARNING = re.compile(
    rb"(Corrupt JPEG data: |Premature end of JPEG file|Warning: unknown JFIF revision number "
    rb"|Inconsistent progression sequence for component |Invalid SOS parameters for sequential JPEG"
    rb"|Unknown Adobe color transform code |Improper call to JPEG library in state "
    rb"|libpng warning: )[^\r\n]*\r?\n"
)
_BEGINNINGS = (
    b"Corrupt JPEG data",
    b"Premature end of",
    b"Warning: unknown JFIF",
    b"Inconsistent progression",
    b"Invalid SOS parameters",
    b"Unknown Adobe color",
    b"Improper call to",
    b"libpng warning",
)
_HINT = (
    b"image decoder: %s\n  further warnings of the decoder are counted, not printed; "
    b"estimator-det check-data names the damaged images\n"
)
_MAX_TEXT = 200


def split(text: bytes) -> Tuple[bytes, bytes]:
    """(what can be passed on, the beginning of a line that may become a warning)."""
    start = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    line = text[start:]
    may_warn = line and any(
        line.startswith(beginning) or beginning.startswith(line) for beginning in _BEGINNINGS
    )
    return (text[:start], line) if may_warn else (text, b"")


def main(source: int = 0, target: int = 1) -> None:
    """Copies until the end of `source`, a file descriptor, then reports the count."""
    warnings = 0
    pending = b""

    def replacement(found: re.Match[bytes]) -> bytes:
        nonlocal warnings
        warnings += 1
        return _HINT % found[0].rstrip()[:_MAX_TEXT] if warnings == 1 else b""

    for text in iter(lambda: os.read(source, 65536), b""):
        ready, pending = split(pending + text)
        _write(target, _WARNING.sub(replacement, ready))
    _write(target, _WARNING.sub(replacement, pending))
    if warnings > 1:
        _write(target, b"image decoder: %d warnings in all\n" % warnings)


def _write(target: int, text: bytes) -> None:
    while text:
        text = text[os.write(target, text) :]


if __name__ == "__main__":
    main()
