"""Kubernetes as plain logic: what annotations ask for, which Pod a cgroup is of, what a device plugin answers.

In: text, mappings and values that others have read. Out: values of hypervisor.model, decisions, and errors that quote
what was wrong. Nothing here reads a file, opens a socket or knows the time.
"""
