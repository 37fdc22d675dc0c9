import shutil

import pytest

from exporters import formats
from exporters.formats.base import FORMATS
from exporters.formats.frozen_graph import FROZEN_GRAPH_FILE
from exporters.loaded_model import (
    label_map_of,
    parent_folder,
    read_class_names,
)


def test_models_are_recognized_by_content(exported, tmp_path):
    graph = shutil.copy(exported / FROZEN_GRAPH_FILE, tmp_path / "graph.onnx")
    (found,) = formats.exported_models(str(graph))
    assert found.format.name == "frozen_graph"
    (tmp_path / "phone").write_bytes(b"\0\0\0\0TFL3")
    (found,) = formats.exported_models(str(tmp_path / "phone"))
    assert found.format.name == "tflite"
    graph = shutil.copy(exported / FROZEN_GRAPH_FILE, tmp_path / "other.pb")
    assert [each.path for each in formats.exported_models(str(tmp_path))] == [str(graph)]
    (found,) = formats.exported_models(str(exported / "saved_model" / "saved_model.pb"))
    assert found.format.name == "saved_model"
    (found,) = formats.exported_models(str(exported / "saved_model"))
    assert found.format.name == "saved_model"


def test_the_folder_of_the_export_that_a_model_is_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "model.xml").write_text("")
    for name, path in (
        ("saved_model", "saved_model"),
        ("saved_model", f"{tmp_path}/saved_model/"),
        ("openvino", "openvino/model.xml"),
        ("frozen_graph", "frozen_inference_graph.pb"),
    ):
        assert formats.FoundModel(FORMATS.get(name)(), path).folder == str(tmp_path)
    (tmp_path / "label_map.pbtxt").write_text('item { id: 1 name: "cat" }')
    monkeypatch.chdir(tmp_path / "openvino")
    assert read_class_names(label_map_of(parent_folder("."))) == {1: "cat"}


def test_files_that_are_no_model(tmp_path, exported):
    with pytest.raises(FileNotFoundError, match="no such model"):
        formats.load_model(str(tmp_path / "none"))
    for content in (b"", b"\n", b"\n\n\n\n\n\n", b"text", b"\x08\x01\x12"):
        path = tmp_path / "file.pb"
        path.write_bytes(content)
        with pytest.raises(FileNotFoundError, match="no model in"):
            formats.load_model(str(path))
    with pytest.raises(FileNotFoundError, match=r"of none of the formats .*frozen_graph"):
        formats.load_model(str(exported / "pipeline.config"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").touch()
    with pytest.raises(FileNotFoundError, match=r"no model in .* a checkpoint.*-det export"):
        formats.load_model(str(tmp_path / "run"))
