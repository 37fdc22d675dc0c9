"""Which network the variables of a checkpoint belong to, by the scopes of their names."""

from __future__ import annotations

import collections
from typing import Dict, Iterable, Mapping

from estimator_det.config.printing import counted
from model_fn.checkpoints.variables import SLOT

_EXTRACTOR = "FeatureExtractor"  # how the scopes of extractors end in a detector
_HEADS = "BoxPredictor"  # in the names of all variables of predictors, and of no others
_SCOPES_SHOWN = 3


def network_scopes(names: Iterable[str]) -> Dict[str, int]:
    """Scope -> variables of the networks, without heads and slots; the largest first.

    In a detector these are the scopes in its extractors, such as `FeatureExtractor/MobilenetV2`;
    in a classifier its outermost scopes.
    """
    kept = [name for name in names if _HEADS not in name and not SLOT.search(name)]
    detector_names = [name for name in kept if is_of_detector(name)]
    depth = 2 if detector_names else 1
    counts = collections.Counter(
        "/".join(name.split("/")[:depth]) for name in detector_names or sorted(kept)
    )
    return dict(counts.most_common())


def is_of_detector(name: str) -> bool:
    """Whether a variable or scope is in an extractor of a detector."""
    outermost, inner, _ = name.partition("/")
    return bool(inner) and outermost.endswith(_EXTRACTOR)


def network_name(scope: str) -> str:
    """The network of a scope of `network_scopes`, the same in detectors and classifiers."""
    return scope.rpartition("/")[2]


def scopes_text(scopes: Mapping[str, int]) -> str:
    """The largest scopes with their numbers of variables."""
    shown = [f"{scope} ({counted(count, 'variable')})" for scope, count in scopes.items()]
    if not shown:
        return "no variable of a network"
    num_hidden = len(shown) - _SCOPES_SHOWN
    return ", ".join(shown[:_SCOPES_SHOWN]) + (
        f" and {num_hidden} more scopes" if num_hidden > 0 else ""
    )
