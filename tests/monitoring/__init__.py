"""What alerts and dashboards ask of Prometheus, held against what the pages of nodes and aggregator really say."""
