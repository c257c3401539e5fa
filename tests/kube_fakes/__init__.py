"""A kubelet and an API server for tests: small, and faithful where the real ones have surprised people."""
