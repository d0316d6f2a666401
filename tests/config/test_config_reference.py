"""docs/config.md is what the schema says; the schema is light and describes every key."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_page_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_config_reference.py"))["page"]()
    assert (ROOT / "docs" / "config.md").read_text() == made, "run: python docs/make_config_reference.py"


def test_every_key_has_a_sentence() -> None:
    page = (ROOT / "docs" / "config.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |") or not row.rstrip(" |").endswith(".")] == []


def test_no_page_sends_its_reader_to_a_specification() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "sample-configs").glob("*.yaml")]
    assert len(pages) > 20
    assert [page.name for page in pages if re.search(r"\bspec [0-9]", page.read_text())] == []


def test_the_schema_needs_no_yaml_and_loading_needs_only_pyyaml() -> None:
    code = (
        "import sys, supervisor.config.schema; assert 'yaml' not in sys.modules;"
        "import supervisor.config.load, supervisor.config.write_back;"
        "assert not {'ruamel', 'ruamel.yaml', 'torch', 'textual', 'zmq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
