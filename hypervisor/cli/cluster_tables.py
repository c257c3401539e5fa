"""The tables of what an aggregator keeps: GPUs and nodes with where and how fresh they are, and pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypervisor.cli import figures
from hypervisor.cli.output import Column, Table
from hypervisor.cli.tables import GPU, NODE, word
from hypervisor.model.quantity import format_bytes
from hypervisor.v1 import cluster_pb2 as pb

# Of a GPU's own columns, those that a cluster's table has room for; -o wide shows the rest.
_NARROW = frozenset({"GPU", "MODEL", "FREE TFLOPS", "FREE VRAM", "PODS"})


def _within(column: Column, part: str, *, wide: bool) -> Column:
    """A column of an object that is a part of the one that is shown."""
    return Column(
        header=column.header,
        cell=lambda item: column.cell(getattr(item, part)),
        wide=wide,
        shrinks=column.shrinks,
    )


def _liveness(number: int) -> str:
    return word(pb.Liveness, number, "LIVENESS_")


CLUSTER_GPU = Table(
    name=lambda gpu: gpu.name,
    columns=(
        Column(header="NODE", cell=lambda gpu: gpu.node_name, shrinks=True),
        *(_within(column, "gpu", wide=column.header not in _NARROW) for column in GPU.columns),
        Column(header="PHASE", cell=lambda gpu: gpu.phase),
        Column(header="HEARD OF", cell=lambda gpu: _liveness(gpu.node_liveness)),
        Column(header="POOLS", cell=lambda gpu: ",".join(gpu.pools), wide=True),
        Column(
            header="MISSING FOR",
            cell=lambda gpu: figures.since(gpu.missing_since) if gpu.HasField("missing_since") else "",
            wide=True,
        ),
    ),
)
CLUSTER_NODE = Table(
    name=lambda node: node.node.identity.name,
    columns=(
        *(_within(column, "node", wide=column.wide or column.header in {"CUDA", "UP"}) for column in NODE.columns),
        Column(header="HEARD OF", cell=lambda node: _liveness(node.liveness)),
        Column(header="LAST SEEN", cell=lambda node: figures.since(node.last_seen_at)),
    ),
)
POOL = Table(
    name=lambda pool: pool.name,
    columns=(
        Column(header="NAME", cell=lambda pool: pool.name, shrinks=True),
        Column(header="PHASE", cell=lambda pool: pool.phase),
        Column(header="NODES", cell=lambda pool: str(pool.node_count)),
        Column(header="GPUS", cell=lambda pool: str(pool.gpu_count)),
        Column(
            header="FREE TFLOPS",
            cell=lambda pool: f"{figures.number(pool.available_tflops)}/{figures.number(pool.tflops)}",
        ),
        Column(
            header="FREE VRAM",
            cell=lambda pool: f"{format_bytes(pool.available_vram_bytes)}/{format_bytes(pool.vram_bytes)}",
        ),
        Column(header="VIRTUAL TFLOPS", cell=lambda pool: figures.number(pool.virtual_tflops), wide=True),
        Column(header="VIRTUAL VRAM", cell=lambda pool: format_bytes(pool.virtual_vram_bytes), wide=True),
    ),
)
# Full name of a message -> its table.
CLUSTER_TABLES: Mapping[str, Table] = {
    pb.ClusterGpu.DESCRIPTOR.full_name: CLUSTER_GPU,
    pb.ClusterNode.DESCRIPTOR.full_name: CLUSTER_NODE,
    pb.Pool.DESCRIPTOR.full_name: POOL,
}


def cluster_table(item: Any) -> Table:
    """The table for a message of the cluster's API."""
    return CLUSTER_TABLES[item.DESCRIPTOR.full_name]
