"""Advice about TPU: a component declares it with its registry, or beside its maker."""

from __future__ import annotations

import os
import pathlib
from typing import Dict, Iterator, Mapping, NamedTuple, Tuple


class TpuAdvice(NamedTuple):
    """Changes of a configuration for a TPU that cannot run an operation of a component."""

    place: str  # the component's source file (`__file__`), or the folder of its sources
    # Field -> remedy. A field is one of the detector's message, or begins with train_config. The
    # first that the detector has counts.
    remedies: Mapping[str, str]


DECLARED: Dict[str, TpuAdvice] = {}  # by absolute place


def declare(advice: TpuAdvice) -> None:
    """Enters advice for the operations that the code at its place creates."""
    DECLARED[os.path.abspath(advice.place)] = advice


def remedies_at(file: str) -> Iterator[Tuple[str, str]]:
    """Fields and remedies declared for a source file, then those for the folders around it."""
    path = pathlib.Path(os.path.abspath(file))
    for place in map(str, (path, *path.parents)):
        if place in DECLARED:
            yield from DECLARED[place].remedies.items()
