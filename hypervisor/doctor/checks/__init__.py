"""All checks, in the order of the chain. A new one is a function in the file of its subject, and its place there."""

from __future__ import annotations

from hypervisor.doctor.check import Check
from hypervisor.doctor.checks import (
    bus,
    cluster,
    cuda_version,
    daemon,
    devices,
    driver,
    faults,
    installation,
    joining,
    kubelet,
    memory,
    pod_limits,
    pod_object,
    pod_runtime,
    product_objects,
    runtime,
    scheduling,
)
from hypervisor.doctor.cluster_subject import ClusterSubject
from hypervisor.doctor.pod_subject import PodSubject
from hypervisor.doctor.subject import NodeSubject
from hypervisor.doctor.symptom import as_check
from hypervisor.doctor.symptoms import SYMPTOMS

NODE_CHECKS: tuple[Check[NodeSubject], ...] = (
    *bus.CHECKS,
    *driver.CHECKS,
    *devices.CHECKS,
    *joining.CHECKS,
    *faults.CHECKS,
    *daemon.CHECKS,
    *memory.CHECKS,
    *kubelet.CHECKS,
    *scheduling.CHECKS,
    *memory.SCHEDULING_CHECKS,
    *runtime.CHECKS,
    *cuda_version.CHECKS,
)

# What can be asked of one card alone.
GPU_CHECKS: tuple[Check[NodeSubject], ...] = (
    *bus.CHECKS,
    devices.health,
    *joining.CHECKS,
    *faults.CARD_CHECKS,
    daemon.model_known,
    daemon.foreign_use,
    *memory.CHECKS,
)

_STAGES = ("allocatable", "scheduling", "runtime", "workload")
POD_CHECKS: tuple[Check[PodSubject], ...] = tuple(
    sorted(
        (
            *pod_object.CHECKS,
            *pod_limits.CHECKS,
            *pod_runtime.CHECKS,
            *(as_check(symptom) for symptom in SYMPTOMS),
        ),
        key=lambda each: _STAGES.index(each.stage.value),  # stable: within a stage the order is the one above
    )
)

CLUSTER_CHECKS: tuple[Check[ClusterSubject], ...] = (
    *cluster.CHECKS,
    *installation.CHECKS,
    *product_objects.CHECKS,
)
