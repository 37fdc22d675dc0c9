"""Finds the names of our layers in a file, which may have a prefix there, such as `import/`."""

from __future__ import annotations

from typing import Any, Dict, List, Set, Tuple

from estimator_det.config.printing import plain
from exporters.importing.matching import longest_scope, scope_of
from exporters.importing.published import Named, Norm, Published, Structure
from model_fn.checkpoints.errors import RunError

_MAX_PARTS = 32  # parts of a name; names of layers have ten at most


def align_names(published: Published, ours: Structure, path: str) -> Tuple[Published, List[str]]:
    """A file's content with the names of our layers, and lines for the report."""
    scopes = {scope_of(layer.weights.name) for layer in ours.convolutions}
    prefix_map = _prefixes(published, scopes) if published.has_names else {}
    best = max(map(len, prefix_map.values()), default=0)
    if published.from_functions and 2 * best < len(scopes):
        raise RunError(
            f"{path}: {best} of {len(scopes)} layers of the model in the configuration, such as "
            f"{min(scopes)}, are in the file by name, which has layers such as "
            f"{plain(published.structure.convolutions[0].name)}. Give the configuration of this "
            "model; models that Keras built, as those of the Object Detection API for TensorFlow "
            "2, have other layers and cannot be imported"
        )
    prefixes = sorted(prefix for prefix, names in prefix_map.items() if len(names) == best)
    if "" in prefixes or 2 * best < len(scopes):
        return published, []
    if len(prefixes) > 1:
        raise RunError(
            f"{path} contains the layers of the model {len(prefixes)} times, such as under "
            f"{plain(prefixes[0])} and {plain(prefixes[1])}, so which ones to import is not known. "
            "Give a file with one of them"
        )
    note = f"names in the file begin with {prefixes[0]}, which is left out below"
    return _without_prefix(published, prefixes[0]), [note]


def _prefixes(published: Published, scopes: Set[str]) -> Dict[str, Set[str]]:
    """Scopes of our layers that the file has, by what is before them in its names."""
    names = set(published.arrays)
    for layer in published.structure.convolutions:
        names |= {layer.name, layer.weights.name}
    names_by_prefix: Dict[str, Set[str]] = {}
    for parts in (name.split("/") for name in names):
        for start in range(len(parts) if len(parts) <= _MAX_PARTS else 0):
            scope = longest_scope("/".join(parts[start:]), scopes)
            if scope:
                prefix = "".join(f"{part}/" for part in parts[:start])
                names_by_prefix.setdefault(prefix, set()).add(scope)
    return names_by_prefix


def _without_prefix(published: Published, prefix: str) -> Published:
    def short(name: str) -> str:
        return name.removeprefix(prefix)

    def shortened(part: Any) -> Any:
        """A layer, its batch norm or an array, with short names in it and in its parts."""
        fields = part._asdict().items()
        parts = {key: shortened(each) for key, each in fields if isinstance(each, (Named, Norm))}
        return part._replace(name=short(part.name), **parts)

    before = published.structure
    structure = Structure(
        tuple(map(shortened, before.convolutions)),
        {short(name): token for name, token in before.tokens.items()},
        {short(name): tuple(map(short, names)) for name, names in before.parents.items()},
    )
    arrays = {short(name): values for name, values in published.arrays.items()}
    zeros = frozenset(map(short, published.zeros))
    return published._replace(arrays=arrays, structure=structure, zeros=zeros)
