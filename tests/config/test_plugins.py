"""Plug-ins: modules that are imported, their record, and parameters of their functions."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import sys
from typing import Any, Callable, Iterator, List, Optional, Sequence

import pytest
from google.protobuf.struct_pb2 import Struct

from estimator_det.config import pipeline, plugins
from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from estimator_det.protos import custom_pb2

LOSS = "model.ssd.loss.classification_loss.custom"


@pytest.fixture(autouse=True)
def project(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """An empty working folder; modules that a test imports are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "_folders", {})
    monkeypatch.setattr(plugins, "_registering", set())
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_module_of_the_working_folder_is_imported_once(project):
    (project / "part.py").write_text("import pathlib\npathlib.Path('log').open('a').write('x')\n")
    plugins.load(["part", "part"])
    plugins.load(["part"])
    assert (project / "log").read_text() == "x"
    assert plugins.module_files() == {"part": str(project / "part.py")}


def test_changes_since_a_record(project, monkeypatch):
    for name in ("first", "second"):
        (project / f"{name}.py").write_text("")
        os.utime(project / f"{name}.py", (1, 1))
    assert plugins.changes(project) == []
    plugins.load(["first"])
    assert plugins.changes(project) == ["first is imported; so far no module was"]
    plugins.save_record(project)
    assert plugins.changes(project) == []
    plugins.load(["second"])
    os.utime(project / "first.py", (2**32, 2**32))
    assert plugins.changes(project) == [
        f"{project / 'first.py'} was written after the run began",
        "second is imported; so far it was not",
    ]


def test_record_leads_to_the_modules_from_any_folder(project, monkeypatch):
    (project / "parts").mkdir()
    (project / "parts" / "__init__.py").write_text("")
    (project / "parts" / "deep.py").write_text("")
    (project / "flat.py").write_text("")
    (project / "run").mkdir()
    plugins.load(["parts.deep", "flat"])
    plugins.load([], [str(project / "run")])  # which has no record yet
    plugins.save_record(project / "run")
    record = json.loads((project / "run" / "plugins.json").read_text())
    assert record == {"modules": {"parts.deep": str(project), "flat": str(project)}}
    for name in ("parts", "parts.deep", "flat"):
        del sys.modules[name]
    monkeypatch.setattr(plugins, "_folders", {})
    monkeypatch.chdir("/")
    sys.path.remove(str(project))
    plugins.load([], [None, str(project / "run")])
    assert set(plugins.module_files()) == {"parts.deep", "flat"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_prt", "--import my_prt: there is no such module in .* did you mean 'my_part'"),
        ("my_part.py", "is not the name of a module. Write it like my_part$"),
        ("./my_part.py", "Write it like my_part$"),
        ("/dir/my_part", "Start in the folder that has it, with --import my_part$"),
        ("a b", "Write the name of its file without .py, such as my_losses for my_losses.py$"),
        ("json", "json/__init__.py has the same name as .*/json.py. Rename your module"),
        ("my_part.inner", "there is no such module"),
        ("metric", "lower_is_better is 'Mean'; write a list of names"),
        ("reader", "@takes has 'image', which is not known; did you mean 'images'"),
        ("bare", r"--import bare is not a file of Python, or a folder with __init__.py"),
    ],
)
def test_module_that_cannot_be_used_is_refused(project, name, message):
    (project / "my_part.py").write_text("")
    (project / "json.py").write_text("raise SystemExit")
    text = "from model_fn.evaluation.metrics.base import register as r\nr(lower_is_better='Mean')"
    (project / "metric.py").write_text(text)
    text = "from inputs.datasets.converters.base import takes\ntakes('image')"
    (project / "reader.py").write_text(text)
    (project / "bare").mkdir()
    with pytest.raises(UsageError, match=message):
        plugins.load([name])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import not_installed_anywhere", "ModuleNotFoundError: No module named 'not_installed"),
        ("import sys\nsys.exit(0)", "SystemExit: ends the program"),
        ("x = 1\nassert False", "AssertionError: no message"),
        ("def", "SyntaxError: invalid syntax"),
    ],
)
def test_fault_inside_a_module_is_named_with_its_place(project, text, fault):
    (project / "broken.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        plugins.load(["broken"])
    assert f"--import broken cannot be imported: {fault}" in str(caught.value)
    assert "Repair it" in str(caught.value)
    if fault[0] not in "S":
        line = text.count("\n") + 1
        assert f"({project / 'broken.py'}, line {line})" in str(caught.value)
    assert caught.value.__cause__ is not None  # for ESTIMATOR_DET_DEBUG=1


REGISTER = """
from estimator_det.config.registry import Registry
@Registry("part").register("mine")
def mine(): pass
"""


@pytest.mark.parametrize(
    ("files", "is_told"),
    [
        ({"named": "from estimator_det.losses import classification"}, True),
        ({"named": REGISTER}, False),
        ({"named": REGISTER.replace("register", "custom")}, False),
        ({"named": "import inner_part", "inner_part": REGISTER}, False),
        # The first module imports the second one.
        ({"first": f"{REGISTER}import named", "named": REGISTER}, False),
    ],
)
def test_module_that_registers_nothing_is_told(project, files, is_told, capsys):
    for name, text in files.items():
        (project / f"{name}.py").write_text(text)
    plugins.load([name for name in ("first", "named") if name in files])
    told = "warning: --import named registers no component, so it has no effect. Correct the name\n"
    assert capsys.readouterr().err == (told if is_told else "")
    plugins.load(["fractions"])
    assert "--import fractions registers no component" in capsys.readouterr().err


def test_a_check_asks_for_the_modules_of_a_record(project, monkeypatch):
    """Also for modules of the working folder, which /proc names from anywhere."""
    (project / "sent.py").write_text(REGISTER)
    (project / "plugins.json").write_text('{"modules": {"sent": "/proc/self/cwd", "b": "/b"}}')
    asked = (
        "plugins.json: a check does not import the modules that it names, since that runs their "
        "code: sent in /proc/self/cwd, b in /b. If you trust them, start in their folder with "
        "--import sent --import b"
    )
    with pytest.raises(UsageError, match=asked):
        plugins.require_record(project)
    assert "sent" not in sys.modules
    (project / "plugins.json").write_text('{"modules": {"sent": "/proc/self/cwd"}}')
    plugins.load(["sent"])
    plugins.require_record(project)
    plugins.require_record(project / "nowhere")


def test_missing_module_of_a_record_is_named(project):
    (project / "plugins.json").write_text('{"modules": {"gone_part": "/nowhere"}}')
    with pytest.raises(UsageError, match=r"plugins.json: gone_part.*Give --import gone_part"):
        plugins.load([], [str(project)])


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"modules": {"a": "here"}}', '{"modules": {"a": 1}}', '{"modules": 3}', "{}"],
)
def test_damaged_record_is_refused(project, text):
    (project / "plugins.json").write_text(text)
    with pytest.raises(UsageError, match="is not a record of plug-ins"):
        plugins.load_record(project)


def test_entry_points_are_loaded(project):
    (project / "installed_part.py").write_text("imported = True\n")
    info = project / "part-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: part\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[estimator_det.plugins]\nmine = installed_part\n")
    sys.path.append(str(project))
    plugins.load([])
    assert sys.modules["installed_part"].imported
    (info / "entry_points.txt").write_text("[estimator_det.plugins]\nmine = gone_module\n")
    with pytest.raises(UsageError, match=r"plug-in mine \(gone_module\) of an installed package"):
        plugins.load([])


def part(
    x: Any,
    *,
    power: float = 2.0,
    count: int = 1,
    kind: str = "a",
    squared=False,
    sizes: Sequence[float] = (),
    limit: Optional[float] = None,
    anything=None,
) -> Any:
    return x, power, count, kind, squared, sizes, limit, anything


def needs(x: Any, *, power: float, names: List[str]) -> Any:
    return x, power, names


def struct(**parameters: Any) -> Struct:
    made = Struct()
    made.update(parameters)
    return made


def test_parameters_become_arguments_of_their_types():
    numbers = {"power": 3, "count": 4, "sizes": [1, 2], "limit": None}
    parameters = struct(**numbers, kind="b", squared=True, anything={"a": 1})
    values = plugins.bind({"f": part}, parameters)["f"]("x")
    assert values == ("x", 3.0, 4, "b", True, [1.0, 2.0], None, {"a": 1.0})
    assert type(values[2]) is int
    assert plugins.bind({"f": part}, Struct())["f"]("x")[1:3] == (2.0, 1)


@pytest.mark.parametrize(
    ("function", "parameters", "message"),
    [
        (part, {"powr": 1}, "parameters.powr: part has no such .*'power'"),
        (part, {"x": 1}, "parameters.x: part has no such parameter"),
        (part, {"power": "1"}, '"1", but part takes a number. Remedy: write value'),
        (part, {"power": True}, "is true, but part takes a number"),
        (part, {"power": None}, "is null, but part takes a number"),
        (part, {"power": float("nan")}, "is NaN, but part takes a number"),
        (part, {"count": 1.5}, "is 1.5, but part takes a whole number"),
        (part, {"kind": 1}, "takes text. Remedy: write value { string_value"),
        (part, {"sizes": ["a"]}, "takes a list"),
        (part, {"limit": "a"}, "takes a number"),
        (needs, {"power": 1}, "parameters.names is not set, but part needs"),
        (lambda x: x, {"a": 1}, "has no such parameter. Remedy: Remove it"),
        (functools.partial(part, power=3), {"power": 1}, "has no such"),
    ],
)
def test_wrong_parameters_are_refused(function, parameters, message):
    found = plugins.check_parameters({"f": function}, struct(**parameters), "part", "parameters")
    assert re.search(message, str(next(iter(found))).replace(": is", " is"))


def test_custom_functions_of_a_registry():
    registry: Registry[Callable[..., Any]] = Registry("loss", arguments=("sample",))
    registry.custom("mine")(part)
    message = custom_pb2.Custom(name="mine", parameters=struct(count=7))
    assert registry.custom_function(message)(0)[2] == 7
    assert list(registry.check_custom(message, "custom")) == []
    registry.arguments = ("logits", "weights")
    (problem,) = registry.check_custom(message, "custom")
    assert re.search(r"custom.name: 'mine': .* is called with \(logits, weights\)", str(problem))
    message.name = "min"
    (problem,) = registry.check_custom(message, "custom")
    assert re.search(r"custom.name: 'min' is not known.*'mine'.*--import", str(problem))
    with pytest.raises(UsageError, match="custom loss 'mine' is registered twice"):
        registry.custom("mine")(needs)
    with pytest.raises(UsageError, match="custom loss: the decorator needs a name"):
        registry.custom(needs)
    assert list(registry) == []
    registry.register("min")(needs)
    (problem,) = registry.check_custom(message, "custom")
    assert re.search(r"'min' is the name of a field.*@….custom\('min'\)", str(problem))


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2", 2.0), ("true", True), ("[1, 2]", [1.0, 2.0]), ("cat", "cat"), ('"cat"', "cat")],
)
def test_set_changes_a_parameter(value, expected):
    config = pipeline.parse_pipeline("model { ssd {} }")
    config = pipeline.apply_overrides(
        config, [f"{LOSS}.name=a", f"{LOSS}.parameters.gamma={value}"]
    )
    parameters = config.model.ssd.loss.classification_loss.custom.parameters
    read = parameters["gamma"]
    assert (list(read) if isinstance(expected, list) else read) == expected
    assert pipeline.parse_pipeline(pipeline.format_pipeline(config)) == config
    with pytest.raises(UsageError, match="write '='"):
        pipeline.apply_overrides(config, [f"{LOSS}.parameters.gamma+=1"])
