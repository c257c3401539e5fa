"""The daemon as a process: starts, serves, reloads, stops, and says in one line why it can't."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls


def ends_with_one_line(daemon: DaemonProcess, *words: str, status: int = 1) -> str:
    """The daemon ends by itself, and the last line on stderr says why."""
    assert daemon.process is not None
    assert daemon.process.wait(30) == status
    text = daemon.log_path.read_text()
    assert "Traceback" not in text
    last = text.splitlines()[-1]
    for word in words:
        assert word in last
    return last


def test_eight_gpus_are_published_with_their_figures(shared_daemon: DaemonProcess) -> None:
    gpus = calls.list_gpus(shared_daemon)
    assert [gpu.index for gpu in gpus] == list(range(8))
    for gpu in gpus:
        assert gpu.model == "NVIDIA H100 80GB HBM3"
        assert gpu.capacity.tflops.value == 989.0
        assert gpu.capacity.vram.bytes > 79 * 2**30
        assert gpu.simulated
        assert gpu.allocatable
        assert gpu.topology.HasField("numa_node")
        assert {link.peer_uuid for link in gpu.topology.links if link.nvlink_count} == {
            other.uuid for other in gpus if other.uuid != gpu.uuid
        }
    devices = shared_daemon.get_json("/api/v1/devices")["data"]
    assert [device["UUID"] for device in devices] == [gpu.uuid for gpu in gpus]


def simulator(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "hypervisor", "sim", *arguments], check=True, capture_output=True)


def machine_with(daemon: DaemonProcess, fault: str) -> tuple[str, str]:
    """The flags for a machine of eight H100 with a fault from the start."""
    machine = str(daemon.directory / "machine")
    simulator("create", "h100-sxm-80gb", "--machine", machine)
    simulator("fault", "--machine", machine, fault)
    return ("--simulate", machine)


def test_adopted_limits_and_sockets_serve_before_the_driver_has_answered(make_daemon) -> None:
    daemon = make_daemon().start().wait_ready()
    calls.allocate(daemon, "adopted", vram_bytes=2**30, percent="10")
    daemon.kill()
    daemon.flags = machine_with(daemon, "call=nvmlInit*,delay=4s")
    daemon.start().wait_serving()
    (reason,) = daemon.get_json("/readyz")["reasons"]
    assert reason["code"] == "Starting"
    assert daemon.get("/readyz")[0] == 503
    assert daemon.get("/healthz")[0] == 200
    assert [each.spec.allocation_id for each in calls.list_allocations(daemon)] == ["adopted"]
    with pytest.raises(calls.Refused) as refused:
        calls.allocate(daemon, "early", vram_bytes=2**30, percent="10")
    assert refused.value.reason == "NOT_READY"
    daemon.wait_ready()
    assert len(calls.list_gpus(daemon)) == 8


def test_a_driver_that_hangs_holds_up_neither_the_sockets_nor_the_stop(make_daemon) -> None:
    daemon = make_daemon()
    daemon.flags = (
        *machine_with(daemon, "call=nvmlDeviceGetUtilizationRates,hang=forever"),
        *("--reading-timeout-seconds", "1"),
    )
    daemon.start().wait_serving()

    def hangs() -> float:
        lines = daemon.get("/metrics")[1].splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith("gpuhv_gpu_reader_hangs_total ")), 0)

    wait_until(lambda: hangs() >= 1, "the hang to be noticed")
    assert daemon.get("/healthz")[0] == 200
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_time_and_with_open_streams(daemon: DaemonProcess, number: signal.Signals) -> None:
    with calls.watching(daemon) as watch:
        began = time.monotonic()
        daemon.signal(number)
        assert daemon.process is not None
        assert daemon.process.wait(10) == 0
        assert time.monotonic() - began < 5
        told = [condition.reason for message in watch for condition in message.delta.node.conditions]
        assert "Stopping" in told
    assert "Traceback" not in daemon.log_path.read_text()
    assert not (daemon.directory / "read.sock").exists()


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(daemon: DaemonProcess, make_daemon) -> None:
    second = make_daemon(directory=daemon.directory)
    second._starts = 10  # its own log file
    second.start()
    line = ends_with_one_line(second, "state directory", f"process {daemon.pid}", "--state-dir")
    assert line.startswith("hypervisor: ")
    assert daemon.get("/readyz")[0] == 200


def test_a_second_daemon_on_the_same_limit_files_is_refused(daemon: DaemonProcess, make_daemon) -> None:
    other = make_daemon()
    other.base_directory = daemon.base_directory
    other.start()
    ends_with_one_line(other, "base directory", f"process {daemon.pid}", "--base-dir")


def test_a_taken_http_port_names_its_holder(make_daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        daemon = make_daemon("--http-port", str(port)).start()
        ends_with_one_line(daemon, f"127.0.0.1:{port}", f"process {os.getpid()}", "--http-port")


@pytest.mark.parametrize("name", ["state", "base"])
def test_a_directory_that_can_not_be_used_is_named(make_daemon, name: str) -> None:
    daemon = make_daemon()
    (daemon.directory / name).write_text("a file")
    daemon.start()
    ends_with_one_line(daemon, f"{name} directory", str(daemon.directory / name))


def test_no_permission_on_the_base_directory_is_said(make_daemon) -> None:
    daemon = make_daemon()
    # Not even root may make a directory here.
    daemon.base_directory = Path("/sys/hypervisor-test")
    daemon.start()
    ends_with_one_line(daemon, "base directory /sys/hypervisor-test", "--base-dir")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--http-port", "70000"), ("http_port",)),
        (("--simulate", "no-such-profile"), ("no-such-profile", "h100-sxm-80gb")),
        (("--config", "/nonexistent.toml"), ("/nonexistent.toml",)),
        (("--listen", "127.0.0.1:0"), ("insecure",)),
    ],
)
def test_wrong_settings_are_refused_in_one_line(make_daemon, flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    daemon = make_daemon(*flags).start()
    assert daemon.process is not None
    assert daemon.process.wait(30) in {1, 2}
    lines = daemon.log_path.read_text().splitlines()
    assert "Traceback" not in "\n".join(lines)
    for word in words:
        assert word in lines[-1]


def test_damaged_state_is_set_aside_and_told(make_daemon) -> None:
    daemon = make_daemon().start().wait_ready()
    calls.allocate(daemon, "kept", vram_bytes=2**30, percent="10")
    before = [(each.uid, each.created_at, each.revision) for each in calls.list_allocations(daemon)]
    uuids = [gpu.uuid for gpu in calls.list_gpus(daemon)]
    epoch = calls.list_gpus(daemon)[0].revision.epoch
    daemon.kill()
    for name in ("node.json", "revision"):
        (daemon.state_directory / name).write_text("{")
    daemon.start().wait_ready()
    assert [(each.uid, each.created_at, each.revision) for each in calls.list_allocations(daemon)] == before
    assert [gpu.uuid for gpu in calls.list_gpus(daemon)] == uuids
    assert calls.list_gpus(daemon)[0].revision.epoch > epoch
    assert 'condition="StateDamaged"' in daemon.get("/metrics")[1]
    told = [event.message for event in calls.list_events(daemon) if event.reason == "StateSetAside"]
    assert any("node.json" in message for message in told)
    assert any("revision" in message for message in told)
    for name in ("node.json", "revision"):
        assert (daemon.state_directory / f"{name}.damaged").read_text() == "{"


def test_without_a_driver_it_runs_and_says_what_to_do(make_daemon, tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    daemon = make_daemon(simulate="").start()
    daemon.wait_serving()

    def reasons():
        status, _ = daemon.get("/readyz")
        found = daemon.get_json("/readyz")["reasons"]
        return found if status == 503 and found and found[0]["code"] != "Starting" else None

    (reason, *_) = wait_until(reasons, "the driver's absence to be told")
    assert reason["code"] in {"DriverNotLoaded", "NvmlNotFound"}
    assert "--simulate" in reason["message"]
    assert calls.list_gpus(daemon) == []
    listed = daemon.cli("get", "gpus")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert listed.stderr == f"no gpus: {reason['code']}: {reason['message']}\n"
    lines = [line for line in daemon.log() if line["event"] == "condition" and line["condition"] == reason["code"]]
    assert [(line["level"], line["code"]) for line in lines] == [("warning", reason["code"])]
    assert "gpuhv_gpus 0.0" in daemon.get("/metrics")[1]
    assert daemon.get("/healthz")[0] == 200
    assert daemon.stop() == 0


def test_reload_takes_what_it_may_and_keeps_the_old_set_when_the_new_one_is_wrong(make_daemon, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("vram_ratio = 1.0\n")
    daemon = make_daemon("--config", str(file)).start().wait_ready()

    def hup(text: str, event: str) -> dict:
        file.write_text(text)
        before = len(daemon.log())
        daemon.signal(signal.SIGHUP)
        return wait_until(
            lambda: next((line for line in daemon.log()[before:] if line.get("event") == event), None), event
        )

    line = hup('vram_ratio = 2.0\nnode_name = "other"\n', "settings were read again")
    assert line["changed"] == ["vram_ratio"]
    assert line["need_restart"] == ["node_name"]
    wait_until(lambda: calls.list_gpus(daemon)[0].capacity.vram_ratio == 2.0, "the new ratio")
    line = hup("vram_ratio = -1\n", "the old settings are kept")
    assert "vram_ratio" in line["reason"]
    hup("vram_ratio = [\n", "the old settings are kept")
    assert calls.list_gpus(daemon)[0].capacity.vram_ratio == 2.0
    assert daemon.get("/readyz")[0] == 200
    reasons = [event.reason for event in calls.list_events(daemon)]
    assert reasons.count("SettingsReloaded") == 1
    assert "SettingsRejected" in reasons


def test_systemd_is_told_of_readiness_reload_watchdog_and_stop(make_daemon, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"hypervisor-test-{os.getpid()}"
        receiver.bind("\0" + name)
        receiver.settimeout(30)
        # WATCHDOG_PID is left out: the pid is not known before the start.
        daemon = make_daemon(environment={"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "2000000"}).start()

        def receive_until(start: str) -> str:
            while True:
                message = receiver.recv(4096).decode()
                if message.startswith(start):
                    return message

        assert "STATUS=" in receive_until("READY=1")
        receive_until("WATCHDOG=1")
        daemon.wait_serving()
        daemon.signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in receive_until("RELOADING=1")
        receive_until("READY=1")
        assert daemon.stop() == 0
        receive_until("STOPPING=1")


def test_metrics_are_served_and_consistent_with_the_api(shared_daemon: DaemonProcess) -> None:
    calls.allocate(shared_daemon, "pod-a", vram_bytes=8 * 2**30, percent="25")
    assert shared_daemon.get("/metrics")[0] == 200

    def series() -> dict:
        page = shared_daemon.get("/metrics")[1]
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    def limits() -> list[float]:
        return [value for (name, _), value in series().items() if name == "gpuhv_pod_gpu_memory_limit_bytes"]

    wait_until(lambda: limits() == [8 * 2**30], "the allocation's series")
    found = series()
    success = {
        dict(labels)["collector"]: value for (name, labels), value in found.items() if name == "gpuhv_collector_success"
    }
    assert set(success.values()) == {1.0}, success
    assert found["gpuhv_gpus", ()] == 8
    assert sum(value for (name, _), value in found.items() if name == "gpuhv_allocated_memory_bytes") == 8 * 2**30
    assert any(name == "gpuhv_nvml_calls_total" for name, _ in found)
    assert any(name == "process_resident_memory_bytes" for name, _ in found)
    strict = shared_daemon.get("/metrics", {"Accept": "application/openmetrics-text"})[1]
    families = [family.name for family in parse_openmetrics(strict)]
    assert len(set(families)) == len(families)
    calls.release(shared_daemon, "pod-a")
    wait_until(lambda: limits() == [], "the allocation's series to go")


def test_refusals_are_counted_and_become_events(shared_daemon: DaemonProcess) -> None:
    with pytest.raises(calls.Refused) as refused:
        calls.allocate(shared_daemon, "too-much", vram_bytes=200 * 2**30, percent="25")
    assert refused.value.reason
    wait_until(
        lambda: (
            f'gpuhv_allocation_failures_total{{reason="{refused.value.reason}"}} 1.0'
            in shared_daemon.get("/metrics")[1]
        ),
        "the count",
    )
    (event,) = [event for event in calls.list_events(shared_daemon) if event.reason == "AllocationRefused"]
    assert event.regarding.name == "too-much"
    assert dict(event.fields)["refusal"] == refused.value.reason


def test_page_for_people(shared_daemon: DaemonProcess) -> None:
    calls.allocate(shared_daemon, "for-people", vram_bytes=2**30, percent="10")
    status, page = shared_daemon.get("/")
    assert status == 200
    assert page.count("NVIDIA H100 80GB HBM3") == 8
    assert "for-people" in page
    calls.release(shared_daemon, "for-people")


def test_help_lists_every_setting() -> None:
    done = subprocess.run([sys.executable, "-m", "hypervisor", "run", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for flag in ("--simulate", "--listen", "--http-port", "--base-dir", "--state-dir", "--report-to", "--config"):
        assert flag in done.stdout


def test_people_at_a_terminal_get_the_addresses_in_one_line(make_daemon) -> None:
    controller, terminal = pty.openpty()
    daemon = make_daemon()
    command = [
        *(sys.executable, "-m", "hypervisor", "run", "--simulate", "t4", "--http-port", "0"),
        *("--state-dir", str(daemon.state_directory), "--base-dir", str(daemon.base_directory)),
        *("--listen", daemon.read_address, "--admin-listen", daemon.admin_address),
        *("--owner-listen", daemon.owner_address),
    ]
    with subprocess.Popen(command, stderr=terminal, stdin=subprocess.DEVNULL) as process:
        os.close(terminal)
        text = ""
        while "hypervisor serves" not in text or not text.endswith("\n"):
            text += os.read(controller, 4096).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        os.close(controller)
    (line,) = [line for line in text.splitlines() if line.startswith("hypervisor serves")]
    assert daemon.read_address in line
    assert "http://127.0.0.1:" in line
    assert "simulated machine" in line
    assert not any(line.startswith("{") for line in text.splitlines())
