"""Simulated machines: GPUs that aren't there, for the daemon, for client programs and for tests.

A machine is one file, which the simulated libcuda.so.1 and libnvidia-ml.so.1 of a process map when
`SIM_MACHINE` names it. What comes in: YAML (profiles/, models/, a file of the user's), fault texts. What goes
out: a machine file, an environment for child processes, and a report of all that happened on the machine.

`description` and `faults` are pure; only `machine` touches the compiled module. Nothing is imported here, so
that an installation without the simulator can still import the package.
"""
