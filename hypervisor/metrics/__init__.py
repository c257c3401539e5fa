"""The /metrics page: one collector a subject, all over one view, rendered in a worker thread.

A collector turns the view into metric families and touches nothing else; one that fails is a metric and not an
outage. A series whose source is not there is absent. Names are those of the design, with the prefix gpuhv_. To add a
subject: one file with one collector, and one row in collectors.COLLECTORS.
"""

from hypervisor.metrics.collectors import COLLECTORS
from hypervisor.metrics.exposition import Exposition, Page
from hypervisor.metrics.view import MetricsView

__all__ = ["COLLECTORS", "Exposition", "MetricsView", "Page"]
