"""The README names only what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.demo.table import BAR_CELLS, HEADING

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_target_of_make_is_there() -> None:
    targets = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test", "docs"} <= targets
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in targets if f"\n{name}: " not in makefile] == []


@pytest.mark.slow
def test_every_claim_names_tests_that_are_there() -> None:
    arguments = re.findall(r'TEST_ARGS="?([^"`]+)"?`', README)
    assert len(arguments) >= 5
    for each in arguments:
        listed = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--collect-only", *each.split()],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert listed.returncode == 0, each + listed.stdout
        assert "::test_" in listed.stdout, each


def test_the_demonstration_is_shown_as_it_prints() -> None:
    lines = README.splitlines()
    assert HEADING.rstrip() in lines
    heading = lines.index(HEADING.rstrip())
    for line in lines[heading + 1 : heading + 4]:
        assert re.fullmatch(r"\w+ +\d +[\d.]+% +[\d.]+% +\w+ +[\w.]+ +[\w.]+ [#.]+", line), line
        assert len(line) == len(HEADING) + 1 + BAR_CELLS == 80
