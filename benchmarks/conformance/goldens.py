"""Golden numbers of configurations: records, fixed inputs, name-seeded weights, overrides.

Layout of the folder, tests/golden/models or its subfolder tf2: `pipelines/NAME.config`
(configurations without comments), `configs/NAME.json` (graph facts), `numeric/NAME.{json,npz}`
(values),
`train_trace/NAME.json` (optimizer steps) and `numeric/_inputs.npz` (images). For records of the
TF2 line, see `tf2`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import pathlib
import re
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence

import numpy as np

from benchmarks.conformance import seeded, tf2
from benchmarks.conformance.seeded import SeededValue
from estimator_det.compat import tf1
from estimator_det.config import pipeline
from estimator_det.protos import pipeline_pb2

FOLDER = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "models"
FOLDERS = (FOLDER, FOLDER / "tf2")
PIPELINES = "pipelines"

# Groundtruth of the golden runs: three boxes an image, normalized yxyx, and class slots from 0.
BOXES = np.array(
    [
        [[0.1, 0.1, 0.5, 0.5], [0.2, 0.3, 0.9, 0.8], [0.4, 0.05, 0.95, 0.45]],
        [[0.05, 0.1, 0.6, 0.7], [0.3, 0.5, 0.8, 0.95], [0.1, 0.6, 0.4, 0.9]],
    ],
    np.float32,
)
CLASS_SLOTS = (1, 2, 1)
CLASS_SLOTS_OF_KEYPOINTS = (0, 2, 0)
NUM_KEYPOINTS = 17
LOSSES = 1e-3
MINED_LOSSES = 1e-2  # one anchor changing rank moves a hard-mined sum
CONTEXT_SEED = 7  # seed of context features, which are normal numbers


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration and its golden numbers; records that were not measured are None."""

    name: str
    config_file: pathlib.Path
    folder: pathlib.Path  # has all golden numbers
    graph: Optional[Dict[str, Any]]
    numeric: Optional[Dict[str, Any]]
    arrays: Dict[str, np.ndarray]
    trace: Optional[Dict[str, Any]]
    scales: Optional[Dict[str, float]] = None  # factors of values of variables; of the TF2 line
    image_width: int = 300

    @property
    def why_without_numbers(self) -> str:
        """The recorded error of a configuration that could not be measured; else ""."""
        if self.trace or (self.graph or {}).get("variables") or (self.numeric or {}).get("eval_ok"):
            return ""
        return (self.graph or self.numeric or {}).get("error") or "for a reason not recorded"

    @functools.cached_property
    def config(self) -> Any:
        """The pipeline configuration."""
        return pipeline.read_pipeline(self.config_file)

    def overridden(self, recorded: Sequence[str]) -> Any:
        """The pipeline configuration as a golden run had it."""
        return apply_recorded_overrides(self.config, tf2.with_files(recorded, self.folder))

    @property
    def model(self) -> Any:
        """The member of `model` that is set, e.g. the `Ssd` message."""
        return getattr(self.config.model, self.config.model.WhichOneof("model"))

    def images(self) -> np.ndarray:
        """uint8 [2, 300, 300, 3] or less wide, the images of every numeric run."""
        folder = self.folder if self.scales is None else self.folder.parent
        with np.load(folder / "numeric" / "_inputs.npz") as stored:
            return stored["images_300"][:, :, : self.image_width]

    def images_of_graph(self) -> np.ndarray:
        """Images [2, h, w, 3] of the facts of the graph."""
        if self.scales is not None:
            return self.images()
        return np.random.default_rng(0).integers(0, 256, (2, 480, 640, 3))

    def seeded_value(self, variant: Optional[str] = None) -> SeededValue:
        """The function of a golden run from variable name and shape to value."""
        scales = self.scales
        if scales is None:
            if variant not in (None, *seeded.VALUES):
                raise ValueError(f"the record of {self.name} needs {variant!r}, which is unknown")
            return seeded.VALUES[variant or "det_value"]
        return lambda name, shape: seeded.tf2_value(name, shape, scales.get(name, 1.0))

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
        averages itself. The Object Detection API does not apply the option to the backbones
        MobileNet v1 and ResNet, which leaves 54 to 310 operations in the collection. Trained values
        are the same.
        """
        if getattr(self.model, "inplace_batchnorm_update", False):
            return 0
        return (self.graph or {})["update_ops_count"]


def names(golden_dir: pathlib.Path, pattern: str) -> List[str]:
    """Names with any golden numbers that match a glob, sorted."""
    stems = {
        path.stem
        for part in ("configs", "numeric", "train_trace")
        for path in (golden_dir / part).glob("*.json")
    }
    return sorted(name for name in stems if fnmatch.fnmatch(name, pattern))


def read(golden_dir: pathlib.Path, name: str, configs_dir: Optional[pathlib.Path] = None) -> Case:
    """All that the folder of golden numbers holds for `name`."""
    graph, numeric, trace = (
        tf2.read_json(golden_dir / part / f"{name}.json")
        for part in ("configs", "numeric", "train_trace")
    )
    arrays = _read_arrays(golden_dir / "numeric" / f"{name}.npz")
    recorded = graph or numeric or trace or {}
    config_file = (configs_dir or golden_dir / PIPELINES) / f"{recorded.get('config', name)}.config"
    case = Case(name, config_file, golden_dir, graph, numeric, arrays, trace)
    if graph is None or not tf2.is_graph(graph):
        return case
    record = tf2.numeric_record(numeric, arrays, graph) if numeric else None
    steps = _read_arrays(golden_dir / "train_trace" / f"{name}.npz")
    return dataclasses.replace(
        case,
        graph=tf2.graph_record(graph, numeric),
        numeric=record,
        arrays=tf2.numeric_arrays(arrays, record) if record else {},
        trace=tf2.trace_record(trace, steps, graph) if trace else None,
        scales=tf2.scales(graph),
        image_width=tf2.image_width(graph),
    )


def _read_arrays(path: pathlib.Path) -> Dict[str, np.ndarray]:
    if not path.exists():
        return {}
    with np.load(path) as stored:
        return dict(stored)


def apply_recorded_overrides(
    config: pipeline_pb2.TrainEvalPipelineConfig, recorded: Sequence[str]
) -> Any:
    """A copy of the pipeline configuration with a golden record's changes made to it.

    Records say "path: old -> new", "path = new" or "path field = field = new"; a path starts at the
    pipeline, at the model ("ssd.…") or inside it ("image_resizer"); "constant X" is a constant
    learning rate.
    """
    kind = config.model.WhichOneof("model")
    assignments = []
    for line in _single_overrides(recorded):
        match = re.fullmatch(r"(\S+): .* -> (.*?)(?: \(.*\))?", line, re.DOTALL) or re.fullmatch(
            r"(\S+) = (.*)", line, re.DOTALL
        )
        if match is None:
            raise ValueError(f"override {line!r} is neither 'path: old -> new' nor 'path = new'")
        path, value = match.groups()
        root = path.split(".")[0]
        if root == kind:
            path = f"model.{path}"
        elif root not in config.DESCRIPTOR.fields_by_name:
            path = f"model.{kind}.{path}"
        constant = re.fullmatch(r"constant (\S+)", value)
        if constant:
            path += ".constant_learning_rate.learning_rate"
            value = constant.group(1)
        elif "{" in value:
            value = "{" + value + "}"
        assignments.append(f"{path}={value}")
    return pipeline.apply_overrides(config, assignments)


def _single_overrides(recorded: Sequence[str]) -> Iterator[str]:
    """Overrides of one field each."""
    for line in recorded:
        match = re.fullmatch(r"(\S+) (\w+) = (\w+) = (\S+)", line)
        if match is None:
            yield line
            continue
        message, *names, value = match.groups()
        yield from (f"{message}.{name} = {value}" for name in names)


def has_keypoints(model: Any) -> bool:
    """Whether a model learns keypoints."""
    return bool(getattr(model, "keypoint_estimation_task", ()))


def one_hot_classes(model: Any) -> np.ndarray:
    """float32 [2, 3, K], the classes of the fixed groundtruth."""
    slots = np.array(CLASS_SLOTS_OF_KEYPOINTS if has_keypoints(model) else CLASS_SLOTS)
    columns = np.eye(model.num_classes, dtype=np.float32)
    return np.tile(columns[slots % model.num_classes], (2, 1, 1))


def keypoints() -> np.ndarray:
    """float32 [2, 3, 17, 2], the keypoints of the fixed groundtruth; NaN for absent ones."""
    places = np.arange(NUM_KEYPOINTS)
    shares = (np.stack([7 * places % 17, 5 * places % 17], axis=1) + 0.5) / 17
    boxes = BOXES.astype(np.float64)[:, :, np.newaxis]
    points = boxes[..., :2] + (boxes[..., 2:] - boxes[..., :2]) * shares
    absent = (places + np.arange(BOXES.shape[1])[:, np.newaxis]) % 5 == 4
    return np.where(absent[..., np.newaxis], np.nan, points).astype(np.float32)


class Names:
    """Names in golden records of the variables of a graph: their own, or keys of the TF2 line."""

    def __init__(self, detector: Any) -> None:
        self._paths = detector.object_paths([v.op.name for v in tf1.global_variables()])

    def __call__(self, variable: Any) -> str:
        return self._paths.get(variable.op.name, variable.op.name)


def load(
    session: Any,
    variables: Iterable[Any],
    value: SeededValue,
    name_of: Callable[[Any], str] = lambda variable: variable.op.name,
) -> None:
    """Runs the initializers with the name-seeded values in place of their own."""
    feed, initializers = {}, []
    for variable in variables:
        initializers.append(variable.initializer)
        shape = variable.shape.as_list()
        feed[variable.initializer.inputs[1]] = value(name_of(variable), shape)
    session.run(initializers, feed)


def moved(value: SeededValue, repeat: int) -> SeededValue:
    """`value`, each number at random one float32 up, one down, or as it was."""

    def moved_value(name: str, shape: Sequence[int]) -> np.ndarray:
        exact = np.asarray(value(name, shape), np.float32)
        random = np.random.default_rng([repeat, zlib.crc32(name.encode())])
        step = random.integers(-1, 2, exact.shape).astype(np.float32)
        return exact + step * np.spacing(exact)

    return moved_value
