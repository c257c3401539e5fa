"""Simulated machines."""
