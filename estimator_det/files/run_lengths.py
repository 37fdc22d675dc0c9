"""COCO's run lengths: a list of counts, or text with five bits in each character.

In the text, counts from the fourth on are differences from the last but one.
"""

from __future__ import annotations

from typing import Any, List, Tuple

_FIRST_CHARACTER, _BITS, _MORE = 48, 5, 0x20
_MAX_SHIFT = 60  # far above the pixels of any image


class RunLengthError(ValueError):
    """Counts that cannot be used; the message says why, and follows the name of the field."""


def parse(counts: Any, size: Tuple[int, int]) -> List[int]:
    """Returns the counts of a mask of this height and width, given as text or list.

    pycocotools does not check such text, and reads beyond its end.
    """
    numbers = _from_text(counts) if isinstance(counts, str) else counts
    if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
        raise RunLengthError(f"is {str(counts)[:100]!r}; it must be lengths of runs")
    if sum(numbers) != size[0] * size[1]:
        raise RunLengthError(
            f"has {sum(numbers):,} pixels, and its size {size[0] * size[1]:,}; they must be equal"
        )
    return numbers


def _from_text(text: str) -> List[int]:
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
