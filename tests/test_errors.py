"""The record of one thing that is wrong, and the error of several."""

import pickle

import pytest

from estimator_det.errors import ConfigError, Problem, UsageError, error, raise_errors, warning


def test_a_problem_says_what_to_type():
    problem = Problem("error", "a.b", "is so", edits=("a.b=1", "c={ d: 2 }"), remedy="mind e")
    assert str(problem) == ("error: a.b: is so. Remedy: --set a.b=1 --set 'c={ d: 2 }'; mind e")
    with pytest.raises(ValueError, match="severity"):
        Problem("fatal", "a", "b", edits=("a=1",))
    with pytest.raises(ValueError, match="remedy"):
        Problem("error", "a", "b")
    with pytest.raises(ValueError, match="safe"):
        Problem("error", "a", "b", safe=True, remedy="c")


def test_an_error_lists_the_problems_that_prevent_a_run():
    first, second = (
        error("a.b", "is 0", "raise it"),
        Problem("placeholder", "c", "is open", "set it"),
    )
    raise_errors([warning("d", "is slow", "wait")])
    with pytest.raises(UsageError) as caught:
        raise_errors([first, warning("d", "is slow", "wait"), second])
    assert str(caught.value).split("\n")[1:] == [str(first), str(second)]
    assert str(ConfigError([first])) == "a.b: is 0. Remedy: raise it"
    assert "'b'? Remedy: c" in str(error("a", "is 'a'; did you mean 'b'?", "c"))
    restored = pickle.loads(pickle.dumps(caught.value))  # as from a worker process
    assert type(restored) is ConfigError and restored.problems == (first, second)
