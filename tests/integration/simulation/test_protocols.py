"""What callers of the C library rely on: initialisation, structure versions, sizes, words for errors."""

from __future__ import annotations

import pytest

# Direct calls, without nvidia-ml-py in between.
DIRECT = """
library = ctypes.CDLL("libnvidia-ml.so.1")
library.nvmlErrorString.restype = ctypes.c_char_p
handle = ctypes.c_void_p()
count = ctypes.c_uint()
def first():
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    return handle
"""


def test_nothing_works_before_init_and_after_the_last_shutdown(simulate) -> None:
    assert simulate("t4").ask(
        DIRECT
        + """
codes = [library.nvmlDeviceGetCount_v2(ctypes.byref(count)), library.nvmlShutdown()]
first()
codes += [library.nvmlInit(), library.nvmlInitWithFlags(1), library.nvmlInitWithFlags(64)]
codes += [library.nvmlShutdown(), library.nvmlShutdown()]
codes += [library.nvmlDeviceGetCount_v2(ctypes.byref(count)), library.nvmlShutdown()]
codes += [library.nvmlDeviceGetCount_v2(ctypes.byref(count))]
codes += [library.nvmlDeviceGetMinorNumber(handle, ctypes.byref(count))]
codes += [library.nvmlInit_v2(), library.nvmlDeviceGetMinorNumber(handle, ctypes.byref(count))]
tell(codes)
"""
    ) == [1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 1, 0, 0]


def test_a_structure_of_another_version_is_refused(simulate) -> None:
    answers = simulate("h100-sxm-80gb").ask(
        DIRECT
        + """
h = first()
memory = n.c_nvmlMemory_v2_t()
codes = []
for version in (0, 1, 40, 40 | 1 << 24, 32 | 2 << 24, 40 | 2 << 24):
    memory.version = version
    memory.total = 12345
    codes.append(library.nvmlDeviceGetMemoryInfo_v2(h, ctypes.byref(memory)))
tell([codes, memory.total])
"""
    )
    assert answers == [[25, 25, 25, 25, 25, 0], 81559 << 20]


@pytest.mark.parametrize(
    ("structure", "function", "versions", "accepted"),
    [
        ("c_nvmlTemperature_v1_t", "nvmlDeviceGetTemperatureV", [0, 12, 12 | 2 << 24], 12 | 1 << 24),
        ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", [36, 40 | 2 << 24, 36 | 3 << 24], 36 | 2 << 24),
        ("c_nvmlMarginTemperature_v1_t", "nvmlDeviceGetMarginTemperature", [0, 1], 8 | 1 << 24),
        ("nvmlPciInfoExt_v1_t", "nvmlDeviceGetPciInfoExt", [0, 68 | 1 << 24], 64 | 1 << 24),
        ("c_nvmlGpmSupport_t", "nvmlGpmQueryDeviceSupport", [0, 8 | 1 << 24], 1),
    ],
)
def test_versioned_structures(simulate, structure: str, function: str, versions: list[int], accepted: int) -> None:
    codes = simulate("h100-sxm-80gb").ask(
        DIRECT
        + f"""
h = first()
value = n.{structure}()
codes = []
for version in {[*versions, accepted]}:
    value.version = version
    codes.append(library.{function}(h, ctypes.byref(value)))
tell(codes)
"""
    )
    assert codes == [25] * len(versions) + [0]


def test_old_structures_are_not_written_beyond_their_end(simulate) -> None:
    """The unsuffixed and second forms of the PCI information are shorter than the third."""
    assert (
        simulate("t4").ask(
            DIRECT
            + """
h = first()
untouched = []
for name, size in (("nvmlDeviceGetPciInfo", 52), ("nvmlDeviceGetPciInfo_v2", 52), ("nvmlDeviceGetPciInfo_v3", 68),
                   ("nvmlDeviceGetGpuFabricInfo", 28), ("nvmlDeviceGetMemoryInfo", 24)):
    room = ctypes.create_string_buffer(b"\\xa5" * 128, 128)
    assert getattr(library, name)(h, room) == 0
    untouched.append(room.raw[size:] == b"\\xa5" * (128 - size) and room.raw[:size] != b"\\xa5" * size)
tell(untouched)
"""
        )
        == [True] * 5
    )


def test_texts_that_do_not_fit_and_arguments_that_are_not_there(simulate) -> None:
    assert simulate("t4").ask(
        DIRECT
        + """
h = first()
room = ctypes.create_string_buffer(96)
tell([library.nvmlDeviceGetName(h, room, 8), library.nvmlDeviceGetName(h, room, 9), room.value.decode(),
      library.nvmlDeviceGetName(h, None, 96), library.nvmlDeviceGetName(None, room, 96),
      library.nvmlDeviceGetName(ctypes.c_void_p(4096), room, 96), library.nvmlDeviceGetMinorNumber(h, None),
      library.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)),
      library.nvmlDeviceGetHandleByUUID(b"GPU-x", ctypes.byref(handle)),
      library.nvmlDeviceGetHandleByPciBusId_v2(b"nonsense", ctypes.byref(handle)),
      library.nvmlDeviceGetHandleByPciBusId_v2(b"1e:00.0", ctypes.byref(handle)),
      library.nvmlDeviceGetHandleByPciBusId_v2(b"0000:1E:00.0", ctypes.byref(handle)),
      library.nvmlDeviceGetHandleByPciBusId_v2(b"00000000:1e:00", ctypes.byref(handle)),
      library.nvmlDeviceGetHandleByPciBusId_v2(b"0000:1e:00.1", ctypes.byref(handle))])
"""
    ) == [7, 0, "Tesla T4", 2, 2, 2, 2, 2, 6, 2, 0, 0, 0, 2]


def test_every_code_has_words(simulate) -> None:
    words = simulate("t4").ask(
        DIRECT + "tell([library.nvmlErrorString(code).decode() for code in [*range(31), 999, -1, 31]])"
    )
    assert len(set(words[:31])) == 31
    assert set(words[31:]) == {"unknown error"}


def test_without_a_machine_there_is_no_driver(simulate, tmp_path) -> None:
    simulation = simulate("t4")
    program = DIRECT + "tell(library.nvmlInit_v2())"
    assert simulation.ask(program) == 0
    assert simulation.ask(program, SIM_MACHINE=str(tmp_path / "none")) == 9
    assert simulation.ask(program, SIM_MACHINE="") == 9
    assert simulation.ask(program, SIM_MACHINE=str(tmp_path)) == 9


@pytest.mark.parametrize("damage", ["empty", "half", "version", "magic", "unfinished"])
def test_a_damaged_machine_is_no_driver(simulate, tmp_path, damage: str) -> None:
    simulation = simulate("t4")
    content = bytearray(simulation.path.read_bytes()[:4096])
    size = simulation.path.stat().st_size
    simulation.path.unlink()
    if damage == "version":
        content[8] += 1
    elif damage == "magic":
        content[0] ^= 0xFF
    elif damage == "unfinished":
        content[12:16] = bytes(4)
    broken = tmp_path / "broken"
    with broken.open("wb") as file:
        file.write(content)
        file.truncate({"empty": 0, "half": size // 2}.get(damage, size))
    assert simulation.ask(DIRECT + "tell(library.nvmlInit_v2())", SIM_MACHINE=str(broken)) == 9


def test_setting_modes(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    answers = simulation.ask("""
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(1)
        before = n.nvmlDeviceGetComputeMode(h)
        n.nvmlDeviceSetComputeMode(h, 3)
        n.nvmlDeviceSetPowerManagementLimit(h, 500000)
        try:
            n.nvmlDeviceSetPowerManagementLimit(h, 800000)
        except n.NVMLError as error:
            refused = error.value
        tell([before, n.nvmlDeviceGetComputeMode(h), n.nvmlDeviceGetEnforcedPowerLimit(h), refused,
              n.nvmlDeviceGetComputeMode(n.nvmlDeviceGetHandleByIndex(0))])
    """)
    assert answers == [0, 3, 500_000, 2, 0]
