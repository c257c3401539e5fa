"""The package on a host whose systemd really runs: units, limits over stops and upgrades, the watchdog, removal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hypervisor.simulation.machine import opened
from tests.daemon_process import wait_until
from tests.image import roots
from tests.image.machine import NATIVE, SIMULATED_MACHINE, USER, Machine, later_package, package
from tests.simulated_load import assert_share

pytestmark = pytest.mark.image
DOCUMENT = roots.SOURCE / "docs/install-systemd.md"
EXAMPLES = "/usr/share/doc/gpu-hypervisor/examples"
DROP_INS = "/etc/systemd/system/hypervisor.service.d"
LIMIT = 0.30
WINDOW_SECONDS = 3.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    roots.needs_root()
    machine = Machine(tmp_path_factory.mktemp("host"), package())
    try:
        machine.install()
        machine.boot()
        yield machine
    finally:
        machine.close()


def items(host: Machine, kind: str, *options: str) -> list[Any]:
    done = host.run("hypervisor", "get", kind, "-o", "json", *options, check=False)
    return list(json.loads(done.stdout)["items"]) if done.returncode == 0 and done.stdout else []


def ready(host: Machine) -> None:
    wait_until(lambda: len(items(host, "gpus")) == 8, "eight GPUs", 60)


def pods(host: Machine) -> list[Any]:
    return list(json.loads(host.run("hypervisor", "get", "pods", "-o", "json").stdout)["items"])


def start_workload(host: Machine, unit: str, user: str) -> None:
    """A program that wants a whole card and has 30 % of one, of a user, as a unit of its own."""
    words = ["systemd-run", f"--unit={unit}", "--collect", f"--uid={user}"]
    on_machine = ["hypervisor", "sim", "run", "--machine", SIMULATED_MACHINE, "--"]
    limited = ["hypervisor", "exec", "--name", unit, "--compute", f"{LIMIT:.0%}", "--vram", "8Gi", "--"]
    host.run(*words, *on_machine, *limited, f"/{NATIVE}/clients/load", "--kernel-us=2000", "--seconds=600")
    try:
        wait_until(lambda: limited_processes(host, unit), "the workload under its limits", 60)
    except AssertionError as error:
        log = host.run("journalctl", "-u", unit, "-u", "hypervisor", "-n", "20", check=False).stdout
        raise AssertionError(f"{error}\n{log}") from None


def limited_processes(host: Machine, name: str) -> list[int]:
    """Processes of an allocation that the daemon sees under limits."""
    found = [pod for pod in pods(host) if pod["spec"]["allocationId"] == name]
    return [process["pid"] for pod in found for process in pod.get("processes", ())]


@pytest.fixture(scope="module")
def workload(host: Machine) -> Iterator[str]:
    """One of an ordinary user, that runs through all that is done to the daemon."""
    ready(host)
    start_workload(host, "job", USER)
    yield "job"
    host.run("systemctl", "stop", "job", check=False)


def assert_limited(host: Machine) -> None:
    """By the simulator's ledger: all programs together have had what one is limited to."""

    def busy() -> tuple[float, float]:
        with opened(host.root / SIMULATED_MACHINE.lstrip("/")) as machine:
            shown = machine.show()
        used = sum(usage["busy_ns"] for group in shown["groups"] for usage in group["gpus"].values())
        return shown["clock"]["now_ns"] / 1e9, used / 1e9

    def share() -> float:
        began, before = busy()
        wait_until(lambda: busy()[0] - began >= WINDOW_SECONDS, "the window", 60)
        ended, after = busy()
        return (after - before) / (ended - began)

    assert_share(share, LIMIT, tolerance=0.03)


def units(host: Machine) -> list[str]:
    listed = host.run("dpkg", "-L", "gpu-hypervisor").stdout.split("\n")
    return [name for name in listed if name.startswith("/usr/lib/systemd/system/")]


def test_systemd_finds_nothing_to_say_of_the_units(host: Machine) -> None:
    assert len(units(host)) == 6
    done = host.run("systemd-analyze", "verify", *units(host), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_units_are_as_tight_as_the_page_says(host: Machine) -> None:
    said = re.findall(r"^\| `(hypervisor[a-z-]*\.service)` \| ([\d.]+) ", DOCUMENT.read_text(), re.MULTILINE)
    assert {unit for unit, _ in said} == {name.rpartition("/")[2] for name in units(host) if name.endswith(".service")}
    for unit, exposure in said:
        done = host.run("systemd-analyze", "security", "--no-pager", unit, check=False)
        found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
        assert found, done.stdout
        assert (unit, found.group(1)) == (unit, exposure)


def test_every_command_runs_with_the_host_s_own_python(host: Machine) -> None:
    own = "/usr/lib/gpu-hypervisor/bin/python3"
    assert host.run(own, "--version").stdout == host.run("/usr/bin/python3", "--version").stdout
    commands = re.findall(r"^  ([a-z-]+) ", host.run("hypervisor", "--help").stdout.partition("Commands:")[2], re.M)
    assert len(commands) > 15
    script = 'for name in "$@"; do hypervisor $name --help >/dev/null || echo $name; done'
    assert host.run("sh", "-c", script, "sh", *commands).stdout == ""
    assert host.run(own, "-m", "hypervisor", "version").stdout.strip()


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


def test_programs_of_root_are_limited_too(host: Machine) -> None:
    ready(host)
    start_workload(host, "roots", "root")
    try:
        assert_limited(host)
    finally:
        host.run("systemctl", "stop", "roots", check=False)
    wait_until(lambda: not pods(host), "the end of the allocation", 60)


def test_who_may_change_what_others_have(host: Machine) -> None:
    ready(host)
    words = ["hypervisor", "allocate", "named", "--gpu", "1", "--compute", "10%"]
    refused = host.run("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *words, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "join the group hypervisor" in refused.stderr
    member = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--groups=hypervisor"]
    host.run(*member, *words)
    host.run(*member, "hypervisor", "release", "named")


def test_a_stop_takes_no_limit_away_and_a_start_adopts_what_runs(host: Machine, workload: str) -> None:
    (before,) = pods(host)
    assert_limited(host)
    host.run("systemctl", "stop", "hypervisor")
    assert host.run("test", "-e", "/run/hypervisor", check=False).returncode != 0
    assert host.run("test", "-f", f"{before['directory']}/shm", check=False).returncode == 0
    assert_limited(host)
    host.run("systemctl", "start", "hypervisor")
    ready(host)
    (after,) = pods(host)
    assert (after["uid"], limited_processes(host, "job")) == (before["uid"], [before["processes"][0]["pid"]])
    assert after["enforcement"] != "ENFORCEMENT_VIOLATED"
    # The control: what the new daemon says reaches the program.
    host.run("hypervisor", "set-limits", "job", "--compute", "60%")
    with pytest.raises(AssertionError, match="above the limit"):
        assert_limited(host)
    host.run("hypervisor", "set-limits", "job", "--compute", f"{LIMIT:.0%}")
    assert_limited(host)


def test_a_daemon_that_hangs_is_made_anew_by_the_watchdog(host: Machine, workload: str) -> None:
    ready(host)
    pid = host.property("hypervisor", "MainPID")
    host.run("kill", "-STOP", pid)
    assert_limited(host)
    wait_until(lambda: host.property("hypervisor", "MainPID") not in ("0", pid), "the watchdog", 90)
    ready(host)
    assert int(host.property("hypervisor", "NRestarts")) >= 1
    assert limited_processes(host, "job")
    assert_limited(host)


@pytest.mark.parametrize("version", ["the same", "0.1.1"])
def test_an_upgrade_under_a_running_workload_changes_nothing_for_it(host: Machine, workload: str, version: str) -> None:
    (before,) = pods(host)
    pid = host.property("hypervisor", "MainPID")
    if version != "the same":
        later_package(host.deb, host.root / "root/later.deb", version)
    host.run("dpkg", "-i", "/root/later.deb" if version != "the same" else f"/root/{host.deb.name}", seconds=300)
    found = host.run("dpkg-query", "-W", "-f", "${Version}", "gpu-hypervisor").stdout
    assert found == version or version == "the same"
    wait_until(lambda: host.property("hypervisor", "MainPID") not in ("0", pid), "the new daemon", 60)
    ready(host)
    (after,) = pods(host)
    assert after["uid"] == before["uid"]
    assert [each["pid"] for each in after["processes"]] == [each["pid"] for each in before["processes"]]
    assert_limited(host)


def test_an_upgrade_over_settings_that_can_not_be_used_is_whole_and_says_so(host: Machine, workload: str) -> None:
    settings = "/etc/hypervisor/hypervisor.toml"
    host.run("cp", settings, "/root/settings")
    host.run("sh", "-c", f"echo 'of_another_version = 1' >> {settings}")
    host.run("systemctl", "disable", "--now", "hypervisor-inspection.timer")
    done = host.run("dpkg", "-i", f"/root/{host.deb.name}", seconds=300)
    assert "hypervisor.service did not start; 'systemctl status hypervisor.service'" in done.stderr + done.stdout
    state = host.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "gpu-hypervisor").stdout
    assert state == "installed"
    # What the administrator has switched off stays so.
    assert host.run("systemctl", "is-enabled", "hypervisor-inspection.timer", check=False).stdout.strip() == "disabled"
    assert host.property("hypervisor-inspection.timer", "ActiveState") == "inactive"
    assert_limited(host)
    host.run("cp", "/root/settings", settings)
    host.run("systemctl", "enable", "--now", "hypervisor-inspection.timer")
    ready(host)  # the unit tries again by itself
    assert limited_processes(host, "job")
    assert_limited(host)


def test_hard_isolation_runs_it_as_root_over_what_runs(host: Machine, workload: str) -> None:
    host.run("cp", f"{EXAMPLES}/hard-isolation.conf.example", f"{DROP_INS}/hard-isolation.conf")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "hypervisor")
    ready(host)
    pid = host.property("hypervisor", "MainPID")
    assert host.run("ps", "-o", "user=", "-p", pid).stdout.strip() == "root"
    assert limited_processes(host, "job")
    assert_limited(host)
    host.run("rm", f"{DROP_INS}/hard-isolation.conf")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "hypervisor")
    ready(host)
    assert limited_processes(host, "job")


def test_a_reload_reads_the_settings_again(host: Machine) -> None:
    ready(host)
    pid = host.property("hypervisor", "MainPID")
    host.run("sh", "-c", "echo 'vram_ratio = 1.5' >> /etc/hypervisor/hypervisor.toml && systemctl reload hypervisor")
    wait_until(lambda: all(each["capacity"]["vramRatio"] == 1.5 for each in items(host, "gpus")), "the new ratio", 30)
    assert host.property("hypervisor", "MainPID") == pid


def test_the_daily_inspection_writes_its_report(host: Machine) -> None:
    ready(host)
    host.run("systemctl", "start", "hypervisor-inspection.service")
    assert "<html" in host.run("cat", "/var/lib/hypervisor-inspection/report.html").stdout.lower()


def test_the_aggregator_s_unit_collects_what_the_node_reports_with_certificates(host: Machine) -> None:
    ready(host)
    certs = ["hypervisor", "certs"]
    host.run(*certs, "init")
    host.run(*certs, "aggregator", "--address", "127.0.0.1")
    host.run(*certs, "node", host.run("hostname").stdout.strip())
    host.run(*certs, "reader", "alice")
    host.run("sh", "-c", "ln -s /etc/hypervisor/pki/nodes/* /etc/hypervisor/tls")
    example = f"{EXAMPLES}/tls.conf.example"
    host.run("install", "-D", example, f"{DROP_INS}/tls.conf")
    host.run("install", "-D", example, "/etc/systemd/system/hypervisor-aggregator.service.d/tls.conf")
    place = "s|/etc/hypervisor/tls/|/etc/hypervisor/pki/aggregator/aggregator/|"
    host.run("sed", "-i", place, "/etc/systemd/system/hypervisor-aggregator.service.d/tls.conf")
    options = "AGGREGATOR_OPTIONS=--listen 127.0.0.1:50051 --allow-simulated"
    host.run("sh", "-c", f"echo '{options}' > /etc/hypervisor/aggregator.conf")
    host.run("sh", "-c", "echo 'report_to = \"127.0.0.1:50051\"' >> /etc/hypervisor/hypervisor.toml")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "hypervisor-aggregator", "hypervisor")
    reader = ("--server", "127.0.0.1:50051", "--tls-dir", "/etc/hypervisor/pki/readers/alice")
    try:
        wait_until(lambda: len(items(host, "gpus", *reader)) == 8, "eight GPUs at the aggregator", 60)
    except AssertionError as error:
        log = host.run("journalctl", "-u", "hypervisor*", "-n", "30", check=False).stdout
        raise AssertionError(f"{error}\n{log}") from None
    # The control: without a certificate nobody is answered.
    assert items(host, "gpus", "--server", "127.0.0.1:50051") == []
    host.run("rm", f"{DROP_INS}/tls.conf")
    host.run("sed", "-i", "/report_to/d", "/etc/hypervisor/hypervisor.toml")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "stop", "hypervisor-aggregator")
    host.run("systemctl", "restart", "hypervisor")


def test_removal_stops_the_units_and_purging_takes_the_rest(host: Machine, workload: str) -> None:
    ready(host)
    assert_limited(host)
    host.unbind()
    # Half of it has been taken away by hand before.
    host.run("rm", "-r", "/usr/lib/gpu-hypervisor", "/usr/lib/systemd/system/hypervisor-workers.service")
    host.run("dpkg", "--remove", "gpu-hypervisor", seconds=300)
    assert host.run("systemctl", "is-active", "hypervisor", check=False).stdout.strip() != "active"
    assert host.run("test", "-d", "/var/lib/hypervisor", check=False).returncode == 0
    assert_limited(host)
    host.run("dpkg", "--purge", "gpu-hypervisor", seconds=300)
    assert host.property("job", "ActiveState") == "active"
    assert_limited(host)
    host.run("systemctl", "stop", "job")
    assert host.run("ps", "-u", "hypervisor", "-o", "args=", check=False).stdout == ""
    # What is left is what was not the package's: the test's own drop-ins, and root's home.
    named = ["(", "-name", "*hypervisor*", "-o", "-name", "*tensor*fusion*", ")"]
    places = ["/etc", "/usr", "/var", "/run", "/tmp"]
    others = ["-not", "-path", "/etc/systemd/system/*.service.d", "-not", "-path", "/var/log/journal/*"]
    assert host.run("find", *places, *named, *others, check=False).stdout == ""
