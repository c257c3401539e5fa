"""MIG through nvidia-ml-py: mode, profiles, places, creation and destruction, MIG devices."""

from __future__ import annotations

import pytest

from hypervisor.simulation.faults import parse_fault_text

LAID_OUT = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus: [{count: 2, profile: h100-sxm-80gb}]
mig: {gpu0: {mode: on, instances: [3g.40gb, {profile: 2g.20gb, compute: [1, 1]}, 1g.10gb]}, gpu1: {mode: on}}
"""

MIG = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def plain(value):
    return value.value if isinstance(value, ctypes.c_uint) else value
def tell(value):
    print(json.dumps(value, default=plain), flush=True)
def code(function, *arguments):
    try:
        return plain(function(*arguments))
    except n.NVMLError as error:
        return f"error {error.value}"
def info(profile):
    return n.nvmlDeviceGetGpuInstanceProfileInfo(h, profile, version=2)
def create(profile_id, start=None):
    if start is None:
        return n.nvmlDeviceCreateGpuInstance(h, profile_id)
    where = n.c_nvmlGpuInstancePlacement_t(start, 0)
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(h, profile_id, ctypes.byref(where))
def place(instance):
    found = n.nvmlGpuInstanceGetInfo(instance)
    return [found.id, found.profileId, found.placement.start, found.placement.size]
def devices(handle):
    found = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append((index, n.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
        except n.NVMLError_NotFound:
            pass
    return found
"""


def test_profiles_are_those_of_the_card(simulate) -> None:
    told = simulate("a100-sxm-80gb").ask(
        MIG
        + """
found = []
for profile in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
    one = code(info, profile)
    if isinstance(one, str):
        assert one == "error 3", one
        continue
    places = (n.c_nvmlGpuInstancePlacement_t * 8)()
    count = ctypes.c_uint(8)
    n.nvmlDeviceGetGpuInstancePossiblePlacements(h, one.id, places, ctypes.byref(count))
    found.append([profile, one.name, one.id, one.sliceCount, one.instanceCount, one.multiprocessorCount,
                  one.memorySizeMB, [places[at].start for at in range(count.value)], places[0].size])
tell([found, code(info, 18)])
"""
    )
    assert told == [
        [
            [0, "MIG 1g.10gb", 19, 1, 7, 14, 9728, [0, 1, 2, 3, 4, 5, 6], 1],
            [1, "MIG 2g.20gb", 14, 2, 3, 28, 19968, [0, 2, 4], 2],
            [2, "MIG 3g.40gb", 9, 3, 2, 42, 40192, [0, 4], 4],
            [3, "MIG 4g.40gb", 5, 4, 1, 56, 40192, [0], 4],
            [4, "MIG 7g.80gb", 0, 7, 1, 98, 80640, [0], 8],
            [7, "MIG 1g.10gb+me", 20, 1, 1, 14, 9728, [0, 1, 2, 3, 4, 5, 6], 1],
            [9, "MIG 1g.20gb", 15, 1, 4, 14, 19968, [0, 2, 4, 6], 2],
        ],
        "error 2",
    ]


def test_a_card_without_mig_says_so(simulate) -> None:
    assert simulate("t4").ask(
        MIG
        + """
tell([code(n.nvmlDeviceGetMigMode, h), code(n.nvmlDeviceSetMigMode, h, 1), code(info, 0), code(create, 19),
      n.nvmlDeviceGetMaxMigDeviceCount(h), code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0)])
"""
    ) == ["error 3"] * 4 + [0, "error 3"]


def test_from_the_mode_to_a_device_and_back(simulate) -> None:
    simulation = simulate("h100-sxm-80gb")
    told = simulation.ask(
        MIG
        + """
out = {"off": [n.nvmlDeviceGetMigMode(h), code(create, 9), code(n.nvmlDeviceGetGpuInstanceRemainingCapacity, h, 9)]}
out["activation"] = plain(n.nvmlDeviceSetMigMode(h, 1))
out["on"] = [n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetGpuInstanceRemainingCapacity(h, 9), devices(h)]
out["hidden"] = [code(n.nvmlDeviceGetUtilizationRates, h), code(n.nvmlDeviceGetRemappedRows, h)]
instance = create(9)
out["instance"] = place(instance)
out["no compute yet"] = len(devices(h))
compute = n.nvmlGpuInstanceCreateComputeInstance(instance, 2)
(index, device), = devices(h)
out["device"] = [index, n.nvmlDeviceGetName(device), n.nvmlDeviceIsMigDeviceHandle(device),
                 n.nvmlDeviceIsMigDeviceHandle(h), n.nvmlDeviceGetGpuInstanceId(device),
                 n.nvmlDeviceGetComputeInstanceId(device)]
attributes = n.nvmlDeviceGetAttributes(device)
out["attributes"] = [attributes.multiprocessorCount, attributes.gpuInstanceSliceCount,
                     attributes.computeInstanceSliceCount, attributes.memorySizeMB]
uuid = n.nvmlDeviceGetUUID(device)
parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
old = f"MIG-{n.nvmlDeviceGetUUID(h)}/{out['instance'][0]}/0"
out["lookup"] = [uuid[:4], n.nvmlDeviceGetUUID(parent) == n.nvmlDeviceGetUUID(h),
                 n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(uuid)) == uuid,
                 n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(old)) == uuid,
                 code(n.nvmlDeviceGetHandleByUUID, "MIG-" + n.nvmlDeviceGetUUID(h)[4:])]
out["not for devices"] = [code(n.nvmlDeviceGetPowerUsage, device), code(n.nvmlDeviceGetMigMode, device)]
out["in use"] = code(n.nvmlGpuInstanceDestroy, instance)
n.nvmlComputeInstanceDestroy(compute)
out["stale"] = [code(n.nvmlDeviceGetUUID, device), code(n.nvmlComputeInstanceDestroy, compute)]
n.nvmlGpuInstanceDestroy(instance)
out["gone"] = [code(n.nvmlGpuInstanceDestroy, instance), devices(h)]
again = create(9)
n.nvmlGpuInstanceCreateComputeInstance(again, 2)
out["same uuid"] = n.nvmlDeviceGetUUID(devices(h)[0][1]) == uuid
out["disabled"] = [plain(n.nvmlDeviceSetMigMode(h, 0)), n.nvmlDeviceGetMigMode(h),
                   code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0)]
tell(out)
"""
    )
    assert told == {
        "off": [[0, 0], "error 3", 0],
        "activation": 0,
        "on": [[1, 1], 2, []],
        "hidden": ["error 3", "error 3"],
        "instance": [1, 9, 0, 4],
        "no compute yet": 0,
        "device": [0, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 1, 0, 1, 0],
        "attributes": [60, 3, 3, 40448],
        "lookup": ["MIG-", True, True, True, "error 6"],
        "not for devices": ["error 3", "error 3"],
        "in use": "error 19",
        "stale": ["error 2", "error 2"],
        "gone": ["error 2", []],
        "same uuid": True,
        "disabled": [0, [0, 0], "error 6"],
    }


def test_fragmentation_and_explicit_places(simulate) -> None:
    """A small instance in the wrong place blocks a large one that would fit by size."""
    told = simulate(
        LAID_OUT.replace("instances: [3g.40gb, {profile: 2g.20gb, compute: [1, 1]}, 1g.10gb]", "instances: []")
    ).ask(
        MIG
        + """
def capacities():
    return [n.nvmlDeviceGetGpuInstanceRemainingCapacity(h, profile) for profile in (0, 5, 9, 14, 19, 20)]
out = [capacities()]
small = create(19, 2)
out += [place(small), capacities(), code(create, 5), code(create, 9, 0), code(create, 19, 2), code(create, 19, 7)]
large = create(9)
out += [place(large), code(create, 9), capacities()]
n.nvmlGpuInstanceDestroy(small)
out += [capacities(), place(create(14))]
tell(out)
"""
    )
    assert told == [
        [1, 1, 2, 3, 7, 1],
        [9, 19, 2, 1],
        [0, 0, 1, 2, 6, 1],
        "error 23",
        "error 23",
        "error 23",
        "error 2",
        [2, 9, 4, 4],
        "error 23",
        [0, 0, 0, 1, 3, 1],
        [0, 1, 1, 2, 4, 1],
        [3, 14, 0, 2],
    ]


def test_a_layout_from_the_description(simulate) -> None:
    simulation = simulate(LAID_OUT)
    told = simulation.ask(
        MIG
        + """
tell([[n.nvmlDeviceGetName(device)[22:], n.nvmlDeviceGetGpuInstanceId(device), n.nvmlDeviceGetComputeInstanceId(device),
       n.nvmlDeviceGetAttributes(device).multiprocessorCount, n.nvmlDeviceGetMemoryInfo(device).total >> 20]
      for _, device in devices(h)])
"""
    )
    assert told == [
        ["MIG 3g.40gb", 1, 0, 60, 40448],
        ["MIG 1c.2g.20gb", 5, 0, 16, 20096],
        ["MIG 1c.2g.20gb", 5, 1, 16, 20096],
        ["MIG 1g.10gb", 13, 0, 16, 9984],
    ]
    shown = simulation.show()["gpus"][0]["mig"]
    assert shown["mode"] is True
    assert [(one["profile"], one["start"], len(one["compute"])) for one in shown["instances"]] == [
        ("3g.40gb", 0, 1),
        ("2g.20gb", 4, 2),
        ("1g.10gb", 6, 1),
    ]


def test_compute_instances_divide_their_gpu_instance(simulate) -> None:
    told = simulate(LAID_OUT).ask(
        MIG
        + """
h = n.nvmlDeviceGetHandleByIndex(1)
instance = create(5)  # 4g
def left(profile):
    return code(n.nvmlGpuInstanceGetComputeInstanceRemainingCapacity, instance, profile)
def profile(which):
    one = code(n.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, which, 0, 2)
    return one if isinstance(one, str) else [one.name, one.sliceCount, one.instanceCount, one.multiprocessorCount]
out = [[profile(which) for which in range(5)], [left(which) for which in range(4)]]
part = n.nvmlGpuInstanceCreateComputeInstance(instance, 1)
out += [[left(which) for which in range(4)], code(n.nvmlGpuInstanceCreateComputeInstance, instance, 3)]
ones = [n.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(2)]
out += [code(n.nvmlGpuInstanceCreateComputeInstance, instance, 0)]
out += [[n.nvmlComputeInstanceGetInfo(each).placement.start for each in [part, *ones]]]
tell(out)
"""
    )
    assert told == [
        [
            ["MIG 1c.4g.40gb", 1, 4, 16],
            ["MIG 2c.4g.40gb", 2, 2, 32],
            ["MIG 3c.4g.40gb", 3, 1, 48],
            ["MIG 4g.40gb", 4, 1, 64],
            "error 3",
        ],
        [4, 2, 1, 1],
        [2, 1, 0, 0],
        "error 23",
        "error 23",
        [0, 2, 3],
    ]


def test_changes_are_events(simulate) -> None:
    told = simulate(LAID_OUT).ask(
        MIG
        + """
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, 0x100 & n.nvmlDeviceGetSupportedEventTypes(h), events)
instance = n.nvmlDeviceGetGpuInstanceById(h, 13)
n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
event = n.nvmlEventSetWait_v2(events, 20000)
tell([event.eventType, event.gpuInstanceId, event.computeInstanceId])
"""
    )
    assert told == [0x100, 13, 0]


@pytest.mark.parametrize(("how", "left"), [("reset", []), ("xid=31", ["3g.40gb", "2g.20gb", "1g.10gb"])])
def test_instances_end_with_a_reset(simulate, how: str, left: list[str]) -> None:
    simulation = simulate(LAID_OUT)
    with simulation.opened() as machine:
        machine.add_fault(parse_fault_text(f"gpu=0,{how}", 2))
    mig = simulation.show()["gpus"][0]["mig"]
    assert mig["mode"] is True
    assert [one["profile"] for one in mig["instances"]] == left
