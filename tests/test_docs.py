"""The documentation is correct: its commands parse, its files exist."""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import re
import shlex
import subprocess

import markdown
import numpy as np
import pytest

from estimator_det.programs import cli, model_flags
from estimator_det.programs.pretrained import find_model
from estimator_det.programs.starter_models import MODELS
from inputs.bad_records.kinds import KINDS
from inputs.datasets.converters import CONVERTERS
from inputs.datasets.converters.base import FIELDS
from tests.conftest import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_troubleshooting_has_every_kind_of_fault():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert set(KINDS) <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_commands_of_converting_data_are_parsed_and_name_what_the_format_takes():
    page = (ROOT / "docs" / "converting_data.md").read_text()
    commands = re.findall(r"estimator-det (convert --from[^`\n]*)", page)
    formats = set()
    for command in commands:
        options = cli.make_parser().parse_args(shlex.split(command))
        formats.add(options.source_format)
        if options.source_format in CONVERTERS:
            known = CONVERTERS.get(options.source_format)
            for field in FIELDS[1:]:
                is_given = getattr(options, field) is not None
                assert is_given >= (field in known.required), command
                assert is_given <= (field in (*known.required, *known.optional)), command
            assert options.masks <= known.masks, command
    assert formats == {*CONVERTERS, "tfrecord"}


def _linked_text(section: str) -> str:
    """A part of a page, and the pages that it links to."""
    pages = {ROOT / "docs" / name for name in re.findall(r"\]\(([\w.]+\.md)", section)}
    return "\n".join([section, *(page.read_text() for page in sorted(pages))])


@pytest.mark.parametrize("name", ["cloud.md", "tutorial.md"])
def test_request_files_hold_a_photo_larger_than_an_argument_may_be(name, tmp_path):
    page = (ROOT / "docs" / name).read_text()
    (command,) = re.findall(r"^printf .*$", page, re.MULTILINE)
    photo = np.random.default_rng(0).bytes(3_000_000)
    path = tmp_path / re.search(r"[\w/]+\.jpg", command)[0]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(photo)
    subprocess.run(["bash", "-euc", command], cwd=tmp_path, check=True)
    request = json.loads((tmp_path / "request.json").read_text())
    (instance,) = request.pop("instances")
    assert base64.b64decode(instance["b64"]) == photo
    assert request in ({}, {"signature_name": "encoded_image_string_tensor"})
    assert "curl --data @request.json http://localhost:8501" in page


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_option_of_a_verb_is_documented(name):
    """In the verb's row or section of cli.md or a page that they link to, or for all verbs."""
    page = (ROOT / "docs" / "cli.md").read_text()
    overview, *sections = re.split(
        r"^(?=##+ )", page.partition("## estimator-det\n")[2], flags=re.M
    )
    (row,) = re.findall(rf"^\| `{name}` \|.*$", overview, re.M)
    changes = next(each for each in sections if each.startswith("### Changing a configuration"))
    start = next((i for i, each in enumerate(sections) if each.startswith(f"### {name}\n")), None)
    own = [row]
    if start is not None:
        own.append(sections[start])
        own += itertools.takewhile(lambda each: each.startswith("####"), sections[start + 1 :])
    intro = re.sub(r"^\|.*$", "", overview, flags=re.M)
    text = _linked_text("".join(own)) + intro + changes
    parser = argparse.ArgumentParser()
    cli.load_verb(name).add_arguments(parser)
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = [option for action in actions for option in action.option_strings]
    missing = [
        option
        for option in options
        if option not in ("-h", "--help") and not re.search(rf"{option}(?![\w-])", text)
    ]
    assert not missing, f"docs/cli.md says nothing about {missing} of {name}"


def test_every_flag_of_model_main_is_documented():
    page = (ROOT / "docs" / "cli.md").read_text()
    text = page.partition("\n## model_main\n")[2].partition("\n## Exit codes\n")[0]
    names = set(model_flags.define_flags()) - {"help"}
    assert [name for name in sorted(names) if not re.search(rf"`-+{name}\b", text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_tables_and_lists_come_out_as_such(page):
    """As the site renders pages, which needs empty lines and indents that GitHub does not."""
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "markdown_extensions:\n  - tables\n  - toc:" in settings
    # Fenced code, also in lists, is rendered by an extension that tests do not install.
    text = re.sub(r"^( *)```.*?^ *```$", r"\1code", page.read_text(), flags=re.M | re.S)
    html = markdown.markdown(text, extensions=["tables", "toc", "md_in_html", "attr_list"])
    for paragraph in re.findall(r"<p>(.*?)</p>", html, re.S):
        plain = re.sub(r"<code>.*?</code>", "", paragraph, flags=re.S)
        assert not re.search(r"^(\||\d+\. |[*+-] )", plain, re.M), paragraph
    assert html.count("<table>") == len(re.findall(r"^\|[-:| ]+\|$", text, re.M))
    assert html.count("<ol>") == len(re.findall(r"^1\. ", text, re.M)), "a list is cut in pieces"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_files_of_the_checkout(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (page.parent / link).exists()] == []


FILE = re.compile(r"`((?:estimator_det|inputs|model_fn|exporters|benchmarks)/[^`]*)`")
PROGRAM = re.compile(r"python -m ((?:estimator_det|benchmarks)[\w.]*)")


def test_files_and_programs_named_in_docs_exist():
    for page in PAGES:
        text = page.read_text()
        for path in FILE.findall(text):
            assert list(ROOT.glob(path.rstrip("/"))), f"{page.name}: {path}"
        for module in PROGRAM.findall(text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_concepts_of_a_run_are_listed():
    page = (ROOT / "docs" / "architecture.md").read_text()
    sources = [path.read_text() for path in (ROOT / "model_fn" / "runs").rglob("*.py")]
    classes = [name for text in sources for name in re.findall(r"(?m)^class ([A-Z]\w+)", text)]
    assert [name for name in classes if f"`{name}`" not in page] == []
    # Roles have no class.
    assert f"The {len(classes) + 1} concepts of `model_fn/runs`" in page


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_model_of_init_is_on_its_page(model):
    page = (ROOT / "docs" / "zoo.md").read_text()
    row, _times = re.findall(rf"^\| `{model.name}` \|.*$", page, re.MULTILINE)
    cells = [cell.strip() for cell in row.split("|")]
    published = find_model(model.zoo)
    assert cells[2].replace(" × ", "x") == model.input_size
    assert cells[5:9] == [
        f"{model.step_time:g}", published.quality, published.speed, f"`{model.zoo}`"
    ]  # fmt: skip
    assert cells[3] == f"{model.parameters:.1f}"
