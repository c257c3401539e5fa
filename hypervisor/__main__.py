"""`python -m hypervisor`: how the program starts itself again for another role."""

import os
import sys

if sys.argv[1:] == ["gpu-reader"] and not (os.isatty(0) or os.isatty(1)):
    # There are two of them at work, and whoever waits for one waits for its start: it goes without the command line.
    from hypervisor.gpu.child import serve_pipes

    serve_pipes()
else:
    from hypervisor.cli import main

    main()
