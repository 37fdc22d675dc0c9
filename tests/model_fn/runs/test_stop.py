from __future__ import annotations

import pytest

from model_fn.runs.signals import Stop


def test_the_first_cause_counts() -> None:
    stop = Stop()
    stop.raise_if_requested()
    assert not stop.is_requested
    stop.request()  # a plain end
    stop.raise_if_requested()
    assert stop.is_requested and stop.cause is None
    stop.request(OSError("first"))
    stop.request(ValueError("second"))
    with pytest.raises(OSError, match="first"):
        stop.raise_if_requested()
