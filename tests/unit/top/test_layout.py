"""What stands on the screen at the sizes that people have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hypervisor.top.cells import ASCII, Style
from hypervisor.top.content import Content
from hypervisor.top.keyboard import HELP, Keyboard, Mode
from hypervisor.top.layout import frame
from hypervisor.top.plain import plain_frame
from hypervisor.top.rows import gpu_row, pod_rows
from tests.unit.top.conftest import make_gpu_message, make_pod_message

MakeContent = Callable[..., Content]


def text(content: Content, width: int = 80, height: int = 24, keyboard: Keyboard | None = None) -> str:
    return "\n".join(
        line.text for line in frame(keyboard or Keyboard(), content, width=width, height=height, glyphs=ASCII)
    )


def test_eighty_columns_show_what_matters(make_content: MakeContent) -> None:
    shown = text(make_content())
    for header in ("GPU", "BUSY", "VRAM", "HEALTH", "NAME", "SHARE/LIMIT", "WAITS", "ENFORCED"):
        assert header in shown
    assert "8Gi/80Gi" in shown
    assert "40%/40%" in shown


def test_more_columns_show_more(make_content: MakeContent) -> None:
    assert "OWNER" not in text(make_content(), width=80)
    assert "OWNER" in text(make_content(), width=200)
    assert "team-a/train" in text(make_content(), width=200)


def test_many_pods_leave_the_gpus_in_sight_and_scroll(make_content: MakeContent) -> None:
    content = make_content(gpus=8, pods=tuple(f"pod-{at:03}" for at in range(100)))
    keyboard = Keyboard(focus="pods", selected={"pods": content.pods[99].key})
    shown = text(content, keyboard=keyboard)
    assert "pod-099" in shown
    assert "H100" in shown
    assert "Pods 91 to 100 of 100" in shown
    assert "GPUs" not in shown.split("\n")[11]


def test_the_help_fits_into_eighty_columns() -> None:
    assert max(map(len, HELP)) <= 80


def test_what_is_not_known_is_not_zero() -> None:
    def row(busy: float | None) -> list[str]:
        content = Content(
            address="", cluster=False, clock="", known=True, gpus=(gpu_row(make_gpu_message(0, busy=busy)),)
        )
        return next(line for line in text(content).split("\n") if "H100" in line).split()

    assert row(0.0).count("0.0%") == row(None).count("0.0%") + 1
    assert "-" in row(None)


@pytest.mark.parametrize(
    ("health", "style"),
    [("HEALTHY", Style.GOOD), ("DEGRADED", Style.WARNING), ("UNHEALTHY", Style.BAD), ("LOST", Style.BAD)],
)
def test_health_has_its_colour(health: str, style: Style) -> None:
    content = Content(
        address="", cluster=False, clock="", known=True, gpus=(gpu_row(make_gpu_message(0, health=health)),)
    )
    lines = frame(Keyboard(), content, width=100, height=20, glyphs=ASCII)
    spans = [span for line in lines for span in line.spans if span.text.startswith(health.lower())]
    assert spans
    assert spans[0].style is style


def test_a_pod_above_its_limit_stands_out() -> None:
    content = Content(
        address="", cluster=False, clock="", known=True, pods=pod_rows(make_pod_message("greedy", achieved=0.6))
    )
    lines = frame(Keyboard(), content, width=100, height=20, glyphs=ASCII)
    found = [span for line in lines for span in line.spans if span.text.strip() == "60%/40%"]
    assert found
    assert found[0].style is Style.WARNING


def test_trouble_with_the_server_is_said_and_the_last_figures_stand(make_content: MakeContent) -> None:
    shown = text(make_content(trouble="can't reach unix:/run/x: nobody listens on it any more"))
    assert "nobody listens" in shown.split("\n")[-1]
    assert "train" in shown


@pytest.mark.parametrize("width", [40, 79, 80, 200])
def test_a_question_and_its_answers_are_read_whole(make_content: MakeContent, width: int) -> None:
    asked = Keyboard(mode=Mode.CONFIRM, question="give train 50% 9Gi from now on? (now 40% and 8Gi)")
    shown = text(make_content(), width=width, keyboard=asked)
    assert shown.count("\n") == 23
    assert f"{asked.question} y: do it, any other key: don't" in " ".join(shown.split())
    refused = Keyboard(mode=Mode.LIMITS, typed="0%", notice="'0%' is not above 0; leave compute out for no limit")
    assert refused.notice in " ".join(text(make_content(), width=width, keyboard=refused).split())


def test_a_message_leaves_half_of_the_screen_to_the_figures(make_content: MakeContent) -> None:
    shown = text(make_content(trouble="word " * 200), width=40, height=8).split("\n")
    assert len(shown) == 8
    assert [line.startswith("word") for line in shown] == [False] * 4 + [True] * 4
    asked = Keyboard(mode=Mode.CONFIRM, question="word " * 200)
    assert text(make_content(), width=40, height=8, keyboard=asked).rstrip().endswith("any other key: don't")


def test_plain_text_has_every_row_and_no_padding(make_content: MakeContent) -> None:
    content = make_content(gpus=8, pods=tuple(f"pod-{at:03}" for at in range(100)))
    shown = plain_frame(content, width=160, glyphs=ASCII).split("\n")
    assert sum("pod-" in line for line in shown) == 100
    assert all(line == line.rstrip() for line in shown)


def test_a_window_that_is_too_small_says_so(make_content: MakeContent) -> None:
    assert "too small" in text(make_content(), width=39, height=10)
