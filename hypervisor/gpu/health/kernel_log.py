"""The kernel's log as a second source: faults whose events nobody took, and faults that have no Xid.

parse() is pure. KernelLog reads /dev/kmsg, or a plain file in its place, without ever waiting for it.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hypervisor.gpu import addresses

# One read of /dev/kmsg gives one record; this is more than the kernel ever makes of one.
RECORD_BYTES = 16384
# A storm of messages must not hold up the daemon: the rest is read the next time.
MOST_RECORDS = 2000

_ADDRESS = r"(?:PCI:)?(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{1,2}:[0-9a-f]{1,2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \({_ADDRESS}\): (?P<number>[0-9]{{1,4}})"
    r"(?:, pid='?(?P<pid>[0-9]+|<[^>]*>|[^,']*)'?)?(?:, name=(?P<name>[^,]*))?(?:,\s*(?P<text>.*))?",
    re.ASCII | re.IGNORECASE,
)
# Newer drivers: "GPU 0000:18:00.0: GPU has fallen off the bus."; older: "GPU at 0000:18:00.0 has fallen off the bus."
_OFF_BUS = re.compile(
    rf"NVRM: (?:The )?GPU (?:at )?{_ADDRESS}(?:: GPU)? has fallen off the bus", re.ASCII | re.IGNORECASE
)
_INIT = re.compile(
    rf"NVRM: GPU {_ADDRESS}: (?:RmInitAdapter|rm_init_adapter) failed(?P<text>.*)", re.ASCII | re.IGNORECASE
)
# A fault of a switch between GPUs; the address is the switch's.
_SWITCH = re.compile(
    rf"nvidia-nvswitch[0-9]*: SXid \({_ADDRESS}\): (?P<number>[0-9]{{1,5}})(?:,\s*(?P<text>.*))?", re.ASCII
)


class LogKind(Enum):
    """What a message is about."""

    XID = "xid"
    OFF_BUS = "off the bus"
    INIT_FAILED = "initialisation failed"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFinding:
    """One message that matters. at is CLOCK_MONOTONIC in seconds, None where the log does not say.

    bus_id is as sysfs writes it; of a switch it is the switch's. pid is that of the host's namespace; it and name are
    the program that the driver blames, None and "" where it blames none.
    """

    kind: LogKind
    bus_id: str
    at: float | None
    sequence: int | None
    number: int = 0
    pid: int | None = None
    name: str = ""
    text: str = ""


def parse(record: str) -> LogFinding | None:
    """A record of /dev/kmsg ("6,1234,5678901,-;message"), or a line of dmesg; None when it is about no GPU's health."""
    if "NVRM" not in record and "SXid" not in record:
        return None
    at, sequence, message = _head(record)
    switch = _SWITCH.search(message)
    if switch:
        return LogFinding(
            kind=LogKind.SWITCH,
            bus_id=addresses.normalise(switch["bus"]),
            at=at,
            sequence=sequence,
            number=int(switch["number"]),
            text=(switch["text"] or "").strip(),
        )
    found = _XID.search(message)
    if found:
        pid, name = found["pid"] or "", (found["name"] or "").strip()
        return LogFinding(
            kind=LogKind.XID,
            bus_id=addresses.normalise(found["bus"]),
            at=at,
            sequence=sequence,
            number=int(found["number"]),
            pid=int(pid) if pid.isascii() and pid.isdigit() else None,
            name="" if name.startswith("<") else name,
            text=(found["text"] or "").strip(),
        )
    for kind, pattern in ((LogKind.OFF_BUS, _OFF_BUS), (LogKind.INIT_FAILED, _INIT)):
        found = pattern.search(message)
        if found:
            text = found.groupdict().get("text") or ""
            return LogFinding(
                kind=kind, bus_id=addresses.normalise(found["bus"]), at=at, sequence=sequence, text=text.strip(" !")
            )
    return None


def _head(record: str) -> tuple[float | None, int | None, str]:
    """Time, sequence and message of a record; a line of dmesg has its time in brackets."""
    head, semicolon, message = record.partition(";")
    fields = head.split(",")
    if semicolon and len(fields) >= 3 and all(field.isascii() and field.isdigit() for field in fields[:3]):
        return int(fields[2]) / 1e6, int(fields[1]), message
    dmesg = re.match(r"\[\s*([0-9]+\.[0-9]+)\]\s*", record)
    return (float(dmesg[1]), None, record[dmesg.end() :]) if dmesg else (None, None, record)


class KernelLog:
    """Reads what is new. after: the sequence of the last record that an earlier start has seen."""

    def __init__(self, path: Path, *, after: int | None = None) -> None:
        self.path = path
        self.last_sequence = after
        self.failure = ""  # why the log can't be read, "" while it can
        self.tried = False
        self.records = 0
        self._after = after
        self._descriptor: int | None = None
        self._rest = b""

    def read(self) -> list[LogFinding]:
        """What came since the last call. Never waits, and raises nothing: see failure."""
        self.tried = True
        if self._descriptor is None and not self._open():
            return []
        found = []
        for record in self._records():
            self.records += 1
            finding = parse(record)
            if finding is None:
                continue
            if finding.sequence is not None:
                if self._after is not None and finding.sequence <= self._after:
                    continue  # judged by an earlier start of the daemon
                self.last_sequence = finding.sequence
            found.append(finding)
        return found

    def close(self) -> None:
        """Let go of the log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            hint = "; it takes CAP_SYSLOG" if error.errno in (errno.EPERM, errno.EACCES) else ""
            self.failure = f"{self.path}: {error.strerror}{hint}"
            return False
        self.failure = ""
        return True

    def _records(self) -> list[str]:
        records: list[str] = []
        while len(records) < MOST_RECORDS:
            try:
                part = os.read(self._descriptor or 0, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # older records were overwritten before we came to them
                self.failure = f"{self.path}: {error.strerror}"
                self.close()
                break
            if not part:
                break
            # The device gives whole records; a file gives whatever fits, so the last line may be half.
            *whole, self._rest = (self._rest + part).split(b"\n")
            records += [line.decode("utf-8", "replace") for line in whole]
        return records
