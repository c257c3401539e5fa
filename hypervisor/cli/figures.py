"""Figures of the API as people read them; pure."""

from __future__ import annotations

import time
from typing import Any

from hypervisor.model.quantity import format_bytes
from hypervisor.v1 import types_pb2

UNKNOWN = "unknown"


def enum_word(enum: Any, number: int, prefix: str) -> str:
    """A value of an enumeration in lower case and without its prefix; "" when unspecified."""
    if number == 0:
        return ""
    if number not in enum.values():
        return str(number)
    return str(enum.Name(number)).removeprefix(prefix).lower().replace("_", "-")


def number(value: float) -> str:
    """A number with at most one decimal."""
    return f"{value:z.1f}".removesuffix(".0")  # z: nothing is never -0


def span(seconds: float) -> str:
    """A time of GPU work, in the unit in which it has one to three digits; below 0 what is owed."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}" if abs(seconds) < 999.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{number(seconds * 1e6)} us" if abs(seconds) >= 5e-8 else "0"


def percent(ratio: float) -> str:
    """A ratio of 0 to 1 as a percentage with at most one decimal."""
    return f"{number(ratio * 100)}%"


def share(ppm: int) -> str:
    """Parts per million as an exact percentage."""
    return f"{ppm / 10_000:.4f}".rstrip("0").rstrip(".") + "%"


def figure(message: types_pb2.Figure, form: Any = number) -> str:
    """A figure; "~" before one that is stale, and unknown where it is absent."""
    if not message.HasField("value"):
        return UNKNOWN
    return ("~" if message.stale else "") + str(form(message.value))


def byte_figure(message: types_pb2.ByteFigure) -> str:
    """A number of bytes, as figure()."""
    if not message.HasField("bytes"):
        return UNKNOWN
    return ("~" if message.stale else "") + format_bytes(message.bytes)


def compute(message: types_pb2.Resources) -> str:
    """Compute as it was asked for; "all" where nothing limits it."""
    match message.compute.WhichOneof("amount"):
        case "percent":
            return f"{message.compute.percent}%"
        case "tflops":
            return f"{message.compute.tflops} TF"
    return "all"


def vram(message: types_pb2.Resources) -> str:
    """VRAM of a request or limit; "all" where nothing limits it."""
    return format_bytes(message.vram_bytes) if message.HasField("vram_bytes") else "all"


def age(seconds: float) -> str:
    """A time span, in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def since(stamp: Any) -> str:
    """The time since a Timestamp; "" when it is not set."""
    return age(time.time() - stamp.ToNanoseconds() / 1e9) if stamp.ToNanoseconds() else ""


def provenance(message: types_pb2.Figure | types_pb2.ByteFigure) -> str:
    """Where a figure comes from and how old it is, or why there is none."""
    if message.absent_reason:
        return message.absent_reason
    words = [enum_word(types_pb2.FigureSource, message.source, "FIGURE_SOURCE_")]
    if message.HasField("observed_at"):
        words.append(f"{message.age_seconds:.1f} s ago")
    if message.stale:
        words.append("stale")
    return ", ".join(word for word in words if word)
