"""The pages that are made from the code are what the code says, and the hand-written ones name nothing that is not."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from buildsupport.reference import metrics
from buildsupport.reference.event_calls import reasons, stands_in
from buildsupport.reference.events import OWN
from buildsupport.reference.metric_calls import NotUnderstoodError, families
from buildsupport.reference.pages import PAGES
from hypervisor.cli.main import SUBCOMMANDS, hypervisor
from hypervisor.kube import annotations
from hypervisor.kube.names import PREFIX
from hypervisor.model.event_reasons import EVENT_REASONS
from tests.documentation import blocks
from tests.documentation.blocks import DOCS, commands, table_after

ROOT = DOCS.parent
PACKAGE = ROOT / "hypervisor"
GOLDEN = ROOT / "tests/golden/metrics.txt"


@pytest.mark.parametrize("page", PAGES)
def test_a_made_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page](), "run: make reference"


def test_every_page_has_its_place_in_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def listed(entry: object) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        values = entry.values() if isinstance(entry, dict) else entry
        return set().union(*map(listed, values))

    assert listed(site["nav"]) == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_every_command_is_on_the_page() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    context = click.Context(hypervisor)
    # The hidden ones are roles of the daemon, and nobody types them.
    shown = {name for name in SUBCOMMANDS if not hypervisor.get_command(context, name).hidden}
    assert {name for name in SUBCOMMANDS if f"\n## hypervisor {name}\n" in text} == shown


def test_every_metric_of_the_golden_page_is_in_the_reference() -> None:
    known = {family.name: family for family in metrics.node_families()}
    helps = re.findall(r"^# HELP (\S+) (.*)$", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(helps) > 80
    # The golden page's own feed stands for all feeds.
    missing = [name for name, _ in helps if name not in known and not name.startswith("gpuhv_feed_")]
    assert missing == []
    for name, text in helps:
        if name in known:
            assert known[name].text == text
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        name, _, labels = line.partition("{")
        if name in known and labels:
            assert set(re.findall(r'(\w+)="', labels)) <= set(known[name].labels), line


def test_every_module_that_makes_metrics_is_read() -> None:
    making = {
        path.relative_to(PACKAGE).as_posix()
        for room in ("metrics", "aggregator")
        for path in PACKAGE.joinpath(room).rglob("*.py")
        if re.search(r"\.(gauge|counter)\(|(?<![.\w])info\(", path.read_text(encoding="utf-8"))
    }
    assert making - set(metrics.PASSING) == metrics.modules_with_families()


def test_every_feed_of_the_daemon_is_in_the_reference() -> None:
    core = (PACKAGE / "node/core.py").read_text(encoding="utf-8")
    table = core.partition("self._feeds: dict[str, HasStatistics] = {")[2].partition("}")[0]
    kubernetes = (PACKAGE / "node/kubernetes.py").read_text(encoding="utf-8")
    pods = kubernetes.partition('"""What has statistics, by name."""')[2].partition("}")[0]
    added = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.joinpath("node").glob("*.py"))
    names = set(re.findall(r'"(\w+)":', table + pods)) | set(re.findall(r'add_feed\("(\w+)"', added))
    # These two have collectors of their own.
    assert names - {"gpu_reader", "mig"} == {feed.name for feed in metrics.FEEDS}
    assert all(metrics.feed_families(feed) for feed in metrics.FEEDS)


def test_a_metric_that_can_not_be_read_from_the_source_is_not_left_out(tmp_path: Path) -> None:
    source = tmp_path / "made.py"
    source.write_text("def collect(families, name):\n    families.gauge(name, 'text', 1.0)\n")
    with pytest.raises(NotUnderstoodError, match="name"):
        families(source)


def test_every_event_reason_in_the_code_is_on_the_page_and_no_other() -> None:
    own = {reason for listed in OWN.values() for reason in listed}
    told = reasons(PACKAGE)
    assert len(told) > 40
    assert sorted(set(told) - own - EVENT_REASONS.keys()) == []
    page = (DOCS / "events.md").read_text(encoding="utf-8")
    assert [reason for reason in own | EVENT_REASONS.keys() if f"| `{reason}` |" not in page] == []
    assert [reason for reason in own if not stands_in(PACKAGE, reason)] == []


def test_the_annotations_are_those_of_the_code() -> None:
    page = (DOCS / "annotations.md").read_text(encoding="utf-8")
    ours, others = page.partition("<!-- keys of others -->")[::2]
    rows = "\n".join(line.split("|")[1] for line in ours.splitlines() if line.startswith("| `"))
    told_back = {"effective-hard-sm-percent"}
    assert set(re.findall(r"`([a-z-]+)`", rows)) == annotations._OURS | told_back
    assert set(re.findall(r"`([a-z-]+)`", others.partition("## ")[0])) == annotations._OTHERS - told_back


def test_the_example_of_annotations_is_understood() -> None:
    block = re.search(
        r"<!-- annotations: good -->\n```yaml\n(.*?)```", (DOCS / "annotations.md").read_text("utf-8"), re.DOTALL
    )
    assert block is not None
    demand = annotations.parse(yaml.safe_load(block[1])["metadata"]["annotations"])
    assert demand.requests.vram_bytes == demand.limits.vram_bytes == 8 * 2**30
    assert demand.limits.compute is not None
    assert demand.limits.compute.tflops == 400


@pytest.mark.parametrize("row", table_after("annotations.md", "annotations: bad"), ids=lambda row: row[0])
def test_mistakes_are_told_as_the_page_says(row: list[str]) -> None:
    pairs = (pair.partition(": ")[::2] for pair in re.findall(r"`([^`]*)`", row[0]))
    with pytest.raises(annotations.AnnotationError) as error:
        annotations.parse({PREFIX + key: value for key, value in pairs})
    assert row[1] in str(error.value)


def test_the_pages_with_commands_can_be_read() -> None:
    listed = commands("troubleshooting.md")
    assert [each.status for each in listed].count(None) == 3
    assert {each.status for each in listed} == {None, 0, 1, 2, 3}
    assert any(each.text.startswith("cat > /tmp/pod.yaml") and "\nEND" in each.text for each in listed)


def test_nothing_is_to_be_pasted_behind_a_command_that_is_still_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n```console\n$ true\n$ server &\n```\n")
    assert [each.status for each in commands("page.md")] == [0, None]
    page.write_text("<!-- run -->\n```console\n$ server &\n$ ask\n```\n")
    with pytest.raises(ValueError, match="line 3 goes on in the background"):
        commands("page.md")
