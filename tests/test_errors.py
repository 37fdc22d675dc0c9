"""The record of one thing that is wrong."""

import pytest

from estimator_det.errors import Problem


def test_a_problem_says_what_to_type():
    problem = Problem("error", "a.b", "is so", edits=("a.b=1", "c={ d: 2 }"), remedy="mind e")
    assert str(problem) == ("error: a.b: is so. Remedy: --set a.b=1 --set 'c={ d: 2 }'; mind e")
    with pytest.raises(ValueError, match="severity"):
        Problem("fatal", "a", "b", edits=("a=1",))
    with pytest.raises(ValueError, match="remedy"):
        Problem("error", "a", "b")
    with pytest.raises(ValueError, match="safe"):
        Problem("error", "a", "b", safe=True, remedy="c")
