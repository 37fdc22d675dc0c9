"""The page on the cloud quotes messages that exist."""

from __future__ import annotations

from tests import messages
from tests.conftest import TESTS


def test_quoted_messages_of_storage() -> None:
    page = (TESTS.parent / "docs" / "cloud.md").read_text()
    section = page.partition("## Troubleshooting Cloud Storage\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    quoted = messages.quoted_messages("\n".join(rows))
    assert len(quoted) >= 9
    missing = messages.unmatched(quoted, messages.literals(("estimator_det/programs/cloud",)))
    assert not missing, "\n" + "\n".join(missing)
