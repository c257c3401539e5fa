"""The view on a terminal, through curses: keys in, lines out, one loop in one thread."""

from __future__ import annotations

import curses
import locale
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from hypervisor.model.text import text_width
from hypervisor.top.cells import ASCII, UNICODE, Glyphs, Line, Style
from hypervisor.top.content import Content
from hypervisor.top.detail import Detail
from hypervisor.top.feed import Feed
from hypervisor.top.interfaces import LimitChange, Outside, Unavailable
from hypervisor.top.keyboard import Action, ApplyLimits, Keyboard, Mode, Quit, ReadLimits, ShowDetail, press, told
from hypervisor.top.layout import frame

# Changes come in bursts; a frame shows all of one.
_LEAST_SECONDS_BETWEEN_FRAMES = 0.05
_ESCAPE_DELAY_MILLISECONDS = 25
_NAMES: Mapping[int, str] = {
    curses.KEY_UP: "UP",
    curses.KEY_DOWN: "DOWN",
    curses.KEY_PPAGE: "PAGE_UP",
    curses.KEY_NPAGE: "PAGE_DOWN",
    curses.KEY_HOME: "HOME",
    curses.KEY_END: "END",
    curses.KEY_ENTER: "ENTER",
    curses.KEY_BACKSPACE: "BACKSPACE",
    curses.KEY_RESIZE: "RESIZE",
}
_CHARACTERS: Mapping[str, str] = {
    "\n": "ENTER",
    "\r": "ENTER",
    "\t": "TAB",
    "\x1b": "ESCAPE",
    "\x7f": "BACKSPACE",
    "\b": "BACKSPACE",
}
_COLOURS: Mapping[Style, int] = {
    Style.GOOD: curses.COLOR_GREEN,
    Style.WARNING: curses.COLOR_YELLOW,
    Style.BAD: curses.COLOR_RED,
    Style.ACCENT: curses.COLOR_CYAN,
}
_ATTRIBUTES: Mapping[Style, int] = {
    Style.NORMAL: curses.A_NORMAL,
    Style.DIM: curses.A_DIM,
    Style.BOLD: curses.A_BOLD,
    Style.HEADER: curses.A_DIM,
    Style.GOOD: curses.A_NORMAL,
    Style.WARNING: curses.A_BOLD,
    Style.BAD: curses.A_BOLD,
    Style.ACCENT: curses.A_NORMAL,
}


class NoTerminal(Exception):  # noqa: N818 - it is an answer, not a fault
    """There is no terminal that can be drawn on; the text says why and what to do."""


def glyphs_of_locale() -> Glyphs:
    """Blocks where the terminal's encoding has them, else ASCII."""
    return UNICODE if "utf" in locale.getencoding().lower() else ASCII


def show(outside: Outside, *, interval: float, colour: bool) -> None:
    """Show the view until the user leaves it; interval is in seconds. Raises NoTerminal."""
    locale.setlocale(locale.LC_ALL, "")
    os.environ.setdefault("ESCDELAY", str(_ESCAPE_DELAY_MILLISECONDS))
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)

    def wake() -> None:
        try:
            os.write(writable, b"x")
        except BlockingIOError:
            return  # the pipe is full of the same message

    feed = Feed(outside, changed=wake)
    feed.start()
    # Instead of curses' own handler, which would not end the wait: another size is drawn at once.
    before = signal.signal(signal.SIGWINCH, lambda _number, _frame: wake())
    try:
        curses.setupterm()
        curses.wrapper(lambda window: _Screen(window, feed, outside, (readable, wake), interval, colour=colour).run())
    except curses.error as error:
        raise NoTerminal(
            f"top can't draw on this terminal (TERM={os.environ.get('TERM', '')!r}: {error}); "
            "set TERM, or print once with --once"
        ) from error
    finally:
        signal.signal(signal.SIGWINCH, before)


class _Screen:
    """The loop: waits for a key, a change or the interval, then draws."""

    def __init__(
        self,
        window: curses.window,
        feed: Feed,
        outside: Outside,
        waking: tuple[int, Callable[[], None]],
        interval: float,
        *,
        colour: bool,
    ) -> None:
        self._window = window
        self._feed = feed
        self._outside = outside
        self._woken, self._wake = waking
        self._interval = interval
        self._glyphs = glyphs_of_locale()
        self._keyboard = Keyboard()
        self._change: LimitChange | None = None
        self._detail: Detail | None = None
        self._styles = _styles(colour=colour and curses.has_colors())
        window.nodelay(True)  # noqa: FBT003 - the signature is curses'
        window.keypad(True)  # noqa: FBT003
        _hide_cursor()

    def run(self) -> None:
        while True:
            content = self._feed.content(interval=self._interval)
            if self._detail is not None and self._keyboard.mode is Mode.DETAIL:
                page, gone = self._detail.newer(content), self._detail.gone(content)
                self._keyboard = told(self._keyboard, page, gone=gone)
            self._draw(content)
            if not self._keys(content):
                return

    def _keys(self, content: Content) -> bool:
        """Wait for something to do, then take all keys that were typed; False to leave."""
        ready, _, _ = select.select([0, self._woken], [], [], self._interval)
        if ready == [self._woken]:
            # More of the same burst comes at once; a key may end the wait.
            select.select([0], [], [], _LEAST_SECONDS_BETWEEN_FRAMES)
            os.read(self._woken, 4096)
        while (key := self._key()) is not None:
            self._keyboard, action = press(self._keyboard, key, content)
            if isinstance(action, Quit):
                return False
            if action is not None:
                self._act(action)
        return True

    def _key(self) -> str | None:
        try:
            found = self._window.get_wch()
        except curses.error:
            return None
        except KeyboardInterrupt:
            return "q"
        return _NAMES.get(found, "") if isinstance(found, int) else _CHARACTERS.get(found, found)

    def _act(self, action: Action) -> None:
        try:
            match action:
                case ShowDetail():
                    page = tuple(self._outside.describe(action.kind, action.message))
                    self._keyboard = replace(self._keyboard, mode=Mode.DETAIL, detail=page, gone=False, scroll=0)
                    self._detail = Detail(
                        self._outside, kind=action.kind, key=action.key, message=action.message, changed=self._wake
                    )
                case ReadLimits():
                    self._change = self._outside.limit_change(action.name, action.gpu_uuid, action.text)
                    self._keyboard = replace(
                        self._keyboard, mode=Mode.CONFIRM, question=f"{self._change.words} (now {action.present})"
                    )
                case ApplyLimits() if self._change is not None:
                    self._keyboard = replace(self._keyboard, notice=self._change.apply())
                    self._change = None
        except (Unavailable, ValueError) as error:
            self._keyboard = replace(self._keyboard, notice=str(error))

    def _draw(self, content: Content) -> None:
        _take_size()
        height, width = self._window.getmaxyx()
        lines = frame(self._keyboard, content, width=width, height=height, glyphs=self._glyphs)
        self._window.erase()
        for at, each in enumerate(lines):
            self._draw_line(at, each, last=at == height - 1)
        self._window.refresh()

    def _draw_line(self, at: int, drawn: Line, *, last: bool) -> None:
        column = 0
        for span in drawn.spans:
            # The last cell of the screen can't be written without scrolling.
            text = span.text[:-1] if last and span is drawn.spans[-1] else span.text
            attribute = self._styles[span.style] | (curses.A_REVERSE if drawn.selected else 0)
            try:
                self._window.addstr(at, column, text, attribute)
            except curses.error:
                return  # the terminal became smaller meanwhile; the next frame fits
            column += text_width(text)


def _styles(*, colour: bool) -> dict[Style, int]:
    styles = dict(_ATTRIBUTES)
    if not colour:
        return styles
    curses.use_default_colors()
    for number, (style, value) in enumerate(_COLOURS.items(), start=1):
        curses.init_pair(number, value, -1)
        styles[style] |= curses.color_pair(number)
    return styles


def _take_size() -> None:
    """Tell curses the terminal's size, where it is another one by now."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return  # it has gone; so will we, with the next key that can't be read
    if curses.is_term_resized(size.lines, size.columns):
        curses.resizeterm(size.lines, size.columns)


def _hide_cursor() -> None:
    try:
        curses.curs_set(0)
    except curses.error:
        return  # some terminals can't
