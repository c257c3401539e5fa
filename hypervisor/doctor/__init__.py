"""Checks that name the broken link between a GPU and a workload; reports, and bundles to examine elsewhere.

In: files below a root ("/" or a bundle), facts that the daemon or one round of the gpu-reader told, Kubernetes objects
from files. Out: model.Diagnosis. Nothing here changes anything, speaks gRPC or calls NVML; all of it is synchronous and
quick. checks/ holds one function a check; check.py runs them in the order of the chain.
"""
