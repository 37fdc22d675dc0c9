"""Plug-ins: components in a user's own modules, without a change of this package.

A module registers its components when it is imported. Only three kinds of modules are imported:
arguments of `--import`, entry points `estimator_det.plugins` of installed packages, and modules in
the record of a run, `plugins.json` beside `pipeline.config`.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import json
import math
import os
import pathlib
import sys
import traceback
import typing
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from google.protobuf.struct_pb2 import Struct

from estimator_det import files
from estimator_det.config.text import nearest
from estimator_det.console.printing import plain, report
from estimator_det.errors import Problem, UsageError, error

GROUP = "estimator_det.plugins"
RECORD_FILE = "plugins.json"
HINT = "If a module of yours registers it, add --import MODULE; if a package does, install it"

# Packages that register the built-in components.
_OWN = ("estimator_det", "inputs", "model_fn", "exporters")
_folders: Dict[str, str] = {}  # imported modules, and the folder that each was found in
_registering: Set[str] = set()  # modules of others that have registered a component
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_SETTERS = {bool: "bool_value: true", str: 'string_value: "…"'}


def load(modules: Sequence[str], runs: Iterable[Optional[str]] = ()) -> None:
    """Imports entry points, the named modules, and those that the records in `runs` name."""
    _load_entry_points()
    for name in modules:
        remedy = "Correct the name, or start in the folder that has it"
        _import(name, os.getcwd(), f"--import {name}", remedy, "Rename your module")
    for folder in runs:
        if folder:
            load_record(folder)


def _load_entry_points() -> None:
    points = importlib.metadata.entry_points()
    # Python 3.9 returns a dictionary, which has no `select`.
    group = points.select(group=GROUP) if hasattr(points, "select") else points.get(GROUP, ())
    for point in group:
        field = f"the plug-in {point.name} ({plain(point.value)}) of an installed package"
        with _faults_named(field, "Repair the package, or remove it with pip uninstall"):
            point.load()


@contextlib.contextmanager
def _faults_named(field: str, remedy: str) -> Iterator[None]:
    """Context manager: whatever the code of an imported module raises becomes a UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        text = str(error) or "no message"
        if isinstance(error, SystemExit):
            text = "ends the program"
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"{field} cannot be imported: {type(error).__name__}: {plain(text)} "
            f"({plain(place.filename)}, line {place.lineno}). {remedy}"
        ) from error


def note_registration(module: str) -> None:
    """Remembers that a module registers a component."""
    if module.partition(".")[0] not in _OWN:
        _registering.add(module)


def _import(name: str, folder: str, field: str, remedy: str, other_name: str) -> None:
    """Imports a module of `folder` or an installed one; other modules of its name are refused."""
    if name in _folders:
        return
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{field} is not the name of a module. {_way_to_name(name)}")
    # At the end: a file of the user such as queue.py must not replace a module of Python.
    if folder not in sys.path and os.path.isdir(folder):
        sys.path.append(folder)
    # A file that was written a moment ago, by a notebook for example, must be found.
    importlib.invalidate_caches()
    registering = set(_registering)
    with _faults_named(field, "Repair it; ESTIMATOR_DET_DEBUG=1 prints the traceback"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that the plug-in itself misses is another fault.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise UsageError(
                f"{field}: there is no such module in {plain(folder)} or installed"
                f"{_nearest_file(name, folder) or '.'} {remedy}"
            ) from None
    if not getattr(module, "__file__", None):
        raise UsageError(f"{field} is not a file of Python, or a folder with __init__.py. {remedy}")
    file = os.path.realpath(str(module.__file__))
    stem = os.path.join(os.path.realpath(folder), *name.split("."))
    wanted = [path for path in (f"{stem}.py", f"{stem}{os.sep}__init__.py") if os.path.exists(path)]
    if wanted and file not in wanted:
        raise UsageError(
            f"{field}: {plain(file)} has the same name as {plain(wanted[0])}. {other_name}"
        )
    # The folder on the path below which the name leads to the file.
    levels = name.count(".") + (os.path.basename(file) == "__init__.py") + 1
    _folders[name] = str(pathlib.Path(file).parents[levels - 1])
    registers = any(f"{each}.".startswith(f"{name}.") for each in _registering)
    if not registers and registering == _registering:
        text = f"warning: {field} registers no component, so it has no effect. Correct the name"
        report(text, sys.stderr, severity="WARNING")


def _way_to_name(name: str) -> str:
    """The remedy for a path or another text in place of the name of a module."""
    folder, _, file = name.removesuffix(".py").removeprefix("./").rpartition("/")
    parts = [*filter(None, folder.split("/")), file]
    if not all(part.isidentifier() for part in parts if part != ".."):
        return "Write the name of its file without .py, such as my_losses for my_losses.py"
    if name.startswith("/") or ".." in parts:
        return f"Start in the folder that has it, with --import {file}"
    return f"Write it like {'.'.join(parts)}"


def _nearest_file(name: str, folder: str) -> str:
    names = os.listdir(folder) if os.path.isdir(folder) else []
    modules = [each[:-3] for each in names if each.endswith(".py")]
    return nearest(name, modules)


def module_files() -> Dict[str, str]:
    """The modules that `load` and `load_record` have imported, and the file of each."""
    return {name: str(sys.modules[name].__file__) for name in _folders}


def save_record(folder: files.AnyPath) -> None:
    """Writes the record of the imported modules into the folder of a run or of an export."""
    if _folders:
        text = json.dumps({"modules": _folders}, indent=1)
        files.write_text(os.path.join(folder, RECORD_FILE), text + "\n")


def changes(folder: files.AnyPath) -> List[str]:
    """Lines about imported modules that are newer than a folder's record, or not in it."""
    path = os.path.join(folder, RECORD_FILE)
    recorded = _read_record(folder)
    if not recorded:
        return [f"{plain(name)} is imported; so far no module was" for name in _folders]
    lines = []
    for name, file in module_files().items():
        if name not in recorded:
            lines.append(f"{plain(name)} is imported; so far it was not")
        elif not files.is_remote(path) and os.path.getmtime(file) > os.path.getmtime(path):
            lines.append(f"{plain(file)} was written after the run began")
    return lines


def load_record(folder: files.AnyPath) -> None:
    """Imports the modules that the record in a folder names, if it has one."""
    for name, home in _read_record(folder).items():
        remedy = f"Give --import {plain(name)} in the folder that has it, or install it"
        field = f"{plain(os.path.join(folder, RECORD_FILE))}: {plain(name)}"
        _import(name, home, field, remedy, remedy)


def require_record(folder: files.AnyPath) -> None:
    """Refuses a record that names modules which `--import` has not imported.

    For programs that look at configurations of others: importing a module runs its code.
    """
    missing = {name: home for name, home in _read_record(folder).items() if name not in _folders}
    if missing:
        options = " ".join(f"--import {plain(name)}" for name in missing)
        named = ", ".join(f"{plain(name)} in {plain(home)}" for name, home in missing.items())
        raise UsageError(
            f"{plain(os.path.join(folder, RECORD_FILE))}: a check does not import the modules that "
            f"it names, since that runs their code: {named}. If you trust them, start in their "
            f"folder with {options}"
        )


def _read_record(folder: files.AnyPath) -> Dict[str, str]:
    """Module -> its folder; empty without a record."""
    path = os.path.join(folder, RECORD_FILE)
    if not files.exists(path):
        return {}
    try:
        modules = dict(json.loads(files.read_text(path, max_bytes=10**6))["modules"])
        if not all(isinstance(home, str) and os.path.isabs(home) for home in modules.values()):
            raise ValueError("each module needs the path of its folder")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{plain(path)} is not a record of plug-ins: {plain(str(error))}. Remove it, and name "
            "the modules with --import"
        ) from None
    return modules


def check_parameters(
    functions: Dict[str, Callable[..., Any]], parameters: Struct, name: str, at: str
) -> Iterator[Problem]:
    """Errors of the parameters at a path, which functions of the component `name` take.

    A function takes what it declares after `*`. Values must fit their annotations, or else their
    defaults.
    """
    known = {key: kind for each in functions.values() for key, kind in parameters_of(each).items()}
    for parameter, value in parameters.fields.items():
        field = f"{at}.{parameter}"
        if parameter not in known:
            listed = ", ".join(f"{key} ({_words(kind[0])})" for key, kind in sorted(known.items()))
            hint = nearest(parameter, list(known)).removeprefix("; ")
            remedy = f"{hint} Its parameters: {listed}" if listed else "Remove it: it has none"
            yield error(field, f"{plain(name)} has no such parameter", remedy.strip())
            continue
        kind = known[parameter][0]
        try:
            _fitted(_plain_value(value), kind)
        except TypeError:
            yield error(
                field,
                f"is {plain(json.dumps(_plain_value(value)))}, but {plain(name)} takes "
                f"{_words(kind)}",
                f"write value {{ {_SETTERS.get(kind, 'number_value: 1')} }}",
            )
    for parameter, (kind, is_required) in known.items():
        if is_required and parameter not in parameters.fields:
            message = f"is not set, but {plain(name)} needs it"
            yield error(f"{at}.{parameter}", message, f"set it to {_words(kind)}")


def bind(
    functions: Dict[str, Callable[..., Any]], parameters: Struct
) -> Dict[str, functools.partial[Any]]:
    """Binds to each function the `parameters` that it declares after `*`."""

    def values(kinds: Dict[str, Tuple[Any, bool]]) -> Dict[str, Any]:
        fields = parameters.fields
        return {
            key: _fitted(_plain_value(fields[key]), kind)
            for key, (kind, _) in kinds.items()
            if key in fields
        }

    return {
        key: functools.partial(function, **values(parameters_of(function)))
        for key, function in functions.items()
    }


def parameters_of(function: Callable[..., Any]) -> Dict[str, Tuple[Any, bool]]:
    """Arguments of a function after `*`: name -> type (Any if unknown), True if required."""
    # Arguments that a partial sets are its author's choice.
    fixed = function.keywords if isinstance(function, functools.partial) else {}
    signature = inspect.signature(function)
    target = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    try:
        hints = typing.get_type_hints(target)
    except (NameError, TypeError):  # annotations that only a type checker can resolve
        hints = {}
    parameters = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY or name in fixed:
            continue
        is_required = parameter.default is parameter.empty
        default = None if is_required else parameter.default
        kind = hints.get(name, Any if default is None else type(default))
        parameters[name] = (kind, is_required)
    return parameters


def wrong_arguments(function: Callable[..., Any], arguments: Sequence[str]) -> Tuple[str, str]:
    """Message and remedy if a function does not take these arguments by position; else two ""."""
    signature = inspect.signature(function)
    positional = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    try:
        signature.replace(parameters=positional).bind(*arguments)
    except TypeError:
        wanted = ", ".join(arguments)
        message = f"its function takes {plain(signature)}, and is called with ({wanted})"
        return message, f"declare it with ({wanted}), and parameters after *"
    return "", ""


def require_names(field: str, names: Any, known: Optional[Collection[str]] = None) -> None:
    """Refuses what is not a collection of names, and names other than the `known` ones."""
    if isinstance(names, str) or not isinstance(names, collections.abc.Collection):
        raise UsageError(f"{field} is {plain(repr(names))}; write a list of names: ['…', '…']")
    for name in names:
        if known is not None and name not in known:
            hint = nearest(str(name), list(known)) or "."
            known_text = f"Known: {', '.join(sorted(known))}"
            raise UsageError(
                f"{field} has {plain(repr(name))}, which is not known{hint} {known_text}"
            )


def _plain_value(value: Any) -> Any:
    """A `google.protobuf.Value` as a Python value; all numbers are floats."""
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [_plain_value(each) for each in value.list_value.values]
    if kind == "struct_value":
        return {key: _plain_value(each) for key, each in value.struct_value.fields.items()}
    return None if kind in (None, "null_value") else getattr(value, kind)


def _fitted(value: Any, kind: Any) -> Any:
    """A value as an annotated type, or TypeError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if arguments and type(None) in arguments:  # Optional, which Python spells in two ways
        others = tuple(each for each in arguments if each is not type(None))
        return None if value is None else _fitted(value, Union[others])
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is float and isinstance(value, float) and math.isfinite(value):
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    if kind in (list, tuple) or origin in (list, tuple, collections.abc.Sequence):
        if isinstance(value, list):
            each_kind = arguments[0] if arguments else Any
            sequence = tuple if tuple in (kind, origin) else list
            return sequence(_fitted(each, each_kind) for each in value)
    elif kind not in _TYPES:
        return value
    raise TypeError


def _words(kind: Any) -> str:
    arguments = [each for each in typing.get_args(kind) if isinstance(each, type)]
    if type(None) in arguments:
        return _words(arguments[0])
    if kind in (list, tuple) or typing.get_origin(kind) is not None:
        return "a list"
    return _TYPES.get(kind, "any value")
