"""What a verb of `estimator-det` is, and the options that several share.

TensorFlow is imported inside the functions that need it, so that help is there at once.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable, NamedTuple

from estimator_det import console

CONFIG_FILE = "pipeline.config"
CONFIG_EXAMPLE = "--pipeline_config_path ssd.config"


class Verb(NamedTuple):
    """One word after `estimator-det`."""

    name: str
    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]  # -> an exit code of `estimator_det.console`


def add_config_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """`--pipeline_config_path`, `--config_override` and `--set`."""
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--pipeline_config_path", required=required, metavar="FILE", help="pipeline configuration"
    )
    group.add_argument(
        "--config_override",
        default="",
        metavar="TEXT",
        help="pipeline text proto merged over the configuration, "
        "e.g. 'train_config { batch_size: 8 }'",
    )
    add_set_argument(group)


def add_set_argument(parser: Any) -> None:
    """`--set KEY=VALUE`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="changes one field, e.g. train_config.batch_size=8 or "
        "eval_input_reader[0].shuffle=true; may be repeated",
    )


def load(options: argparse.Namespace) -> Any:
    """The configuration that the options of `add_config_arguments` describe."""
    return console.load_config(options.pipeline_config_path, options.config_override, options.set)
