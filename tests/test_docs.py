"""The documentation is correct: its recipes run, and its quotes are messages of the sources."""

from __future__ import annotations

import argparse
import itertools
import pathlib
import re
import shlex

import pytest

from estimator_det.programs import cli
from inputs.bad_records.kinds import KINDS
from inputs.datasets.converters import CONVERTERS, options_of
from inputs.datasets.converters.base import FIELDS
from tests import messages

ROOT = pathlib.Path(__file__).parent.parent
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
RECIPES = sorted((ROOT / "docs").glob("adding_*.md"))


def test_every_kind_of_part_has_its_recipe():
    kinds = {path.stem for path in RECIPES}
    assert {
        "adding_a_converter",
        "adding_a_feature_extractor",
        "adding_a_loss",
        "adding_a_metric",
        "adding_an_augmentation",
    } <= kinds


@pytest.mark.slow
@pytest.mark.parametrize("page", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs(page, forker):
    # In a separate process, because a recipe registers parts.
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks, f"{page.name} has no example"
    run = forker.program("\n".join(blocks))
    assert run.wait() == 0, run.output()


def test_troubleshooting_has_every_kind_of_fault():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", TROUBLESHOOTING.read_text(), re.MULTILINE)
    explained = {kind: what for kind, what in rows if kind in KINDS}
    assert explained == {kind: row.description for kind, row in KINDS.items()}


def test_commands_of_converting_data_are_parsed_and_name_what_the_format_takes():
    page = (ROOT / "docs" / "converting_data.md").read_text()
    commands = re.findall(r"estimator-det (convert --from[^`\n]*)", page)
    formats = set()
    for command in commands:
        options = cli.make_parser().parse_args(shlex.split(command))
        formats.add(options.source_format)
        if options.source_format in CONVERTERS:
            known = options_of(options.source_format)
            for field in FIELDS[1:]:
                is_given = getattr(options, field) is not None
                assert is_given >= (field in known.required), command
                assert is_given <= (field in (*known.required, *known.optional)), command
            assert options.masks <= known.masks, command
    assert formats == {*CONVERTERS, "tfrecord"}


def test_quoted_messages_are_messages_of_the_sources():
    quoted = messages.quoted_messages(TROUBLESHOOTING.read_text())
    assert len(quoted) > 50
    vague = [message for message in quoted if len(messages.fixed_words(message)) < 2]
    assert not vague, f"quotes that any literal may contain: {vague}"
    missing = messages.unmatched(quoted, messages.literals())
    assert not missing, "\n" + "\n".join(missing)


SOURCE = '''
"""The docstring says that a label map is missing."""
text = f"label map {path!r} has id {class_id}, the model has {n} classes" + f": {names}"
log.warning(
    "%s: resuming at step %d, "
    "of %d", folder, step, total
)
'''


@pytest.mark.parametrize(
    ("message", "is_known"),
    [
        ("has id 90, the model has 1,037 classes", True),
        ("label map '<file>' has id N", True),
        ("label map … the model has", True),
        ("<model_dir>: resuming at step 7, of 9", True),
        ("has id 90, the model knows 37 classes", False),
        ("the model has classes", False),
        ("has id 90 the model", False),
        ("a label map is missing", False),
    ],
)
def test_message_is_found_by_all_of_its_words(message, is_known):
    literals = list(messages.literals_of(SOURCE, "file.py"))
    assert is_known == any(messages.contains(literal, message) for literal in literals)


def test_missing_message_is_reported_with_the_nearest_literal():
    literals = messages.literals_of(SOURCE, "file.py")
    (line,) = messages.unmatched(["has number 90, the model has 37 classes"], list(literals))
    assert "label map <value> has id <value>" in line
    assert "file.py:3" in line


def test_commands_and_settings_are_no_messages():
    page = "`a b` `estimator-det train --x` `bad: true` `reader { a: 1 }` `word`\n```\n`c d`\n```\n"
    assert messages.quoted_messages(page) == ["a b"]


def _linked_text(section: str) -> str:
    """A part of a page, and the pages that it links to."""
    pages = {ROOT / "docs" / name for name in re.findall(r"\]\(([\w.]+\.md)", section)}
    return "\n".join([section, *(page.read_text() for page in sorted(pages))])


@pytest.mark.parametrize("verb", cli.VERBS, ids=cli.name_of)
def test_every_option_of_a_verb_is_documented(verb):
    """In the verb's row or section of cli.md or a page that they link to, or for all verbs."""
    page = (ROOT / "docs" / "cli.md").read_text()
    name = cli.name_of(verb)
    all_classes_merged, *sections = re.split(
        r"^(?=##+ )", page.partition("## estimator-det\n")[2], flags=re.M
    )
    (row,) = re.findall(rf"^\| `{name}` \|.*$", all_classes_merged, re.M)
    changes = next(each for each in sections if each.startswith("### Changing a configuration"))
    start = next((i for i, each in enumerate(sections) if each.startswith(f"### {name}\n")), None)
    own = [row]
    if start is not None:
        own.append(sections[start])
        own += itertools.takewhile(lambda each: each.startswith("####"), sections[start + 1 :])
    intro = re.sub(r"^\|.*$", "", all_classes_merged, flags=re.M)
    text = _linked_text("".join(own)) + intro + changes
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = [option for action in actions for option in action.option_strings]
    missing = [
        option
        for option in options
        if option not in ("-h", "--help") and not re.search(rf"{option}(?![\w-])", text)
    ]
    assert not missing, f"docs/cli.md says nothing about {missing} of {name}"


FILE = re.compile(r"`((?:estimator_det|inputs|model_fn|exporters|benchmarks)/[^`]*)`")
PROGRAM = re.compile(r"python -m ((?:estimator_det|benchmarks)[\w.]*)")


def test_files_and_programs_named_in_docs_exist():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        text = page.read_text()
        for path in re.findall(
            r"`((?:estimator_det|inputs|model_fn|exporters|benchmarks)/[^`]*)`", text
        ):
            assert list(ROOT.glob(path.rstrip("/"))), f"{page.name}: {path}"
        for module in PROGRAM.findall(text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
