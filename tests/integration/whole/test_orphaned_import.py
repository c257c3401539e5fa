"""Memory that another process made, and that outlives it: the daemon measures it, and then it counts."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time

import pytest

from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.limiter.conftest import PREAMBLE
from tests.integration.limiter.test_imports import IPC, PAIR, PHYSICAL, POOL
from tests.integration.whole.test_one_node import exec_

# The importer stays; the owner is killed. Then it tells, as often as it is asked, what is used and whether more fits.
LIFE = """
        if child:
            close = open_it()
            def tried():
                results = []
                for size in (1000 * MIB, 1500 * MIB):
                    result, pointer = alloc(size)
                    results.append(result)
                    if result == 0:
                        free(pointer)
                return results
            def used():
                must("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
                return (total.value - left.value) // MIB
            left, total = ctypes.c_size_t(), ctypes.c_size_t()
            for line in sys.stdin:
                if line == "kill\\n":
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                if line == "close\\n":
                    close()
                tell(tried() if line == "try\\n" else used())
        else:
            keep = make()
            ours.close()  # so that the end of the importer ends this
            hear()  # never calls CUDA again: what stood for its context is given up by the daemon
"""
CONTEXT_MIB = 500  # of the simulated H100
LIMIT_MIB = 2300
MEASURED_SECONDS = 3.0  # two, and one for a machine that does other things as well


@pytest.mark.slow
@pytest.mark.parametrize("road", [PHYSICAL, IPC, POOL], ids=["physical", "ipc", "pool"])
def test_an_import_counts_once_its_owner_has_ended(daemon: DaemonProcess, road: str) -> None:
    source = PREAMBLE + textwrap.dedent(PAIR + road + LIFE)
    command = [*exec_(daemon, "--gpu", "0", "--vram", f"{LIMIT_MIB}Mi"), sys.executable, "-c", source]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def answer(word: str) -> object:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(word + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        def waited(mib: int, tried: list[int]) -> float:
            began = time.monotonic()
            wait_until(lambda: answer("look") == mib, f"{mib} MiB used")
            took = time.monotonic() - began
            assert answer("try") == tried
            return took

        waited(600 + 2 * CONTEXT_MIB, [2, 2])
        answer("kill")
        assert waited(600 + CONTEXT_MIB, [0, 2]) <= MEASURED_SECONDS
        answer("close")
        assert waited(CONTEXT_MIB, [0, 0]) <= MEASURED_SECONDS
