"""One configuration with its golden numbers, and functions that all checks use."""

from __future__ import annotations

import dataclasses
import pathlib
import zlib
from typing import Any, Iterable, Sequence

import numpy as np

from benchmarks.conformance import goldens

LOSSES = 1e-3
MINED_LOSSES = 1e-2  # one anchor changing rank moves a hard-mined sum


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration with its golden numbers."""

    golden: goldens.Golden
    config: Any
    golden_dir: pathlib.Path

    @property
    def model(self) -> Any:
        """The member of `model` that is set, e.g. the `Ssd` message."""
        return getattr(self.config.model, self.config.model.WhichOneof("model"))

    def overridden(self, recorded: Iterable[str]) -> Any:
        """The pipeline configuration as a golden run had it."""
        return goldens.apply_recorded_overrides(self.config, list(recorded))

    @property
    def loss_tolerance(self) -> float:
        """Relative tolerance of losses that the golden numbers were published with."""
        loss = getattr(self.model, "loss", None)
        is_mined = loss is not None and loss.HasField("hard_example_miner")
        return MINED_LOSSES if is_mined else LOSSES

    @property
    def num_update_ops(self) -> int:
        """Number of update operations of the training graph.

        As recorded, but for `inplace_batchnorm_update: true`: there every layer updates its moving
        averages itself. The reference does not apply the option to the backbones MobileNet v1 and
        ResNet, which leaves 54 to 310 operations in the collection. Trained values are the same.
        """
        if getattr(self.model, "inplace_batchnorm_update", False):
            return 0
        return (self.golden.graph or {})["update_ops_count"]


def one_hot_classes(num_classes: int) -> np.ndarray:
    """float32 [2, 3, K], the classes of the fixed groundtruth."""
    slots = np.array(goldens.CLASS_SLOTS) % num_classes
    return np.tile(np.eye(num_classes, dtype=np.float32)[slots], (2, 1, 1))


def load(session: Any, variables: Iterable[Any], value: goldens.SeededValue) -> None:
    """Runs the initializers with the name-seeded values in place of their own."""
    feed, initializers = {}, []
    for variable in variables:
        initializers.append(variable.initializer)
        feed[variable.initializer.inputs[1]] = value(variable.op.name, variable.shape.as_list())
    session.run(initializers, feed)


def moved(value: goldens.SeededValue, repeat: int) -> goldens.SeededValue:
    """`value`, each number at random one float32 up, one down, or as it was."""

    def moved_value(name: str, shape: Sequence[int]) -> np.ndarray:
        exact = np.asarray(value(name, shape), np.float32)
        random = np.random.default_rng([repeat, zlib.crc32(name.encode())])
        step = random.integers(-1, 2, exact.shape).astype(np.float32)
        return exact + step * np.spacing(exact)

    return moved_value
