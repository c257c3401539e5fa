"""`hypervisor demo`: the whole product on one machine, watched and judged.

A node daemon, an aggregator and client programs run as they would in earnest, through the command line. What each
client achieved is read from a source other than the code that limits it: the simulator's ledger, or the driver.
"""
