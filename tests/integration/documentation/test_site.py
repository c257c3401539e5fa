"""The site: built strictly, whole by itself, and a broken page fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# What a browser fetches by itself; links that a reader may follow are not among them.
_FETCHED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"((?:https?:)?//[^\"]*)\"")


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", str(source / "mkdocs.yml"), "-d", str(target)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").glob("*.html"))
    assert len(pages) > 15
    fetched = {(page.name, found) for page in pages for found in _FETCHED.findall(page.read_text(encoding="utf-8"))}
    assert fetched == set()
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"@import\s+url\(|url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("[gone](nowhere.md)", "nowhere.md"),
        ("[gone](concepts.md#no-such-heading)", "no-such-heading"),
    ],
)
def test_a_broken_link_fails(tmp_path: Path, change: str, told: str) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs/index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{change}\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert told in built.stderr


@pytest.mark.slow
def test_a_page_without_a_place_fails(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "docs/lost.md").write_text("# Lost\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert "lost.md" in built.stderr
