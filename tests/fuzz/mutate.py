"""Random damage to bytes and to text of the protocol buffers; the same seed, the same damage."""

from __future__ import annotations

import re

import numpy as np

EXTREMES = (
    "0", "-1", "1e38", "-1e38", "nan", "inf", "4294967296", "-2147483648", "9223372036854775807",
    '""', "true", "{", "}", "[]", "'", "\\xff", "null", "9" * 400, "[" * 3000, "../", '"\\ud800"',
)  # fmt: skip
_WORD = re.compile(r"[\w.+-]+|\S")


def mutate_bytes(data: bytes, seed: int) -> bytes:
    """One to four changes: of single bytes, or of pieces that are cut, repeated or inserted."""
    random = np.random.default_rng(seed)
    for _ in range(int(random.integers(1, 5))):
        if not data:
            return data
        at = int(random.integers(len(data)))
        length = int(random.integers(1, 2 + len(data) // 4))
        piece = data[at : at + length]
        kind = int(random.integers(6))
        if kind == 0:
            data = data[:at] + bytes([int(random.integers(256))]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + bytes([data[at] ^ (1 << int(random.integers(8)))]) + data[at + 1 :]
        elif kind == 2:
            data = data[:at] + data[at + length :]
        elif kind == 3:
            data = data[:at] + piece + data[at:]
        elif kind == 4:
            data = data[:at] + random.bytes(min(length, 64)) + data[at:]
        else:
            data = data[:at]
    return data


def mutate_text(text: str, seed: int) -> str:
    """One to three words are removed, repeated, exchanged or replaced by extreme values."""
    random = np.random.default_rng(seed)
    for _ in range(int(random.integers(1, 4))):
        words = list(_WORD.finditer(text))
        if not words:
            return text
        word, other = (words[int(i)] for i in random.integers(len(words), size=2))
        extreme = EXTREMES[int(random.integers(len(EXTREMES)))]
        new = ("", f"{word.group()} {word.group()}", other.group(), extreme, extreme)
        replacement = new[int(random.integers(len(new)))]
        text = text[: word.start()] + replacement + text[word.end() :]
    return text
