"""Versions of the driver and the kernel, and the memory of the host, as they are published of the node."""

from __future__ import annotations

import os

from hypervisor.gpu import wire
from hypervisor.model.snapshot import SystemInfo


def system_info(opened: wire.Opened | None) -> SystemInfo:
    """By what NVML said when it was started; empty where it was not, or did not say."""
    cuda = opened.cuda_version.value if opened else None
    return SystemInfo(
        driver_version=(opened.driver_version.value if opened else None) or "",
        nvml_version=(opened.nvml_version.value if opened else None) or "",
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        kernel_version=os.uname().release,
        host_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
