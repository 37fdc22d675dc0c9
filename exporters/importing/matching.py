"""Finds the layers of one model in another: by name where names are kept, else by structure.

Names in a file may have a prefix, such as `import/`, which `align_names` removes.
Layers are the same by structure if they have the same kind and shape and so have all layers before
them. Where that leaves several, the layers after them decide, and then the order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Container, Dict, Hashable, List, Mapping, Sequence, Set, Tuple

from estimator_det.console.printing import plain
from estimator_det.errors import RunError
from exporters.reading.published import Convolution, Named, Norm, Published, Structure

_MAX_PARTS = 32  # parts of a name; names of layers have ten at most


def scope_of(name: str) -> str:
    """`"a/b/weights"` -> `"a/b"`."""
    return name.rpartition("/")[0]


def match_layers(
    ours: Structure, theirs: Structure, *, names_match: bool, follows_order: bool
) -> Dict[str, Convolution]:
    """Our convolutions by name of operation -> theirs, found by name or else by structure.

    Args:
        names_match: True if the file has the names of our layers.
        follows_order: True if the order of the file may decide where nothing else does.
    """
    name_matches = _by_scope(ours, theirs) if names_match else {}
    # One layer of the file cannot be two of ours.
    used = {layer.name for layer in name_matches.values()}
    structure_matches = _by_structure(ours, theirs, follows_order)
    rest = {name: layer for name, layer in structure_matches.items() if layer.name not in used}
    return {**rest, **name_matches}


def _by_scope(ours: Structure, theirs: Structure) -> Dict[str, Convolution]:
    """Pairs of layers of one scope, where each model has one such layer."""
    scopes: Dict[str, List[Convolution]] = {}
    for layer in ours.convolutions:
        scopes.setdefault(scope_of(layer.weights.name), []).append(layer)
    candidates: Dict[str, List[Convolution]] = {}
    for layer in theirs.convolutions:
        # Converters rename operations or weights, seldom both.
        for name in (layer.name, layer.weights.name):
            scope = longest_scope(name, scopes)
            if scope:
                candidates.setdefault(scope, []).append(layer)
                break
    return {
        scopes[scope][0].name: layers[0]
        for scope, layers in candidates.items()
        if len(layers) == len(scopes[scope]) == 1 and layers[0].token == scopes[scope][0].token
    }


def longest_scope(name: str, scopes: Container[str]) -> str:
    """The innermost of some scopes that a name is in; an empty text if it is in none."""
    while name:
        name = scope_of(name)
        if name in scopes:
            return name
    return ""


def _by_structure(
    ours: Structure, theirs: Structure, follows_order: bool
) -> Dict[str, Convolution]:
    layers = {layer.name: layer for layer in theirs.convolutions}
    matches: Dict[str, Convolution] = {}
    mine, their_groups = _groups(ours), _groups(theirs)
    for color, names in mine.items():
        candidates = their_groups.get(color, [])
        # Inlined functions have lost their order, so only unique layers are safe then.
        if len(candidates) == len(names) and (follows_order or len(names) == 1):
            matches.update((name, layers[each]) for name, each in zip(names, candidates))
    return matches


def _groups(structure: Structure) -> Dict[Hashable, List[str]]:
    """Convolutions that nothing but their order distinguishes, in that order."""
    names = [layer.name for layer in structure.convolutions]
    # Colors by the past alone often identify every layer, and survive a cut-off head.
    before = _colors(structure, structure.parents)
    counts = Counter(before[name] for name in names)
    children: Dict[str, List[str]] = {}
    for name, parents in structure.parents.items():
        for parent in parents:
            children.setdefault(parent, []).append(name)
    after = _colors(structure, children)
    groups: Dict[Hashable, List[str]] = {}
    for name in names:
        past = before[name]
        # A layer that its past identifies is found whatever comes after it.
        key: Hashable = past if counts[past] == 1 else (past, after[name])
        groups.setdefault(key, []).append(name)
    return groups


def _colors(structure: Structure, links: Mapping[str, Sequence[str]]) -> Dict[str, int]:
    """Colors by layer (color refinement): equal if all linked layers have equal tokens."""
    colors = {name: hash(token) for name, token in structure.tokens.items()}
    # Each round looks one layer farther; no path is longer than the number of layers.
    for _ in range(len(colors) + 1):
        new = {
            name: hash((token, tuple(sorted(colors[each] for each in links.get(name, ())))))
            for name, token in structure.tokens.items()
        }
        if new == colors:
            break
        colors = new
    return colors


def align_names(published: Published, ours: Structure) -> Tuple[Published, List[str]]:
    """A file's content with the names of our layers, and lines for the report."""
    scopes = {scope_of(layer.weights.name) for layer in ours.convolutions}
    prefix_map = _prefixes(published, scopes) if published.has_names else {}
    best = max(map(len, prefix_map.values()), default=0)
    if published.from_functions and 2 * best < len(scopes):
        raise RunError(
            f"{published.path}: {best} of {len(scopes)} layers of the model in the configuration, "
            f"such as {min(scopes)}, are in the file by name, which has layers such as "
            f"{plain(published.structure.convolutions[0].name)}. Give the configuration of this "
            "model; models that Keras built have other layers and cannot be imported, unless they "
            "are of the Object Detection API for TensorFlow 2"
        )
    prefixes = sorted(prefix for prefix, names in prefix_map.items() if len(names) == best)
    if "" in prefixes or 2 * best < len(scopes):
        return published, []
    if len(prefixes) > 1:
        raise RunError(
            f"{published.path} contains the layers of the model {len(prefixes)} times, such as "
            f"under {plain(prefixes[0])} and {plain(prefixes[1])}, so which ones to import is not "
            "known. Give a file with one of them"
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
