"""Reading YAML so that every mistake is told with its file, line and key, and with what is allowed.

A document is walked with `Section`s: each key is asked for once, with its type and bounds, and at the end
`finish` refuses the keys that nobody asked for. Pure: text in, values or one DocumentError out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Self, TypeVar

import yaml

Choice = TypeVar("Choice")

_SIZE_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "K": 10**3, "M": 10**6, "G": 10**9, "": 1}
_TIME_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_LONGEST_NS = 1000 * 24 * 3600 * 10**9  # a thousand days: times can be added without leaving 64 bits
_TRUTHS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


class DocumentError(ValueError):
    """A mistake in a description of a machine: where it is, which key, what is allowed."""

    def __init__(self, file: str, line: int | None, key: str, message: str) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {key}: {message}" if key else f"{place}: {message}")
        self.file = file
        self.line = line
        self.key = key


def parse_duration(text: str) -> int | None:
    """Nanoseconds of `5s`, `1.5ms`, `200us`; None when it is no duration, or one of more than a thousand days."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(ns|us|ms|s|m)", text)
    if match is None:
        return None
    nanoseconds = round(Fraction(match[1]) * _TIME_UNITS[match[2]])
    return nanoseconds if nanoseconds <= _LONGEST_NS else None


def parse_size(text: str) -> int | None:
    """Bytes of `80Gi`, `512Mi`, `24G`, `4096`; None when it is no size."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(Ki|Mi|Gi|K|M|G|)", text)
    return round(Fraction(match[1]) * _SIZE_UNITS[match[2]]) if match else None


class Value:
    """One node of the document, with where it stands and what it is called."""

    def __init__(self, file: str, path: str, node: yaml.Node) -> None:
        self.file = file
        self.path = path
        self.node = node

    def error(self, message: str) -> DocumentError:
        """The mistake at this place."""
        mark = self.node.start_mark
        return DocumentError(self.file, mark.line + 1 if mark else None, self.path, message)

    def shown(self) -> str:
        """The value as it was written, for messages."""
        if isinstance(self.node, yaml.ScalarNode):
            return repr(str(self.node.value))
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "a mapping"

    def text(self) -> str:
        """The scalar's text as written, whatever YAML would make of it."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"must be a text, not {self.shown()}")
        return str(self.node.value)

    def integer(self, least: int, most: int) -> int:
        """A whole number (decimal, or 0x… hexadecimal) within bounds."""
        wanted = f"must be a whole number from {least} to {most}, not {self.shown()}"
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(wanted)
        try:
            number = int(str(self.node.value), 0)
        except ValueError:
            raise self.error(wanted) from None
        if not least <= number <= most:
            raise self.error(wanted)
        return number

    def number(self, least: float, most: float) -> float:
        """A number within bounds."""
        wanted = f"must be a number from {least:g} to {most:g}, not {self.shown()}"
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(wanted)
        try:
            number = float(str(self.node.value))
        except ValueError:
            raise self.error(wanted) from None
        if not least <= number <= most:  # also refuses nan
            raise self.error(wanted)
        return number

    def duration(self, least: int = 0) -> int:
        """Nanoseconds, so many at least."""
        found = parse_duration(self.text())
        if found is None:
            raise self.error(
                f"must be a time with a unit (ns, us, ms, s, m), like 5s, of at most 1000 days, not {self.shown()}"
            )
        if found < least:
            raise self.error(f"must be at least {least}ns, not {self.shown()}")
        return found

    def size(self, least: int, most: int) -> int:
        """Bytes."""
        found = parse_size(self.text())
        if found is None:
            raise self.error(f"must be a size like 80Gi, 512Mi or 24G, not {self.shown()}")
        if not least <= found <= most:
            raise self.error(f"must be from {least} to {most} bytes, not {self.shown()}")
        return found

    def truth(self) -> bool:
        """true or false; on and off too."""
        found = _TRUTHS.get(self.text().lower())
        if found is None:
            raise self.error(f"must be true or false, not {self.shown()}")
        return found

    def choice(self, choices: Mapping[str, Choice]) -> Choice:
        """One of a few words, and what it stands for."""
        word = self.text()
        if word not in choices:
            raise self.error(f"must be one of {', '.join(choices)}, not {self.shown()}")
        return choices[word]

    def items(self) -> list[Value]:
        """The elements of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"must be a list, not {self.shown()}")
        return [Value(self.file, f"{self.path}[{at}]", node) for at, node in enumerate(self.node.value)]

    def section(self, *allowed: str) -> Section:
        """The value as a mapping. With the keys that are allowed given, another one is told before what may be missing
        or incomplete because of it.
        """
        return Section(self, allowed)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)


class Section:
    """A mapping that is being read. As a context manager it refuses at the end what nobody asked for."""

    def __init__(self, value: Value, allowed: Sequence[str] = ()) -> None:
        if not isinstance(value.node, yaml.MappingNode):
            raise value.error(f"must be a mapping, not {value.shown()}")
        self.value = value
        self._asked: list[str] = []
        self._values: dict[str, Value] = {}
        self._keys: dict[str, Value] = {}
        for key_node, value_node in value.node.value:
            name = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            path = f"{value.path}.{name}" if value.path else name
            key = Value(value.file, path, key_node)
            if name in self._values:
                raise key.error("is given twice; keep one of them")
            if allowed and name not in allowed:
                raise key.error(f"is not a key here; allowed are {', '.join(sorted(allowed))}")
            self._keys[name] = key
            self._values[name] = Value(value.file, path, value_node)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        """All keys, for mappings whose keys are free."""
        self._asked.extend(self._values)
        return iter(list(self._values.items()))

    def get(self, key: str) -> Value | None:
        """The value of a key that may be left out."""
        if key not in self._asked:
            self._asked.append(key)
        return self._values.get(key)

    def need(self, key: str) -> Value:
        """The value of a key that must be there."""
        found = self.get(key)
        if found is None:
            raise self.value.error(f"the key '{key}' is missing")
        return found

    def key_error(self, key: str, message: str) -> DocumentError:
        """A mistake about a key that is there."""
        return self._keys[key].error(message)

    def finish(self) -> None:
        """Refuse keys that nobody asked for."""
        for name, key in self._keys.items():
            if name not in self._asked:
                raise key.error(f"is not a key here; allowed are {', '.join(sorted(self._asked))}")


def parse_document(text: str, file: str) -> Value:
    """The root of a YAML text. Aliases and tags of other kinds than plain data are never constructed."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise DocumentError(file, mark.line + 1 if mark else None, "", f"is not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(file, line, "", f"is not YAML: {str(error).splitlines()[0]}") from None
    except yaml.YAMLError as error:
        raise DocumentError(file, None, "", f"is not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise DocumentError(file, None, "", "is nested too deeply to be the description of a machine") from None
    if root is None:
        raise DocumentError(file, 1, "", "is empty; describe at least version, driver and gpus")
    return Value(file, "", root)


def document_of_pairs(pairs: list[tuple[str, str]], origin: str) -> Value:
    """A one-line description, `key=value,…` already taken apart, as a document: same rules, same messages."""
    nodes: list[tuple[yaml.Node, yaml.Node]] = [
        (yaml.ScalarNode("tag:yaml.org,2002:str", key), yaml.ScalarNode("tag:yaml.org,2002:str", value))
        for key, value in pairs
    ]
    return Value(origin, "", yaml.MappingNode("tag:yaml.org,2002:map", nodes))
