"""A GPU hypervisor: lets many workloads share the GPUs of a node, each with the share that it was promised."""

__version__ = "0.1.0"
