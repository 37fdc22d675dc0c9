"""Options that several verbs of `estimator-det` share."""

from __future__ import annotations

import argparse
from typing import Any

from estimator_det import console

CONFIG_FILE = "pipeline.config"
CONFIG_EXAMPLE = "--pipeline_config_path ssd.config"


def add_config_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """`--pipeline_config_path`, `--config_override` and `--set`."""
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--pipeline_config_path", required=required, metavar="FILE", help="pipeline configuration"
    )
    add_change_arguments(group)


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """`file`, `--config_override` and `--set`."""
    parser.add_argument("file", help="pipeline configuration")
    add_change_arguments(parser)


def add_change_arguments(parser: Any) -> None:
    """`--config_override` and `--set`."""
    parser.add_argument(
        "--config_override",
        default="",
        metavar="TEXT",
        help="pipeline text proto merged over the configuration, "
        "e.g. 'train_config { batch_size: 8 }'",
    )
    add_set_argument(parser)


def add_set_argument(parser: Any) -> None:
    """`--set KEY=VALUE`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one field, e.g. train_config.batch_size=8 or "
        "eval_input_reader[0].shuffle=true; may be repeated",
    )


def load(options: argparse.Namespace) -> Any:
    """The configuration from the options of `add_config_arguments`."""
    return console.load_config(options.pipeline_config_path, options.config_override, options.set)
