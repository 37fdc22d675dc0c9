import sys

import pytest

from estimator_det.errors import RunError, UsageError
from exporters.formats import FoundModel, base, converters


def test_the_interpreter_of_converters(monkeypatch, tmp_path):
    monkeypatch.delenv(converters.CONVERTERS_VARIABLE, raising=False)
    assert converters.converter_interpreter(None) == sys.executable
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv(converters.CONVERTERS_VARIABLE, str(tmp_path))
    assert converters.converter_interpreter(None) == str(tmp_path / "bin" / "python")
    assert converters.converter_interpreter(sys.executable) == sys.executable
    monkeypatch.setenv(converters.CONVERTERS_VARIABLE, "none")
    with pytest.raises(UsageError, match="ESTIMATOR_DET_CONVERTERS: none is no Python"):
        converters.converter_interpreter(None)


def _format(name="x", **modules):
    chosen = base.ExportFormat()
    chosen.name = name
    for attribute, names in modules.items():
        setattr(chosen, attribute, names)
    return chosen


def test_this_interpreter_is_used_if_only_it_has_the_converter(tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho tf2onnx >&2\nexit 1\n")
    other.chmod(0o755)
    assert converters.find_converter(_format(converter=("json",)), str(other)) == sys.executable
    other.write_text("#!/bin/sh\nexit 0\n")
    assert converters.find_converter(_format(converter=("json",)), str(other)) == str(other)


def test_all_that_is_missing_is_named_at_once():
    chosen = [
        _format("a", converter=("none_a",), runtime=("none_a",)),
        _format("b"),
        _format("c", converter=("json",), runtime=("none_c",)),
        _format("d", converter=("none_d",)),
    ]
    with pytest.raises(UsageError) as caught:
        converters.check_installed(chosen, None)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for name, line in zip("acd", lines):
        assert f"no module none_{name};" in line or f"need none_{name}, " in line
        assert f"run pip install 'estimator-det[{name}]'" in line
    with pytest.raises(RunError, match=r"^c models need none_c"):
        converters.check_installed(chosen[1:3], None)
    converters.check_installed(chosen[1:2], None)
    with pytest.raises(UsageError, match="no module none_d;"):
        converters.find_converter(chosen[3], None)
    with pytest.raises(RunError, match=r"^c models need none_c"):
        FoundModel(chosen[2], "model").load()


def _write(graph, image, outputs, path):
    import pathlib

    if image == "fails":
        print("the reason")
        raise SystemExit(3)
    if image != "silent":
        pathlib.Path(path).write_text(f"{graph} {image} {outputs}")


@pytest.mark.parametrize("in_process", [False, True])
def test_a_converter_runs_from_its_source(tmp_path, in_process):
    chosen = converters.GraphFormat()
    chosen.name, chosen.converter, chosen.convert = "x", ("json",), _write
    chosen.uses_tensorflow = in_process

    def run(image):
        path = tmp_path / image
        converters.run_converter(chosen, ("graph", image, ["a", "b"], str(path)), None)
        return path.read_text()

    assert run("image") == "graph image ['a', 'b']"
    with pytest.raises(RunError, match=r"(?s)to x, json of .*, writes no model; .*prints nothing"):
        run("silent")
    if not in_process:
        with pytest.raises(RunError, match=r"(?s)to x, json of .*fails with code 3.*the reason"):
            run("fails")
    with pytest.raises(RunError, match=r"(?s)json.* fails.*IsADirectoryError"):
        run(".")
