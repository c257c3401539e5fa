"""The tables of docs/events.md: the catalogue of hypervisor/model/event_reasons.py, and the reasons of this system
below. The rest of the page is written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from buildsupport.reference.markdown import code, table
from hypervisor.model.event_reasons import EVENT_REASONS, Emitter, EventReason

PAGE = Path(__file__).parents[2] / "docs/events.md"
_MADE = re.compile(r"(<!-- made by make reference: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# object -> reason -> when it is told
OWN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Node": {
            "HypervisorStarted": "a daemon has started, with its version and epoch",
            "NodeReady": "the node is ready",
            "NodeNotReady": "it is not, with the reason",
            "NodeLost": "the aggregator has not heard of it for twelve heartbeats",
            "NodeReturned": "it reports again",
            "SettingsReloaded": "SIGHUP has put other settings in force, or they wait for a restart",
            "SettingsRejected": "the settings could not be used; those in force stay",
            "StateSetAside": "a damaged file of the state directory was set aside",
            "DoctorCheckFailed": "a check of the doctor fails that did not",
            "DoctorCheckWarned": "a check warns that did not",
            "DoctorCheckPassed": "a check passes again",
            "NvSwitchError": "an NVSwitch has reported an error (SXid)",
        },
        "GPU": {
            "GPUDiscovered": "a GPU was seen for the first time",
            "GPURemoved": "it is gone from the driver and from the bus",
            "GPUMissing": "a node does not report it any more",
            "GPUContested": "two nodes report the same GPU",
            "GPUAttached": "the daemon holds it again",
            "GPUDetached": "the daemon has let go of it, for a reset or a driver upgrade",
            "GpuUnhealthy": "it has become unhealthy, with the code; also told to its allocations",
            "GpuRecovered": "it is well again; also told to its allocations",
            "GPUHealthChanged": "its health has changed otherwise",
            "GPUGrantsHeld": "nothing new is granted on it, with the reason",
            "GPUGrantsResumed": "grants are made again",
            "XidError": "the driver has reported an Xid; of a program's fault its owner is told",
            "EccErrors": "memory errors that were not corrected",
            "ReadingsHeld": "readings of a figure are not believed; the last good one stands",
            "ReadingsResumed": "they are believed again",
            "MigModeOff": "it is to be divided, and its MIG mode is off: what to do",
            "PartitionCreated": "a MIG instance was made",
            "PartitionEnded": "a MIG instance was ended",
            "PartitionFailed": "a MIG instance could not be made or ended",
            "PartitionLost": "a MIG instance is gone, and others have its place",
            "PartitionsUnreadable": "how it is divided could not be read",
            "MpsReady": "its MPS server's limits were read back, and it is offered",
            "MpsServerFault": "its MPS server is in FAULT; names the clients that must end",
            "MpsWithheld": "it is not offered for hard isolation, with the reason",
            "MpsClientsOrphaned": "its MPS server ended under clients, which must end",
            "ComputeModeKept": "its compute mode could not be restored",
        },
        "Allocation": {
            "AllocationGranted": "a share was granted",
            "AllocationRefused": "it was refused, with the numbers",
            "AllocationRecovered": "it was found in limit files without a record",
            "AllocationReleased": "it was released",
            "AllocationEnded": "its owner has ended",
            "AllocationFrozen": "its VRAM was moved to the host",
            "AllocationResumed": "its VRAM is on the card again",
            "CheckpointFailed": "it could not be frozen or resumed",
            "LimitsChanged": "other limits are in force",
            "LimitsRefused": "other limits were refused; the old ones stay",
            "PartitionTemplateMatchFailed": "no MIG profile fits, and why not on each card",
            "MemoryDenied": "requests of VRAM were refused at the limit",
            "OverLimit": "it holds more than a limit that was lowered",
            "ComputeOverLimit": "the driver measures more GPU time than the limit, for ten seconds",
            "LimiterBypassed": "a process of it uses a GPU past the limiter",
            "LimiterFailed": "the limiter has met an error of its own",
            "LimiterMismatch": "limiter and limit files are of different major versions",
            "DeviceNodesLost": "its container may no longer open a GPU's device node: restart the Pod",
            "LimiterRefused": "a process got no CUDA, for its limits were not in order",
            "UsageTampered": "its usage file was changed as no limiter does",
            "SlotsExhausted": "512 of its processes use the GPU; one more was refused",
            "LedgerHealed": "a recount has changed its account of memory",
            "UnknownMemoryFreed": "memory was freed that was never counted",
            "DriverTableUsed": "a process took a private function table of the driver",
            "MemoryLimitNotSet": "its VRAM limit could not be set on a cgroup, and why",
            "PreloadCovered": "the image's own /etc/ld.so.preload is covered",
            "TimeNamespaceDiffers": "a process is in a time namespace of its own and can't be judged",
            "RecordSetAside": "its record could not be read and was set aside",
            "LimitFilesUnusable": "its limit files can't be used, and why",
        },
        "Worker": {
            "WorkerStarted": "it runs",
            "WorkerStartFailed": "it could not be started",
            "WorkerNotReady": "its readiness probe fails",
            "WorkerUnhealthy": "its liveness probe fails; it is started again",
            "WorkerExited": "it has ended, with status or signal and its last lines",
            "WorkerStopped": "it was stopped",
            "WorkerRecordDamaged": "its record can't be read: it is shown as failed, and not looked after",
        },
        "Pod": {
            "GPULimitsChanged": "other figures of its annotations are in force",
            "GPULimitsRefused": "they do not fit; the old limits stay",
            "AnnotationInvalid": "an annotation can't be understood; quotes it",
            "AnnotationUnknown": "an annotation of our prefix that nobody knows",
            "GPUNotGranted": "a process of it uses a card that it was not given",
        },
    }
)


def document() -> str:
    """The whole page: what is written by hand as it stands in the file, the tables as the code has them."""
    made = {"catalogue": _catalogue, "own": _own}
    return _MADE.sub(
        lambda found: found[1] + "\n".join(made[found[2]]()) + "\n" + found[3], PAGE.read_text(encoding="utf-8")
    )


def _catalogue() -> Iterator[str]:
    rows = (_row(each) for each in EVENT_REASONS.values())
    return table(("reason", "type", "object", "fields", "told by"), rows)


def _own() -> Iterator[str]:
    for kind, reasons in OWN.items():
        yield f"### About a {kind}\n"
        yield from table(("reason", "told when"), ((code(name), text) for name, text in reasons.items()))
        yield ""


def _row(each: EventReason) -> tuple[str, str, str, str, str]:
    types = "/".join(sorted(type_.value for type_ in each.types))
    teller = "declared" if each.emitter is Emitter.NONE else each.emitter.value
    return code(each.reason), types, each.object_kind, ", ".join(each.fields), teller
