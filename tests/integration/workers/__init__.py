"""Workers under supervision, with the real shim."""
