"""Advice about TPU, which a component declares for the operations that its code creates."""

from __future__ import annotations

from typing import Dict, Iterator, Mapping, Tuple

BY_RULE = ""  # the remedy of the rule for TPU that the field breaks, so that it has one wording

DECLARED: Dict[str, Mapping[str, str]] = {}  # by module or package


def declare(module: str, remedies: Mapping[str, str]) -> None:
    """Enters what to change if a TPU cannot run an operation of a component.

    Args:
        module: The component's `__name__`, or `__package__` if all modules beside it serve it.
        remedies: Field -> remedy, or BY_RULE; the first field that the detector has counts. A field
            is one of the detector's message, or begins with train_config.
    """
    if module in DECLARED:
        raise ValueError(f"{module} declares advice about TPU twice; declare all of it at once")
    DECLARED[module] = remedies


def remedies_of(module: str) -> Iterator[Tuple[str, str]]:
    """Fields and remedies declared for a module, then those for the packages around it."""
    while module:
        yield from DECLARED.get(module, {}).items()
        module = module.rpartition(".")[0]
