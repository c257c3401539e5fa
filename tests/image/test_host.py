"""The package on a host whose systemd really runs: units, limits over stops and upgrades, the watchdog, removal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon_process import wait_until
from tests.image import roots
from tests.image.machine import NATIVE, SIMULATED_MACHINE, Machine, package

pytestmark = pytest.mark.image
UNITS = ("hypervisor.service", "hypervisor-aggregator.service", "hypervisor-inspection.service")
LIMIT = 0.30
# What docs/install-systemd.md states; lower is tighter.
EXPOSURE = {"hypervisor.service": 3.5, "hypervisor-aggregator.service": 1.5}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    roots.needs_root()
    work = tmp_path_factory.mktemp("host")
    machine = Machine(work, package(work))
    try:
        machine.install()
        machine.boot()
        yield machine
    finally:
        machine.close()


def gpus(host: Machine) -> list[Any]:
    done = host.run("hypervisor", "get", "gpus", "-o", "json", check=False)
    return list(json.loads(done.stdout)["items"]) if done.returncode == 0 and done.stdout else []


def ready(host: Machine) -> None:
    wait_until(lambda: len(gpus(host)) == 8, "eight GPUs", 60)


def pods(host: Machine) -> list[Any]:
    return list(json.loads(host.run("hypervisor", "get", "pods", "-o", "json").stdout)["items"])


@pytest.fixture(params=["ann", "root"])
def workload(host: Machine, request: pytest.FixtureRequest) -> Iterator[str]:
    """A program that wants a whole card and has 30 % of one, of an ordinary user or of root, as a unit of its own."""
    ready(host)
    unit = ["systemd-run", "--unit=workload", "--collect", f"--uid={request.param}"]
    on_machine = ["hypervisor", "sim", "run", "--machine", SIMULATED_MACHINE, "--"]
    limited = ["hypervisor", "exec", "--name", "job", "--compute", f"{LIMIT:.0%}", "--vram", "8Gi", "--"]
    host.run(*unit, *on_machine, *limited, f"/{NATIVE}/clients/load", "--kernel-us=2000", "--seconds=600")
    try:
        wait_until(lambda: limited_processes(host), "the workload under its limits", 60)
        yield "job"
    except AssertionError as error:
        log = host.run("journalctl", "-u", "workload", "-u", "hypervisor", "-n", "20", check=False).stdout
        raise AssertionError(f"{error}\n{log}") from None
    finally:
        host.run("systemctl", "stop", "workload", check=False)
        wait_until(lambda: not pods(host), "the end of the allocation", 60)


def limited_processes(host: Machine) -> list[int]:
    """Processes that the daemon sees under limits."""
    return [process["pid"] for pod in pods(host) for process in pod.get("processes", ())]


def busy_seconds(host: Machine) -> tuple[float, float]:
    """The simulator's own account: seconds since it began, and those in which programs' kernels ran."""
    done = host.run("hypervisor", "sim", "show", "-o", "json", "--machine", SIMULATED_MACHINE)
    shown = json.loads(done.stdout)
    busy = sum(usage["busy_ns"] for group in shown["groups"] for usage in group["gpus"].values())
    return shown["clock"]["now_ns"] / 1e9, busy / 1e9


def share_over(host: Machine, seconds: float) -> float:
    first_at, first = busy_seconds(host)
    wait_until(lambda: busy_seconds(host)[0] - first_at >= seconds, f"{seconds} s of the machine's time", 120)
    last_at, last = busy_seconds(host)
    return (last - first) / (last_at - first_at)


def test_the_units_are_well_formed_and_as_tight_as_is_said(host: Machine) -> None:
    for unit in UNITS:
        done = host.run("systemd-analyze", "verify", f"/usr/lib/systemd/system/{unit}", check=False)
        assert unit not in done.stderr, done.stderr
    for unit, most in EXPOSURE.items():
        done = host.run("systemd-analyze", "security", "--no-pager", unit, check=False)
        found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
        assert found, done.stdout
        assert float(found.group(1)) <= most


def test_it_runs_as_its_own_user_and_tells_systemd_how_it_is(host: Machine) -> None:
    ready(host)
    assert host.property("hypervisor", "ActiveState") == "active"
    assert host.property("hypervisor", "Type") == "notify"
    wait_until(lambda: "8 GPUs" in host.property("hypervisor", "StatusText"), "the status of a ready node", 60)
    pid = host.property("hypervisor", "MainPID")
    user = host.run("ps", "-o", "user=", "-p", pid).stdout.strip()
    assert user == "hypervisor"
    assert host.run("findmnt", "-n", "-o", "FSTYPE", "/run/tensor-fusion/shm").stdout.strip() == "tmpfs"
    assert host.run("systemctl", "is-enabled", "hypervisor-inspection.timer", check=False).returncode == 0


def test_the_unit_s_command_runs_by_hand_as_its_user(host: Machine) -> None:
    command = host.property("hypervisor", "ExecStart")
    found = re.search(r"argv\[\]=(.*?) ;", command)
    assert found, command
    place = "/tmp/by-hand"
    host.run("install", "-d", "-o", "hypervisor", place)
    flags = [
        *("--simulate", "h100-sxm-80gb", "--state-dir", f"{place}/state", "--base-dir", f"{place}/base"),
        *("--http-port", "0", "--listen", f"unix:{place}/r.sock", "--admin-listen", f"unix:{place}/a.sock"),
        *("--owner-listen", f"unix:{place}/o.sock"),
    ]
    user = host.property("hypervisor", "User")
    host.run("systemd-run", "--unit=by-hand", f"--uid={user}", "--collect", *found.group(1).split(), *flags)
    try:
        wait_until(
            lambda: (
                host.run("hypervisor", "get", "gpus", "--server", f"unix:{place}/r.sock", check=False).stdout.count(
                    "Healthy"
                )
                == 8
            ),
            "eight GPUs of the daemon that was started by hand",
            60,
        )
    finally:
        host.run("systemctl", "stop", "by-hand", check=False)


def test_a_stop_takes_no_limit_away_and_a_start_adopts_what_runs(host: Machine, workload: str) -> None:
    (before,) = pods(host)
    host.run("systemctl", "stop", "hypervisor")
    assert host.run("test", "-f", f"{before['directory']}/shm", check=False).returncode == 0
    assert share_over(host, 5.0) == pytest.approx(LIMIT, abs=0.03)
    host.run("systemctl", "start", "hypervisor")
    ready(host)
    (after,) = pods(host)
    assert after["uid"] == before["uid"]
    assert share_over(host, 5.0) == pytest.approx(LIMIT, abs=0.03)


def test_an_upgrade_under_a_running_workload_changes_nothing_for_it(host: Machine, workload: str) -> None:
    (before,) = pods(host)
    pid = host.property("hypervisor", "MainPID")
    host.run("dpkg", "-i", f"/root/{host.deb.name}", seconds=300)
    wait_until(lambda: host.property("hypervisor", "MainPID") not in ("0", pid), "the new daemon", 60)
    ready(host)
    (after,) = pods(host)
    assert after["uid"] == before["uid"]
    assert [each["pid"] for each in after["processes"]] == [each["pid"] for each in before["processes"]]
    assert share_over(host, 5.0) == pytest.approx(LIMIT, abs=0.03)


def test_a_daemon_that_hangs_is_made_anew_by_the_watchdog(host: Machine) -> None:
    ready(host)
    pid = host.property("hypervisor", "MainPID")
    host.run("kill", "-STOP", pid)
    wait_until(lambda: host.property("hypervisor", "MainPID") not in ("0", pid), "the watchdog", 90)
    ready(host)
    assert int(host.property("hypervisor", "NRestarts")) >= 1


def test_a_reload_reads_the_settings_again(host: Machine) -> None:
    ready(host)
    pid = host.property("hypervisor", "MainPID")
    host.run("sh", "-c", "echo 'vram_ratio = 1.5' >> /etc/hypervisor/hypervisor.toml && systemctl reload hypervisor")
    wait_until(lambda: all(each["capacity"]["vramRatio"] == 1.5 for each in gpus(host)), "the new ratio", 30)
    assert host.property("hypervisor", "MainPID") == pid


def test_the_daily_inspection_writes_its_report(host: Machine) -> None:
    ready(host)
    host.run("systemctl", "start", "hypervisor-inspection.service")
    assert "<html" in host.run("cat", "/var/lib/hypervisor-inspection/report.html").stdout.lower()


def test_the_aggregator_s_unit_collects_what_the_node_reports(host: Machine) -> None:
    ready(host)
    options = "AGGREGATOR_OPTIONS=--listen 127.0.0.1:50051 --insecure --allow-simulated"
    host.run("sh", "-c", f"echo '{options}' > /etc/hypervisor/aggregator.conf")
    host.run("systemctl", "start", "hypervisor-aggregator")
    drop_in = "/etc/systemd/system/hypervisor.service.d/report.conf"
    lines = r"[Service]\nEnvironment=HYPERVISOR_REPORT_TO=127.0.0.1:50051 HYPERVISOR_INSECURE=1\n"
    host.run("sh", "-c", f"printf '{lines}' > {drop_in} && systemctl daemon-reload && systemctl restart hypervisor")

    def collected() -> bool:
        done = host.run("hypervisor", "get", "gpus", "--server", "127.0.0.1:50051", "-o", "name", check=False)
        return len(done.stdout.split()) == 8

    wait_until(collected, "eight GPUs at the aggregator", 60)
    host.run("sh", "-c", f"rm {drop_in} && systemctl daemon-reload && systemctl stop hypervisor-aggregator")
    host.run("systemctl", "restart", "hypervisor")
    ready(host)


def test_removal_stops_the_units_and_purging_takes_the_rest(host: Machine) -> None:
    host.run("dpkg", "--remove", "gpu-hypervisor", seconds=300)
    assert host.run("systemctl", "is-active", "hypervisor", check=False).stdout.strip() != "active"
    assert host.run("test", "-d", "/var/lib/hypervisor", check=False).returncode == 0
    host.run("dpkg", "--purge", "gpu-hypervisor", seconds=300)
    assert host.run("test", "-e", "/var/lib/hypervisor", check=False).returncode != 0
