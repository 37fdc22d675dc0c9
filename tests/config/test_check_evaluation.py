"""Checks of the evaluation part of a configuration."""

from __future__ import annotations

import re
from typing import List

import pytest

from estimator_det.config.pipeline import apply_overrides, check
from tests.config.test_check import GOOD, only


@pytest.mark.parametrize(
    ("names", "field", "message"),
    [
        (
            ["'a'", "'b'", "'a'"],
            "eval_input_reader[2].name",
            "is 'a', the name of .*er\\[0\\], too",
        ),
        (["'1'", "''"], "eval_input_reader[1].name", "not set, which means '1', the name of"),
        (["'a'", "'0'", "''"], "", ""),
        (["''", "''"], "", ""),
    ],
)
def test_names_of_evaluation_readers_differ(names: List[str], field: str, message: str) -> None:
    config = apply_overrides(GOOD, [])
    reader = config.eval_input_reader[0]
    config.ClearField("eval_input_reader")
    for name in names:
        config.eval_input_reader.add().CopyFrom(reader)
        config.eval_input_reader[-1].name = name.strip("'")
    found = check(config, check_files=False)
    if not field:
        assert found == []
        return
    problem = only(found)
    assert (problem.severity, problem.field) == ("error", field)
    assert re.search(message, problem.message)
