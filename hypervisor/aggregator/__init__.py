"""The aggregator: many nodes' reports become GPU objects and events, in one place for schedulers and people.

In come report streams (ReportService); out go queries and watches (ClusterService) and /metrics. It holds no truth of
its own: the registry is what the nodes last said, the store what survives a restart. One asyncio loop owns the
registry; one thread writes the store; whatever is acknowledged is on disk.

    report_service -> reports (checks) -> registry -> writer -> store (SQLite)
                                            |-> watch, pages -> cluster_service
"""
