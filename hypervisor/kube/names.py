"""The names that Pods, nodes and manifests carry. They are those of the product whose users we serve."""

from __future__ import annotations

DOMAIN = "tensor-fusion.ai"
PREFIX = f"{DOMAIN}/"
INDEX_RESOURCE = f"{PREFIX}index_"

# Paths in a container; the limiter looks at them first.
CONTAINER_SHM = "/run/tensor-fusion/shm/shm"
CONTAINER_USAGE = "/run/tensor-fusion/shm/usage"
# The loader replaces $LIB by the folder of its class: one of these for 64-bit programs, as distributions have it, and
# one of the others for 32-bit ones, which find a library with nothing in it there, so that the loader says nothing.
CONTAINER_LIMITER = "/tensor-fusion-limiter/$LIB/libcuda_limiter.so"
LIBRARY_FOLDERS = ("lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
LIBRARY_FOLDERS_32 = ("lib/i386-linux-gnu", "lib32")
CONTAINER_PRELOAD = "/etc/ld.so.preload"

# Written by the scheduler or the operator; deploy/ keeps others from writing them.
GPU_IDS = f"{PREFIX}gpu-ids"
INDEX = f"{PREFIX}index"
CONTAINER_GPUS = f"{PREFIX}container-gpus"
PARTITION_UUIDS = f"{PREFIX}partition-uuids"
EFFECTIVE_SM_PERCENT = f"{PREFIX}effective-hard-sm-percent"

# Label or annotation: which workload a Pod is of.
WORKLOAD = f"{PREFIX}workload"

NATIVE_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE = "nvidia.com/mig-"
