from __future__ import annotations

import pytest

from tests import prose


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("found = 1", ("name without a noun", "found")),
        ("def f(in_loop): pass", ("name without a noun", "in_loop")),
        ('"""Of the run."""', ("docstring begins with a fragment", "Of the run.")),
        (
            'def f(run):\n    """Ends it.\n\n    Args:\n        run: Of the training.\n    """',
            ("argument entry says nothing", "run: Of the training."),
        ),
        ("x = 1  # of both stages", ("comment is a fragment", "# of both stages")),
        ("x = 'split it into so many parts'", ("stiff words", "so many")),
    ],
)
def test_each_pattern_is_found(source: str, finding: object) -> None:
    assert list(prose.findings(source)) == [finding]


def test_plain_text_has_no_finding() -> None:
    source = '"""Number of boxes."""\nnum_boxes = 4  # one per corner\nof = found_boxes = num_boxes'
    assert list(prose.findings(source)) == []
