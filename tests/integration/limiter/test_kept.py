"""What the threads of a process keep of what they freed is little, and never in the way of anybody."""

from __future__ import annotations

from tests.integration.limiter.conftest import GIB, Pod, heard

BLOCK = 512
FIRST_PROCESS_KEEPS = GIB // 7000  # kept.h
THREADS = 12

# Thread after thread keeps as much as it may, and stays.
KEEPERS = """
    start()
    context, may_end = ctypes.c_void_p(), threading.Event()
    must("cuCtxGetCurrent", ctypes.byref(context))
    def keep(done):
        must("cuCtxSetCurrent", context)
        held = [alloc(512)[1] for _ in range(400)]
        for pointer in held:
            free(pointer)
        done.set()
        may_end.wait()
    for _ in range({threads}):
        done = threading.Event()
        threading.Thread(target=keep, args=[done], daemon=True).start()
        done.wait()
    tell(memory()[0])
    sys.stdin.readline()
    tell(alloc({limit})[0])
"""


def test_threads_share_what_their_process_may_keep(pod: Pod) -> None:
    with pod.running(KEEPERS.format(threads=THREADS, limit=GIB)) as process:
        assert heard(process) == GIB  # to itself all of it is free
        assert pod.files.show()["total"] > BLOCK  # it does keep some
        most = GIB - FIRST_PROCESS_KEEPS // BLOCK * BLOCK
        assert pod.ask(f"start(); result, pointer = alloc({most}); tell([result, free(pointer)])") == [0, 0]
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        assert heard(process) == 0
