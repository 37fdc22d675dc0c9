"""COCO's text of run lengths: five bits in each character, differences from the fourth count on."""

from __future__ import annotations

from typing import List

_FIRST_CHARACTER, _BITS, _MORE = 48, 5, 0x20
_MAX_SHIFT = 60  # far above the pixels of any image


class RunLengthError(ValueError):
    """A text that has no run lengths; the message says why."""


def from_text(text: str) -> List[int]:
    """Returns the counts; they may be negative or have any sum.

    pycocotools does not check such text, and reads beyond its end.
    """
    counts: List[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - _FIRST_CHARACTER
        if not 0 <= bits < 2 * _MORE or shift > _MAX_SHIFT:
            raise RunLengthError(f"has the character {character!r}, not COCO's compressed form")
        value |= (bits & (_MORE - 1)) << shift
        shift += _BITS
        if bits & _MORE:
            continue
        if bits & _MORE >> 1:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise RunLengthError("ends within a number")
    return counts
