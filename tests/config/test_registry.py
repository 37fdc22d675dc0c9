"""Names and their makers."""

from __future__ import annotations

from typing import Callable

import pytest

from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from estimator_det.protos import matcher_pb2


def _registry() -> Registry[Callable[[], str]]:
    registry: Registry[Callable[[], str]] = Registry("colour")

    @registry.register("green", "verde")
    def make_green() -> str:
        return "a green one"

    return registry


def test_all_names_lead_to_the_maker():
    registry = _registry()
    assert registry.get("green")() == registry.get("verde")() == "a green one"
    assert sorted(registry) == ["green", "verde"]
    assert "green" in registry and "red" not in registry


def test_unknown_and_duplicate_names_are_errors():
    registry = _registry()
    with pytest.raises(
        UsageError, match=r"colour 'gren' is not known\. Remedy: did you mean 'green'"
    ):
        registry.get("gren")
    with pytest.raises(ValueError, match="colour 'green' is registered twice"):
        registry.register("green")(lambda: "another")


def test_the_chosen_member_is_made():
    registry: Registry[Callable[..., str]] = Registry("matcher")
    registry.register("argmax_matcher")(lambda config, more: f"{config.matched_threshold:g} {more}")
    config = matcher_pb2.Matcher()
    config.argmax_matcher.matched_threshold = 0.5
    assert registry.make_chosen(config, "more") == "0.5 more"
