"""What each key does, seen from the state and the action that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.top.cells import ASCII
from hypervisor.top.content import Content
from hypervisor.top.keyboard import (
    Action,
    ApplyLimits,
    Keyboard,
    Mode,
    Quit,
    ReadLimits,
    ShowDetail,
    chosen,
    press,
    visible,
)
from hypervisor.top.layout import frame
from hypervisor.top.rows import gpu_row, pod_rows
from tests.unit.top.conftest import make_gpu_message, make_pod_message

MakeContent = Callable[..., Content]


def pressed(keys: Iterable[str], content: Content, keyboard: Keyboard | None = None) -> tuple[Keyboard, Action | None]:
    keyboard, action = keyboard or Keyboard(), None
    for key in keys:
        keyboard, action = press(keyboard, key, content)
    return keyboard, action


def test_down_and_enter_open_the_second_gpu(make_content: MakeContent) -> None:
    content = make_content()
    _keyboard, action = pressed(["DOWN", "ENTER"], content)
    assert action == ShowDetail("gpus", content.gpus[1].key, content.gpus[1].message)


def test_the_selection_stays_on_its_row_when_the_order_changes(make_content: MakeContent) -> None:
    content = make_content(gpus=3)
    keyboard, _ = pressed(["DOWN"], content)
    for _ in range(20):
        if keyboard.sorted_by.get("gpus") == "BUSY":
            break
        keyboard, _ = press(keyboard, "s", content)
    assert [row.index for row in visible(keyboard, content, "gpus")] == [2, 1, 0]
    assert chosen(keyboard, content).index == 1
    keyboard, _ = press(keyboard, "r", content)
    assert [row.index for row in visible(keyboard, content, "gpus")] == [0, 1, 2]


def test_a_filter_narrows_while_it_is_typed_and_escape_ends_it(make_content: MakeContent) -> None:
    content = make_content()
    keyboard, _ = pressed(["TAB", "/", *"INF"], content)
    assert [row.name for row in visible(keyboard, content, "pods")] == ["infer"]
    keyboard, _ = pressed(["ENTER"], content, keyboard)
    assert [row.name for row in visible(keyboard, content, "pods")] == ["infer"]
    keyboard, _ = pressed(["ESCAPE"], content, keyboard)
    assert len(visible(keyboard, content, "pods")) == 2


def test_a_filter_shows_the_gpus_of_the_pods_that_it_finds(make_content: MakeContent) -> None:
    keyboard, _ = pressed(["/", *"infer"], make_content(gpus=3))
    assert [row.index for row in visible(keyboard, make_content(gpus=3), "gpus")] == [1]
    keyboard, _ = pressed(["/", *"h100"], make_content(gpus=3))
    assert len(visible(keyboard, make_content(gpus=3), "gpus")) == 3


def test_limits_are_asked_for_understood_confirmed_and_only_then_applied(make_content: MakeContent) -> None:
    content = make_content()
    keyboard, action = pressed(["TAB", "l", *"60%", " ", *"9Gi", "ENTER"], content)
    assert action == ReadLimits("infer", "GPU-00000001", "60% 9Gi", "40% and 8Gi")
    asked = replace(keyboard, mode=Mode.CONFIRM, question="give it?")
    assert press(asked, "y", content)[1] == ApplyLimits()
    for key in ("n", "ENTER", "ESCAPE", " "):
        keyboard, action = press(asked, key, content)
        assert action is None
        assert "nothing was changed" in keyboard.notice


def test_limits_of_a_gpu_or_of_a_cluster_are_explained(make_content: MakeContent) -> None:
    assert "belong to Pods" in pressed(["l"], make_content())[0].notice
    assert "on their node" in pressed(["l"], make_content(cluster=True))[0].notice
    assert "no Pod" in pressed(["TAB", "l"], make_content(pods=()))[0].notice


def test_a_pod_that_goes_while_its_limits_are_typed_is_said(make_content: MakeContent) -> None:
    keyboard, _ = pressed(["TAB", "l", *"60%"], make_content())
    keyboard, action = press(keyboard, "ENTER", make_content(pods=()))
    assert action is None
    assert "gone" in keyboard.notice


def test_limits_are_for_the_pod_that_was_chosen_whatever_becomes_of_the_order(make_content: MakeContent) -> None:
    keyboard, _ = pressed(["TAB", "l", *"60%"], make_content(pods=("one", "two")))
    keyboard, action = press(keyboard, "ENTER", make_content(pods=("a-new-one", "one")))
    assert isinstance(action, ReadLimits) is False, "the Pod of this place is another one now"
    assert "gone" in keyboard.notice


def test_q_leaves_but_not_while_typing(make_content: MakeContent) -> None:
    content = make_content()
    assert pressed(["q"], content)[1] == Quit()
    assert pressed(["/", "q"], content)[0].typed == "q"


keys = st.lists(
    st.sampled_from(["UP", "DOWN", "PAGE_DOWN", "END", "TAB", "ENTER", "ESCAPE", "BACKSPACE", *"qslr/?Sjky9%G "]),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(keys=keys, gpus=st.integers(0, 5), pods=st.integers(0, 5), width=st.integers(1, 200), height=st.integers(1, 60))
def test_any_keys_on_any_size_make_a_screen_of_that_size(
    keys: list[str], gpus: int, pods: int, width: int, height: int
) -> None:
    content = Content(
        address="unix:/x",
        cluster=False,
        clock="12:00:00",
        known=True,
        gpus=tuple(gpu_row(make_gpu_message(index)) for index in range(gpus)),
        pods=tuple(row for at in range(pods) for row in pod_rows(make_pod_message(f"pod-{at}"))),
    )
    keyboard = Keyboard()
    for key in keys:
        keyboard, action = press(keyboard, key, content)
        if isinstance(action, ShowDetail):
            keyboard = replace(keyboard, mode=Mode.DETAIL, detail=("a", "b"))
        if isinstance(action, ReadLimits):
            keyboard = replace(keyboard, mode=Mode.CONFIRM, question="really?")
        lines = frame(keyboard, content, width=width, height=height, glyphs=ASCII)
        assert len(lines) == height
        assert all(len(line.text) == width for line in lines)
