"""What runs on a real GPU: the same probes that the simulator passes. Skips with a reason elsewhere."""
