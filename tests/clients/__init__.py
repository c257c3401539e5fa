"""Programs that others wrote, on the simulated driver; and the real driver, where it answers without a GPU."""
