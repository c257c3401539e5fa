"""`python -m hypervisor`: how the program starts itself again for another role."""

from hypervisor.cli import main

main()
