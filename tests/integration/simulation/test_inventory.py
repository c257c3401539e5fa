"""nvidia-ml-py on the simulated driver: what there is, and how it hangs together."""

from __future__ import annotations

import subprocess

import pytest

from hypervisor.simulation.environment import library_folder

INVENTORY = """
n.nvmlInit()
out = []
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    memory = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    old = n.nvmlDeviceGetMemoryInfo(h)
    pci = n.nvmlDeviceGetPciInfo(h)
    out.append({
        "index": n.nvmlDeviceGetIndex(h), "minor": n.nvmlDeviceGetMinorNumber(h),
        "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h), "serial": n.nvmlDeviceGetSerial(h),
        "bus": pci.busId, "bus_legacy": pci.busIdLegacy, "device_id": pci.pciDeviceId,
        "total": memory.total, "free": memory.free, "used": memory.used, "reserved": memory.reserved,
        "old": [old.total, old.free, old.used],
        "cores": n.nvmlDeviceGetNumGpuCores(h), "cc": list(n.nvmlDeviceGetCudaComputeCapability(h)),
        "architecture": n.nvmlDeviceGetArchitecture(h),
        "numa": n.nvmlDeviceGetMemoryAffinity(h, 1, n.NVML_AFFINITY_SCOPE_NODE)[0],
        "cpus": list(n.nvmlDeviceGetCpuAffinityWithinScope(h, 4, n.NVML_AFFINITY_SCOPE_SOCKET)),
        "max_sm_clock": n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
        "power_limits": n.nvmlDeviceGetPowerManagementLimitConstraints(h),
        "pcie": [n.nvmlDeviceGetMaxPcieLinkGeneration(h), n.nvmlDeviceGetCurrPcieLinkWidth(h)],
        "mig": n.nvmlDeviceGetMigMode(h), "ecc": n.nvmlDeviceGetEccMode(h),
        "same_by_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))),
        "same_by_bus": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy.lower())),
        "same_by_serial": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h))),
    })
tell([n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(), n.nvmlSystemGetCudaDriverVersion_v2(), out])
"""


def test_the_eight_gpus_of_an_h100_machine(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    driver, nvml, cuda, gpus = simulation.ask(INVENTORY)
    assert (driver, nvml, cuda) == ("580.65.06", "13.580.65.06", 13000)
    shown = simulation.show()["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == [gpu["uuid"] for gpu in shown]
    assert len({gpu["uuid"] for gpu in gpus}) == len({gpu["serial"] for gpu in gpus}) == 8
    buses = ["18", "2A", "3A", "5D", "9A", "AB", "BA", "DB"]
    assert [gpu["bus"] for gpu in gpus] == [f"00000000:{bus}:00.0" for bus in buses]
    for index, gpu in enumerate(gpus):
        assert gpu["index"] == gpu["minor"] == index
        assert gpu["same_by_uuid"] == gpu["same_by_bus"] == gpu["same_by_serial"] == index
        assert gpu["name"] == "NVIDIA H100 80GB HBM3"
        assert gpu["bus_legacy"] == f"0000:{buses[index]}:00.0"
        assert gpu["device_id"] == 0x233010DE
        assert gpu["total"] == 81559 << 20
        assert gpu["used"] == 0
        assert gpu["free"] + gpu["reserved"] == gpu["total"]
        assert gpu["old"] == [gpu["total"], gpu["free"], gpu["reserved"]]
        assert (gpu["cores"], gpu["cc"], gpu["architecture"]) == (132 * 128, [9, 0], 9)
        assert gpu["numa"] == (1 if index < 4 else 2)
        cpus = sum(word << 64 * at for at, word in enumerate(gpu["cpus"]))
        assert cpus == ((1 << 56) - 1) << (0 if index < 4 else 56)
        assert gpu["max_sm_clock"] == 1980
        assert gpu["power_limits"] == [200_000, 700_000]
        assert gpu["pcie"] == [5, 16]
        assert (gpu["mig"], gpu["ecc"]) == ([0, 0], [1, 1])


def test_topology_and_links_of_an_h100_machine(simulate) -> None:
    ancestors, p2p, links, fields, fabric, near = simulate("h100-sxm-80gb").ask("""
        n.nvmlInit()
        hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(8)]
        links = []
        for link in range(18):
            pci = n.nvmlDeviceGetNvLinkRemotePciInfo(hs[3], link)
            links.append([n.nvmlDeviceGetNvLinkState(hs[3], link), n.nvmlDeviceGetNvLinkVersion(hs[3], link),
                          n.nvmlDeviceGetNvLinkCapability(hs[3], link, n.NVML_NVLINK_CAP_P2P_SUPPORTED),
                          n.nvmlDeviceGetNvLinkRemoteDeviceType(hs[3], link), pci.busId])
        values = n.nvmlDeviceGetFieldValues(hs[3], [n.NVML_FI_DEV_NVLINK_LINK_COUNT,
            n.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT, n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
            n.NVML_FI_DEV_MEMORY_TEMP, (n.NVML_FI_DEV_NVLINK_GET_STATE, 17),
            (n.NVML_FI_DEV_NVLINK_GET_STATE, 18), 9999])
        fabric = n.c_nvmlGpuFabricInfo_v3_t()
        fabric.version = n.nvmlGpuFabricInfo_v3
        n.nvmlDeviceGetGpuFabricInfoV(hs[3], ctypes.byref(fabric))
        tell([[[n.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in hs] for a in hs],
              [[[n.nvmlDeviceGetP2PStatus(a, b, c) for b in hs] for a in hs] for c in range(5)],
              links, [[v.nvmlReturn, v.value.uiVal] for v in values],
              [fabric.state, fabric.status, fabric.healthSummary],
              sorted(n.nvmlDeviceGetIndex(h) for h in n.nvmlDeviceGetTopologyNearestGpus(hs[5], n.NVML_TOPOLOGY_NODE))])
    """)
    assert ancestors[0] == [0, 40, 40, 40, 50, 50, 50, 50]
    assert ancestors[6] == [50, 50, 50, 50, 40, 40, 0, 40]
    assert {status for matrix in p2p for row in matrix for status in row} == {0}
    assert [link[:4] for link in links] == [[1, 6, 1, 2]] * 18
    assert {link[4] for link in links} == {f"00000000:0{bus}:00.0" for bus in (5, 6, 7, 8)}
    assert [value for code, value in fields if code == 0] == [18, 18, 0, 45, 1]
    assert [code for code, _ in fields] == [0, 0, 0, 0, 0, 2, 2]
    assert fabric == [3, 0, 1]
    assert near == [4, 6, 7]


def test_what_a_card_lacks_is_said_and_not_zero(simulate) -> None:
    answers = simulate("rtx4090").ask("""
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        def code(function, *arguments):
            try:
                function(*arguments)
            except n.NVMLError as error:
                return error.value
            return 0
        tell([code(n.nvmlDeviceGetSerial, h), code(n.nvmlDeviceGetNvLinkState, h, 0),
              code(n.nvmlDeviceGetNvLinkState, h, 36),
              code(n.nvmlDeviceGetEccMode, h), code(n.nvmlDeviceGetMigMode, h), code(n.nvmlDeviceGetNumaNodeId, h),
              code(n.nvmlDeviceGetFanSpeed, h), code(n.nvmlDeviceGetRemappedRows, h),
              code(n.nvmlDeviceGetTotalEccErrors, h, 1, 0),
              code(n.nvmlDeviceGetAttributes_v2, h), code(n.nvmlDeviceGetBoardPartNumber, h),
              n.nvmlDeviceGetFieldValues(h, [n.NVML_FI_DEV_MEMORY_TEMP])[0].nvmlReturn,
              n.nvmlDeviceGetFieldValues(h, [n.NVML_FI_DEV_NVLINK_LINK_COUNT])[0].value.uiVal])
    """)
    assert answers == [3, 3, 2, 3, 3, 3, 0, 3, 3, 3, 3, 3, 0]


def test_a_passively_cooled_card_has_no_fan(simulate) -> None:
    assert simulate("t4").ask("""
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        try:
            n.nvmlDeviceGetFanSpeed(h)
        except n.NVMLError as error:
            tell([n.nvmlDeviceGetNumFans(h), error.value])
    """) == [0, 3]


NEWEST = """\
version: 1
driver: {version: "615.10", cuda: 13040}
gpus: [{count: 1, profile: h100-sxm-80gb}]
"""


def test_every_name_that_nvidia_ml_py_asks_for_is_there(simulate) -> None:
    missing = simulate(NEWEST).ask("""
        import pathlib, re
        names = set(re.findall(r'_nvmlGetFunctionPointer\\("(\\w+)"', pathlib.Path(n.__file__).read_text()))
        library = ctypes.CDLL("libnvidia-ml.so.1")
        assert len(names) > 300
        tell(sorted(name for name in names if not hasattr(library, name)))
    """)
    assert missing == []


@pytest.mark.parametrize(
    ("driver", "absent", "there"),
    [
        ("535.104.05", "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetMemoryInfo_v2"),
        ("550.90.07", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetProcessesUtilizationInfo"),
        ("570.86", "nvmlDeviceGetAddressingMode", "nvmlDeviceGetProcessesUtilizationInfo"),
        ("580.65.06", "nvmlDeviceGetUnrepairableMemoryFlag_v1", "nvmlDeviceGetAddressingMode"),
        ("470.82.01", "nvmlDeviceGetProcessesUtilizationInfo", "nvmlInit_v2"),
        ("590.44.01", "nvmlDeviceNeverHeardOf", "nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    ],
)
def test_an_older_driver_lacks_what_came_later(simulate, driver: str, absent: str, there: str) -> None:
    """Names that are not there are FUNCTION_NOT_FOUND to nvidia-ml-py, one by one."""
    told = simulate(NEWEST.replace("615.10", driver)).ask(f"""
        library = ctypes.CDLL("libnvidia-ml.so.1")
        n.nvmlInit()
        try:
            n._nvmlGetFunctionPointer("{absent}")
        except n.NVMLError as error:
            names = [hasattr(library, "{absent}"), hasattr(library, "{there}")]
            tell([*names, error.value, n.nvmlSystemGetDriverVersion()])
    """)
    assert told == [False, True, 13, driver]


def test_the_library_exports_nothing_else() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library_folder() / "libnvidia-ml.so.1"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert [name for name in names if not name.startswith("nvml")] == []


def test_every_plain_reading_gives_a_value_or_a_code(simulate) -> None:
    """All functions of nvidia-ml-py that need no more than a handle, new ones included."""
    program = """
        import inspect
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        given, refused, odd = [], [], []
        prefixes = ("nvmlDeviceGet", "nvmlDeviceIs", "nvmlSystemGet")
        for name, function in sorted(vars(n).items()):
            if not (inspect.isfunction(function) and name.startswith(prefixes)):
                continue
            needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
            if needed not in ([], ["handle"], ["device"]):
                continue
            try:
                function(*[h][: len(needed)])
                given.append(name)
            except n.NVMLError as error:
                refused.append(name) if error.value == n.NVML_ERROR_NOT_SUPPORTED else odd.append([name, error.value])
            except Exception as error:
                odd.append([name, repr(error)])
        tell([given, refused, odd])
    """
    given, refused, odd = simulate(NEWEST).ask(program)
    assert odd == []
    assert {
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPciInfo",
    } <= set(given)
    assert len(given) >= 80
    assert set(refused) >= {"nvmlDeviceGetFanSpeed", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetEncoderStats"}
