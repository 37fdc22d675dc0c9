"""Contents of a published model file in any format."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.console.printing import plain
from estimator_det.errors import RunError
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.object_based import ObjectGraph
from model_fn.checkpoints.repair import require_whole
from model_fn.checkpoints.variables import OBJECT_GRAPH, num_neutral_layers


class Named(NamedTuple):
    """An array and where it comes from."""

    name: str  # name of the constant, tensor or variable
    values: np.ndarray


class Norm(NamedTuple):
    """Batch norm that is not folded; None if the layer lacks an array."""

    name: str  # name of the operation
    gamma: Optional[Named]
    beta: Optional[Named]
    mean: Named
    variance: Named
    epsilon: float


class Convolution(NamedTuple):
    """A convolution or fully connected layer with the constants that follow it.

    Its output is `scale * (inputs * weights) + offset`, and then `norm` of that.
    """

    name: str  # name of the operation
    kind: str  # "conv", "depthwise" or "dense"
    weights: Named  # [h, w, in, out], [h, w, in, multiplier] or [in, out]
    scale: Optional[Named]  # [out]
    offset: Optional[Named]  # [out]
    norm: Optional[Norm]

    @property
    def token(self) -> Tuple[object, ...]:
        """Properties that layers of two models must share to be the same."""
        return (self.kind, *self.weights.values.shape)

    @property
    def arrays(self) -> List[Named]:
        """The arrays of the layer and of its batch norm."""
        return [each for each in (*self, *(self.norm or ())) if isinstance(each, Named)]


class Structure(NamedTuple):
    """The convolutions of a model in its order, and which of them feed which."""

    convolutions: Tuple[Convolution, ...]
    tokens: Dict[str, Tuple[object, ...]]  # tokens of convolutions and pools by name of operation
    parents: Dict[str, Tuple[str, ...]]  # the nearest convolutions and pools before each


class Published(NamedTuple):
    """The content of a model file."""

    arrays: Mapping[str, np.ndarray]  # constants and variables by name
    structure: Structure
    has_names: bool  # True if operations are named after the variables' scopes
    anchors: Optional[np.ndarray] = None  # float32 [A, 4], ymin, xmin, ymax, xmax
    label_map: Optional[Dict[int, str]] = None  # id -> name
    image_size: Optional[Tuple[int, int]] = None  # height and width that images are resized to
    num_neutral: int = 0  # layers whose statistics an earlier import has made neutral
    from_functions: bool = False  # layers of functions have no order, so names must decide
    zeros: FrozenSet[str] = frozenset()  # constants without content, which are read as zeros
    # Key in `arrays` of the variable at a path of an object-based checkpoint; None for other files.
    objects: Optional[ObjectGraph] = None
    format: str = ""  # format that `read_published` read
    path: str = ""  # file or folder that it read


_GET_AGAIN = "Get the model again from its publisher, or export it again"


def damaged(fault: str) -> RunError:
    """The error of a model that cannot be read; the fault begins with its path."""
    return RunError(f"{fault}. {_GET_AGAIN}")


def other_format(fault: str) -> RunError:
    """The same of a file that may have another format."""
    return RunError(f"{fault}. {_GET_AGAIN}, or give import its format with --from")


def as_float32(values: np.ndarray) -> np.ndarray:
    """Half-precision numbers as float32; others as they are."""
    is_half = values.dtype in (np.float16, tf.bfloat16.as_numpy_dtype)
    return values.astype(np.float32) if is_half else values


def checkpoint_reader(prefix: str) -> Any:
    """A reader of a checkpoint whose files are whole; RunError names what is missing."""
    require_whole(prefix)
    return tf1.train.NewCheckpointReader(prefix)


def float_variables(prefix: str) -> Dict[str, np.ndarray]:
    """The floating-point variables of a checkpoint by name, half precision as float32."""
    reader = checkpoint_reader(prefix)
    kinds = reader.get_variable_to_dtype_map()
    names = [name for name, kind in kinds.items() if kind.is_floating]
    return {name: as_float32(reader.get_tensor(name)) for name in names}


def read_checkpoint(path: str) -> Published:
    """The content of a checkpoint: of the model its variables only, by their names."""
    prefix = find_checkpoint(path)
    arrays = float_variables(prefix)
    reader = checkpoint_reader(prefix)
    objects = ObjectGraph(prefix) if reader.has_tensor(OBJECT_GRAPH) else None
    structure = Structure((), {}, {})
    num_neutral = num_neutral_layers(prefix)
    return Published(
        arrays, structure, has_names=True, num_neutral=num_neutral, objects=objects, path=prefix
    )


def refuse_not_finite(published: Published) -> None:
    """Raises RunError for the first array with NaN or infinite numbers.

    Scalars are no weights: those of post-processing may be infinite.
    """
    arrays = {**published.arrays}
    for layer in published.structure.convolutions:
        for part in layer.arrays:
            # A part may be computed from the constant with its name.
            if np.isfinite(arrays.get(part.name, part.values)).all():
                arrays[part.name] = part.values
    for name, values in arrays.items():
        if values.dtype.kind == "f" and values.ndim and not np.isfinite(values).all():
            bad = int(np.size(values) - np.isfinite(values).sum())
            raise damaged(
                f"{published.path}: {plain(name)} has {bad} numbers of {np.size(values)} that are "
                "NaN or infinite. The weights of a model must be finite"
            )
