"""Is a GPU well? From what the driver, the kernel and the bus say to one state, with reasons and a way back.

In: events and state reads of NVML (through wire.py), the kernel's log, sysfs and device nodes under the host's root.
Out: for each card a HealthState with findings, things that happened (occurrence.py), and counters. policy.py,
kernel_log.parse, facts.py, machine.py and circuit.py are pure; monitor.py feeds them; memory.py keeps verdicts over a
restart. Nothing here changes a GPU.
"""
