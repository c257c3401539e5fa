"""What is kept over a restart, and what the host's files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypervisor.gpu.health import machine, policy
from hypervisor.gpu.health.host import BusGpu, Host
from hypervisor.gpu.health.machine import CardHealth, Xid
from hypervisor.gpu.health.memory import HealthMemory
from hypervisor.model import HealthState


def boot(tmp_path: Path, boot_id: str) -> HealthMemory:
    file = tmp_path / "boot_id"
    file.write_text(f"{boot_id}\n")
    return HealthMemory(tmp_path / "health.json", boot_id_file=file)


def ill() -> CardHealth:
    return machine.on_xid(CardHealth(), Xid(number=79, at=5.0), policy.load())


def test_a_verdict_survives_a_restart_of_the_daemon_and_none_of_the_machine(tmp_path: Path) -> None:
    boot(tmp_path, "one").store({"GPU-0": (ill(), 5), "GPU-1": (CardHealth(), 6)}, 77)
    cards, sequence = boot(tmp_path, "one").load()
    assert sequence == 77
    assert cards == {"GPU-0": (ill(), 5)}
    assert boot(tmp_path, "two").load() == ({}, None)


def test_what_did_not_change_is_not_written(tmp_path: Path) -> None:
    memory = boot(tmp_path, "one")
    memory.store({"GPU-0": (CardHealth(), None)}, 1)
    file = tmp_path / "health.json"
    assert not file.exists()
    memory.store({"GPU-0": (ill(), None)}, 2)
    before = file.stat().st_ino
    memory.store({"GPU-0": (ill(), None)}, 3)
    assert file.stat().st_ino == before
    memory.store({"GPU-0": (CardHealth(), None)}, 4)
    assert boot(tmp_path, "one").load() == ({}, 4)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"version": 1}', b"\xff", b'{"version":9,"boot_id":"one","log_sequence":1,"cards":{}}']
)
def test_a_file_that_can_not_be_used_is_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "health.json").write_bytes(content)
    memory = boot(tmp_path, "one")
    assert memory.load() == ({}, None)
    memory.store({"GPU-0": (ill(), None)}, 1)
    assert boot(tmp_path, "one").load()[0]["GPU-0"][0].state is HealthState.UNHEALTHY


def test_a_disk_that_takes_nothing_is_told_and_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    file.write_text("one\n")
    memory = HealthMemory(tmp_path / "away" / "health.json", boot_id_file=file)
    memory.store({"GPU-0": (ill(), None)}, 1)
    assert "No such file" in memory.failure
    (tmp_path / "away").mkdir()
    memory.store({"GPU-0": (ill(), None)}, 1)
    assert memory.failure == ""


def test_a_binding_to_the_driver_is_another_one_each_time(tmp_path: Path) -> None:
    device(tmp_path, "0000:18:00.0", "0x10de", "0x030200", driver="nvidia")
    host = Host(tmp_path)
    first = host.binding("0000:18:00.0")
    assert first is not None
    assert host.binding("0000:18:00.0") == first
    link = tmp_path / "sys/bus/pci/devices/0000:18:00.0/driver"
    link.with_name("new").symlink_to(link.readlink())
    link.with_name("new").replace(link)
    assert host.binding("0000:18:00.0") not in (None, first)
    link.unlink()
    assert host.binding("0000:18:00.0") is None


def device(root: Path, address: str, vendor: str, kind: str, driver: str = "") -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def test_gpus_on_the_bus_are_the_vendor_s_controllers(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.gpus_on_bus() is None
    device(tmp_path, "0000:18:00.0", "0x10de", "0x030200", "nvidia")
    device(tmp_path, "0000:2a:00.0", "0x10de", "0x030000", "vfio-pci")
    device(tmp_path, "0000:05:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    device(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "i915")
    device(tmp_path, "0000:99:00.0", "0x10de", "0x030200")
    assert host.gpus_on_bus() == (
        BusGpu("0000:18:00.0", "nvidia"),
        BusGpu("0000:2a:00.0", "vfio-pci"),
        BusGpu("0000:99:00.0", ""),
    )
    assert host.on_bus("0000:18:00.0")
    assert not host.on_bus("0000:77:00.0")


def test_device_nodes_and_the_toolkit(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.denied_nodes(0) == ("/dev/nvidiactl: it is missing", "/dev/nvidia0: it is missing")
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / "dev" / name).touch()
    assert host.denied_nodes(0) == ()
    assert host.missing_toolkit() is None
    folder = tmp_path / "run/nvidia/validations"
    folder.mkdir(parents=True)
    assert host.missing_toolkit() == folder / "toolkit-ready"
    (folder / "toolkit-ready").touch()
    assert host.missing_toolkit() is None
    assert host.module_version() == ""
