"""What a process needs in its environment to run under an allocation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import hypervisor
from hypervisor.model import Allocation, IsolationMode, OwnerKind

LIMITER = Path(hypervisor.__file__).resolve().parent / "native" / "libcuda_limiter.so"


def limit_file_variable(directory: str) -> tuple[str, str]:
    """The variable that leads the limiter to the limit file, where no fixed path is mounted."""
    return "TF_SHM_PATH", f"{directory}/shm"


def environment(allocation: Allocation, *, limiter: Path = LIMITER) -> Mapping[str, str]:
    """Variables for a process of an allocation. In shared mode nothing is limited, and no library is loaded."""
    variables = dict([limit_file_variable(allocation.directory)])
    variables["TF_ISOLATION_MODE"] = allocation.spec.isolation.value
    # The granted devices are the only ones that CUDA shows, so that device 0 is the first one granted.
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(grant.gpu_uuid for grant in allocation.grants)
    if allocation.spec.isolation is not IsolationMode.SHARED:
        variables["LD_PRELOAD"] = str(limiter)
    owner = allocation.spec.owner
    if owner.kind is OwnerKind.POD:
        variables |= {"POD_NAMESPACE": owner.namespace, "POD_NAME": owner.name}
        if owner.container:
            variables["CONTAINER_NAME"] = owner.container
    return variables
