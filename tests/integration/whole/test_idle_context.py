"""A process that made a context and then does nothing is charged for what was measured, once."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time

import pytest

from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.limiter.conftest import PREAMBLE
from tests.integration.whole.test_one_node import exec_

CONTEXT_MIB = 500  # of the simulated H100; 768 stand for it until it is measured
LIMIT_MIB = 2300
MEASURED_SECONDS = 3.0  # two, and one for a machine that does other things as well

# The idle one is on its own from the start of its only context; the other tells what it sees and can have.
SOURCE = """
    theirs, ours = os.pipe()
    if os.fork() == 0:
        os.close(ours)
        start()
        tell("idle")
        os.read(theirs, 1)  # until the other has ended
        os._exit(0)
    start()
    for line in sys.stdin:
        result, pointer = alloc(int(line) * MIB)
        if result == 0:
            must("cuMemFree_v2", pointer)
        left, total = memory()
        tell([(total - left) // MIB, result])
"""


@pytest.mark.slow
def test_what_stands_for_a_context_is_given_up_without_a_call_of_its_process(daemon: DaemonProcess) -> None:
    source = PREAMBLE + textwrap.dedent(SOURCE)
    command = [*exec_(daemon, "--gpu", "0", "--vram", f"{LIMIT_MIB}Mi"), sys.executable, "-c", source]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == "idle"
        most = LIMIT_MIB - 2 * CONTEXT_MIB

        def answer(mib: int) -> list[int]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(mib, file=process.stdin, flush=True)
            return list(json.loads(process.stdout.readline()))

        assert answer(1)[0] > 2 * CONTEXT_MIB  # the stand-ins
        began = time.monotonic()
        wait_until(lambda: answer(most) == [2 * CONTEXT_MIB, 0], "both contexts as measured")
        assert time.monotonic() - began <= MEASURED_SECONDS
        assert answer(most + 1)[1] != 0
        process.stdin.close()
