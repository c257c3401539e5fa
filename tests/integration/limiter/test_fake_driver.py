"""What the simulated driver can't be brought to do: arrays, and a driver that refuses by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.limiter.conftest import GIB, MIB, Pod

UUID = "GPU-00000000-0000-0000-0000-000000000001"
OUT_OF_MEMORY = 2
UNKNOWN_POINTER, EXPORT_TABLE = 4, 6  # enum hv_message_code


@pytest.fixture(scope="module")
def library(build: Callable[..., Path]) -> Path:
    return build("fake/libcuda.so.1", "fake_driver.c", flags=("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"))


@pytest.fixture
def fake(pod: Pod, library: Path) -> Callable[..., object]:
    """Runs a program on the driver of limiter/tests/fake_driver.c, limited to 1 GiB."""
    pod.files.run("make", UUID, GIB, 1_000_000)

    def ask(source: str, **variables: str) -> object:
        return pod.ask(source, LD_LIBRARY_PATH=str(library.parent), **variables)

    return ask


DESCRIPTOR = """
        start()
        class Descriptor(ctypes.Structure):
            _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
                        ("format", ctypes.c_int), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint)]
        class Flat(ctypes.Structure):
            _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int),
                        ("channels", ctypes.c_uint)]
        array = ctypes.c_void_p()
        def used():
            left, total = ctypes.c_size_t(), ctypes.c_size_t()
            must("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
            return total.value - left.value
"""


def test_arrays_count_until_they_are_destroyed(fake: Callable[[str], object]) -> None:
    assert fake(
        DESCRIPTOR
        + """
        must("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(Flat(4096, 4096, 0x20, 4)))
        held = used()
        must("cuArrayDestroy", array)
        tell([held, used()])
    """
    ) == [256 * MIB, 0]


def test_mipmapped_arrays_count_all_their_levels(fake: Callable[[str], object]) -> None:
    assert fake(
        DESCRIPTOR
        + """
        descriptor = Descriptor(1024, 1024, 0, 0x20, 4, 0)
        must("cuMipmappedArrayCreate", ctypes.byref(array), ctypes.byref(descriptor), 3)
        held = used()
        must("cuMipmappedArrayDestroy", array)
        tell([held, used()])
    """
    ) == [21 * MIB, 0]


def test_an_array_beyond_the_limit_is_refused(fake: Callable[[str], object]) -> None:
    assert (
        fake(
            DESCRIPTOR
            + """
        tell(call("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(Flat(16384, 16384, 0x20, 4))))
    """
        )
        == OUT_OF_MEMORY
    )


def test_what_the_driver_refuses_is_given_back_and_its_error_passed_on(fake: Callable[[str], object]) -> None:
    assert fake("""
        start()
        ctypes.c_int.in_dll(cuda, "fake_fail_next").value = 719
        first = alloc(900 * MIB)[0]
        tell([first, memory()[0] // MIB, alloc(900 * MIB)[0]])
    """) == [719, 1024, 0]


def test_a_pitch_larger_than_was_reserved_is_entered(fake: Callable[[str], object]) -> None:
    assert fake("""
        start()
        pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
        must("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch),
             ctypes.c_size_t(1), ctypes.c_size_t(1000), 4)
        left, total = memory()
        tell([pitch.value, total - left])
    """) == [4096, 4096 * 1000]


def test_small_amounts_are_exact_too(fake: Callable[[str], object], pod: Pod) -> None:
    """What a thread keeps of what it freed is in nobody's way: the limit can be had to the last byte."""
    pod.files.run("make", UUID, 8 * GIB, 1_000_000)
    assert fake("""
        start()
        held = [alloc(4096)[1] for _ in range(100)]
        first = memory()[1] - memory()[0]
        for pointer in held:
            free(pointer)
        rest = memory()[0]
        whole, pointer = alloc(rest)
        tell([first, 8 * GIB - rest, whole, alloc(1)[0], free(pointer), alloc(1)[0]])
    """) == [100 * 4096, 0, 0, OUT_OF_MEMORY, 0, 0]


def test_threads_that_allocate_small_amounts_leave_the_ledger_even(fake: Callable[[str], object], pod: Pod) -> None:
    pod.files.run("make", UUID, 8 * GIB, 1_000_000)
    assert fake("""
        start()
        def work():
            must("cuCtxSetCurrent", ctypes.c_void_p(0x1000))
            for _ in range(200):
                held = [alloc(4096)[1] for _ in range(20)]
                for pointer in held:
                    assert free(pointer) == 0
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tell([memory()[0], alloc(8 * GIB)[0]])
    """) == [8 * GIB, 0]


def test_a_private_table_is_told_of_once_a_process(fake: Callable[[str], object], pod: Pod) -> None:
    """What its functions do no wrapper sees; the driver's answer is passed on, and a child of fork is told of too."""
    source = """
        table = ctypes.c_void_p()
        def ask(first):
            return call("cuGetExportTable", ctypes.byref(table), bytes([first]) * 16)
        start()
        answers = [ask(2)]
        if ASKED:
            answers += [ask(1), ask(1), table.value is not None]
            child = os.fork()
            if child == 0:
                os._exit(ask(1))
            answers.append(os.waitpid(child, 0)[1])
        tell(answers)
    """
    assert fake(source.replace("ASKED", "False")) == [1]
    assert pod.files.show()["messages"] == []
    assert fake(source.replace("ASKED", "True")) == [1, 0, 0, True, 0]
    messages = pod.files.show()["messages"]
    assert [message["code"] for message in messages] == [EXPORT_TABLE] * 2
    assert "private table" in messages[0]["text"]


def test_a_free_of_memory_that_was_never_counted_is_told(fake: Callable[[str], object], pod: Pod) -> None:
    """This driver takes any pointer for its own; what the wrappers handed out is not told."""
    assert (
        fake("""
        start()
        result, pointer = alloc(MIB)
        answers = [free(pointer), free(ctypes.c_uint64(0))]
        tell(answers + [free(ctypes.c_uint64(0x5000 + i)) for i in range(3)])
    """)
        == [0] * 5
    )
    told = [message["text"] for message in pod.files.show()["messages"] if message["code"] == UNKNOWN_POINTER]
    assert len(told) == 2  # the first and the second
    assert "never counted (2 times)" in told[1]


@pytest.mark.parametrize(("order", "totals"), [("FASTEST_FIRST", [1024, 0]), ("PCI_BUS_ID", [0, 1024])])
def test_a_limit_follows_the_uuid_in_every_order_of_devices(
    fake: Callable[..., object], order: str, totals: list[int]
) -> None:
    """The limiter works no order out: it asks the driver who has a number."""
    source = """
        must("cuInit", 0)
        totals, total = [], ctypes.c_size_t()
        for device in range(2):
            must("cuDeviceTotalMem_v2", ctypes.byref(total), device)
            totals.append(total.value // MIB)
        tell(totals)
    """
    assert fake(source, CUDA_DEVICE_ORDER=order) == totals


def test_the_device_of_a_thread_is_known_without_asking_the_driver(fake: Callable[[str], object], pod: Pod) -> None:
    """A thread whose context came past the wrappers asks once, and again when its context may be another."""
    pod.files.run("make", UUID, GIB, 500_000)
    pod.files.run("flags", 0)
    assert fake("""
        def asked():
            return ctypes.c_uint64.in_dll(cuda, "fake_asked").value
        def work():
            for _ in range(20):
                must("cuMemFree_v2", alloc(MIB)[1])
                must("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        context, function = start(), kernel(1)
        work()
        seen = [asked()]
        must("cuCtxSetCurrent", context)
        work()
        seen.append(asked())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        seen.append(asked())
        tell(seen)
    """) == [0, 0, 1]
