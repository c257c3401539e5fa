"""The node's HTTP port: /metrics, /healthz, /readyz, the human page and the read-only JSON for existing scripts.

GET and HEAD only. What is answered comes from the current snapshot; nothing here changes anything or calls the
driver. server speaks the protocol, routes say what answers which path, page and api make the bodies.
"""

from hypervisor.http.listening import AddressInUse, open_listeners
from hypervisor.http.routes import MetricsPage, NodeView, Routes, Unready
from hypervisor.http.server import HttpServer, HttpStatistics

__all__ = [
    "AddressInUse",
    "HttpServer",
    "HttpStatistics",
    "MetricsPage",
    "NodeView",
    "Routes",
    "Unready",
    "open_listeners",
]
