"""The human page: one HTML document, no script, nothing loaded from elsewhere; pure.

Read at a glance with eight GPUs and 64 Pods: a table of cards, and below each card's allocations, folded.
"""

from __future__ import annotations

from html import escape

from hypervisor.http.message import Response
from hypervisor.model import Allocation, AllocationUsage, ConditionStatus, Figure, Gpu, NodeSnapshot, OwnerKind
from hypervisor.model.allocation import SHARE_FULL_PPM
from hypervisor.model.quantity import format_bytes

_REFRESH_SECONDS = 5
_LINKS = (
    "<p class=quiet><a href=/metrics>metrics</a> · <a href=/readyz>readiness</a> · "
    "<a href=/api/v1/devices>devices</a> · <a href=/api/v1/workers>workers</a> · <a href=/api/v1/pod>pods</a></p>"
)
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em auto;max-width:75em;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.3em;margin:0}table{border-collapse:collapse;width:100%;margin:.6em 0}
th,td{text-align:left;padding:.25em .6em;border-bottom:1px solid #ddd;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}caption,summary{text-align:left;font-weight:600}
.bad{color:#a00;font-weight:600}.quiet{color:#666}meter{width:7em;vertical-align:middle}.wide{overflow-x:auto}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#444}.bad{color:#f77}}
"""


def render(snapshot: NodeSnapshot) -> Response:
    """The page of this snapshot."""
    usages = {usage.allocation_id: usage for usage in snapshot.usages}
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<meta http-equiv=refresh content={_REFRESH_SECONDS}>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(snapshot.identity.name)} · GPU hypervisor</title><style>{_STYLE}</style>",
        _heading(snapshot),
        _gpu_table(snapshot),
        *(_card(gpu, snapshot, usages) for gpu in snapshot.gpus if gpu.allocation_ids),
        _LINKS,
    ]
    return Response(
        status=200,
        content_type="text/html; charset=utf-8",
        body="".join(parts).encode(),
        headers=(("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),),
    )


def _heading(snapshot: NodeSnapshot) -> str:
    system = snapshot.system
    facts = [f"hypervisor {snapshot.version}"]
    if system.driver_version:
        facts.append(f"driver {system.driver_version}")
    facts.append(f"revision {snapshot.revision.epoch}.{snapshot.revision.revision}")
    if snapshot.simulated:
        facts.append("simulated")
    bad = [condition for condition in snapshot.conditions if condition.type == "Ready"]
    lines = "".join(
        f"<p class=bad>{escape(condition.message)}</p>"
        for condition in bad
        if condition.status is not ConditionStatus.TRUE
    )
    return f"<h1>{escape(snapshot.identity.name)}</h1><p class=quiet>{escape(' · '.join(facts))}</p>{lines}"


def _gpu_table(snapshot: NodeSnapshot) -> str:
    if not snapshot.gpus:
        return "<p>No GPU is known yet.</p>"
    rows = "".join(_gpu_row(gpu) for gpu in snapshot.gpus)
    return (
        "<div class=wide><table><caption>GPUs</caption><tr><th class=n>#<th>Model<th>Health<th>GPU time requested"
        "<th>VRAM requested<th class=n>VRAM in use<th class=n>Busy<th class=n>°C<th class=n>W<th class=n>Allocations"
        f"</tr>{rows}</table></div>"
    )


def _gpu_row(gpu: Gpu) -> str:
    why = "; ".join(condition.message for condition in gpu.conditions if condition.status is ConditionStatus.TRUE)
    mark = "" if gpu.allocatable else " class=bad"
    health = gpu.health.value if gpu.allocatable else f"{gpu.health.value}, grants held"
    total = gpu.vram_bytes.value
    vram = _meter(gpu.requested_vram_bytes / total, format_bytes(gpu.requested_vram_bytes)) if total else "unknown"
    share = gpu.requested_share_ppm / SHARE_FULL_PPM
    readings = gpu.readings
    return (
        f"<tr><td class=n>{gpu.identity.index}<td title='{escape(gpu.identity.uuid)}'>{escape(gpu.identity.model)}"
        f"<td{mark} title='{escape(why)}'>{escape(health)}<td>{_meter(share, f'{share:.0%}')}<td>{vram}"
        f"<td class=n>{_bytes(readings.memory_used_bytes)} of {_bytes(gpu.vram_bytes)}"
        f"<td class=n>{_ratio(readings.utilization_ratio)}<td class=n>{_number(readings.temperature_celsius)}"
        f"<td class=n>{_number(readings.power_watts)}<td class=n>{len(gpu.allocation_ids)}</tr>"
    )


def _card(gpu: Gpu, snapshot: NodeSnapshot, usages: dict[str, AllocationUsage]) -> str:
    wanted = set(gpu.allocation_ids)
    rows = "".join(
        _allocation_row(gpu, allocation, usages.get(allocation.spec.allocation_id))
        for allocation in snapshot.allocations
        if allocation.spec.allocation_id in wanted
    )
    return (
        f"<details open><summary>GPU {gpu.identity.index}: {len(gpu.allocation_ids)} allocations</summary>"
        "<div class=wide><table><tr><th>Allocation<th>Owner<th class=n>GPU time limit<th class=n>Achieved"
        "<th class=n>VRAM limit<th class=n>Reserved<th class=n>Processes<th>Enforcement</tr>"
        f"{rows}</table></div></details>"
    )


def _allocation_row(gpu: Gpu, allocation: Allocation, usage: AllocationUsage | None) -> str:
    grant = next(grant for grant in allocation.grants if grant.gpu_uuid == gpu.identity.uuid)
    devices = usage.devices if usage else ()
    device = next((device for device in devices if device.gpu_uuid == gpu.identity.uuid), None)
    owner = allocation.spec.owner
    name = f"{owner.namespace}/{owner.name}" if owner.kind is OwnerKind.POD else owner.name
    vram = "card" if grant.limit_vram_bytes is None else format_bytes(grant.limit_vram_bytes)
    over = " <span class=bad>over</span>" if device and device.over else ""
    return (
        f"<tr><td>{escape(allocation.spec.allocation_id)}<td>{escape(owner.kind.value)} {escape(name)}"
        f"<td class=n>{grant.limit_share_ppm / SHARE_FULL_PPM:.1%}"
        f"<td class=n>{_ratio(device.busy_ratio) if device else '-'}<td class=n>{vram}"
        f"<td class=n>{_bytes(device.reserved_bytes) if device else '-'}{over}"
        f"<td class=n>{len(usage.processes) if usage else 0}<td>{usage.enforcement.value if usage else 'none'}</tr>"
    )


def _meter(ratio: float, text: str) -> str:
    return f"<meter value={min(max(ratio, 0.0), 1.0):.4f}></meter> {escape(text)}"


def _bytes(figure: Figure[int]) -> str:
    return "-" if figure.value is None else format_bytes(figure.value)


def _ratio(figure: Figure[float]) -> str:
    return "-" if figure.value is None else f"{figure.value:.0%}"


def _number(figure: Figure[float]) -> str:
    return "-" if figure.value is None else f"{figure.value:.0f}"
