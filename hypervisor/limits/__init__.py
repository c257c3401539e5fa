"""Limit files: makes, writes and reads them; the only importer of the cffi module _abi.

In: limits as values, paths, process identities. Out: surveys of usage, and LimitFileError with a Finding. Nothing here
decides who gets what (that is hypervisor.allocations), and nothing here blocks.
"""

from hypervisor.limits.costs import CostEntry
from hypervisor.limits.creation import Access
from hypervisor.limits.directory import LimitDirectory, LimitFiles, checked_name
from hypervisor.limits.findings import Finding, LimitFileError
from hypervisor.limits.layout import FileKind
from hypervisor.limits.limitset import DeviceFlags, DeviceLimits, FileIsolation, FilePolicy, LimitSet
from hypervisor.limits.messages import Message, MessageCode
from hypervisor.limits.shm import DeviceControl, ShmFile, ShmState
from hypervisor.limits.usage import (
    DeviceAccount,
    RecountResult,
    Slot,
    SlotDevice,
    SlotPhase,
    UsageFile,
    UsageSurvey,
    new_survey_buffer,
)

__all__ = [
    "Access",
    "CostEntry",
    "DeviceAccount",
    "DeviceControl",
    "DeviceFlags",
    "DeviceLimits",
    "FileIsolation",
    "FileKind",
    "FilePolicy",
    "Finding",
    "LimitDirectory",
    "LimitFileError",
    "LimitFiles",
    "LimitSet",
    "Message",
    "MessageCode",
    "RecountResult",
    "ShmFile",
    "ShmState",
    "Slot",
    "SlotDevice",
    "SlotPhase",
    "UsageFile",
    "UsageSurvey",
    "checked_name",
    "new_survey_buffer",
]
