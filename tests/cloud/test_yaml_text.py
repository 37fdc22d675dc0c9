import json

from estimator_det.cloud.yaml_text import to_yaml


def test_mappings_and_lists():
    value = {
        "workerPoolSpecs": [
            {"machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": 1},
            {"args": ["--a=b: c", "x"], "empty": {}, "none": []},
        ],
        "spot": True,
    }
    assert to_yaml(value) == (
        "workerPoolSpecs:\n"
        "- machineSpec:\n"
        "    machineType: n1-standard-8\n"
        "  replicaCount: 1\n"
        "- args:\n"
        '  - "--a=b: c"\n'
        "  - x\n"
        "  empty: {}\n"
        "  none: []\n"
        "spot: true\n"
    )


def test_texts_that_yaml_takes_for_something_else_are_quoted():
    for text in ("yes", "No", "null", "true", "2.11", "1x1", "2x2", "gs://b/c", "", "a: b", "-x"):
        assert to_yaml({"key": text}) == f"key: {json.dumps(text)}\n"
    for text in ("estimator_det.model_main", "n1-standard-8", "TPU_V2", "python"):
        assert to_yaml({"key": text}) == f"key: {text}\n"
