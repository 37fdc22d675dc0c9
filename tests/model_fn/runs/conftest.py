from __future__ import annotations

from typing import Any, Callable, List

import pytest

from inputs import pipeline as input_pipeline
from model_fn.runs import exports
from tests.model_fn import fake


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """Puts the fake detector and its data in place; collects the arguments of reader makers."""
    made: List[Any] = []

    def make_train(config: Any, preprocess: Any, seed: Any, **others: Any) -> Callable[[], Any]:
        made.append(("train", seed))
        return fake.make_train_input_fn(**others)

    def make_eval(
        config: Any, preprocess: Any, input_config: Any, sample_1_of_n: Any, *_: Any
    ) -> Callable[[], Any]:
        made.append((input_config.name, sample_1_of_n))
        return fake.eval_input_fn

    fake.install(monkeypatch)
    monkeypatch.setattr(input_pipeline, "build_train_input_fn", make_train)
    monkeypatch.setattr(input_pipeline, "build_eval_input_fn", make_eval)
    monkeypatch.setattr(exports.serving, "create_predict_input_fn", fake.make_receiver)
    return made
