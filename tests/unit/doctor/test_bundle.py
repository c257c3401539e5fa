"""A bundle comes to the same verdicts elsewhere, and holds nothing that is nobody else's business."""

from __future__ import annotations

import json
import os
import stat
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from hypervisor.doctor import yaml_text
from hypervisor.doctor.bundle import FACTS, record, write
from hypervisor.doctor.check import Outcome, Stage, check, examine, failed
from hypervisor.doctor.diagnose import diagnose_node, diagnose_pod
from hypervisor.doctor.facts import NodeFacts
from hypervisor.doctor.kubernetes import DIRECTORY, Objects
from hypervisor.doctor.redaction import redact
from hypervisor.doctor.report import as_json, as_text
from hypervisor.doctor.root import INDEX, MOST_DOCUMENT_BYTES, Recording, Root, UnreadableError
from hypervisor.doctor.subject import NodeSubject
from hypervisor.model import Diagnosis
from tests.unit.doctor import driver_cases, kubelet_cases
from tests.unit.doctor.machines import DRIVER, POD_PID, POD_UID, Machine, healthy, words

SECRETS = ("hunter2", "s3cr3t", "swordfish", "AKIAABCDEFGHIJKLMNOP", "10.20.30.40", "0A141E28", "MIIEow")


def _plant(machine: Machine) -> None:
    machine.append(f"/proc/{POD_PID}/environ", words("DB_PASSWORD=s3cr3t", "NVIDIA_TOKEN_URL=http://u:swordfish@h/"))
    machine.write("/proc/900/cmdline", words("/usr/bin/kubelet", "--bootstrap-token", "swordfish", "--token=hunter2"))
    machine.append("/etc/containerd/config.toml", "[proxy_plugins.x]\npassword = 's3cr3t'\n")
    machine.append("/var/lib/kubelet/config.yaml", "authentication:\n  anonymous:\n    enabled: false\n")
    machine.append(
        f"/var/log/pods/ml_train_{POD_UID}/main/0.log",
        "2026-11-30T10:00:00Z stdout F Authorization: Bearer swordfish-and-more\n"
        "2026-11-30T10:00:00Z stdout F key AKIAABCDEFGHIJKLMNOP from 10.20.30.40\n"
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----\n",
    )
    machine.append("/proc/net/tcp", "   0: 0A141E28:1F90 00000000:0000 0A 0:0 0:0 0 0 0 1\n")
    pod = machine.objects["pods"][0]
    pod["spec"]["containers"][0]["env"] = [{"name": "DB_PASSWORD", "value": "s3cr3t"}]
    pod["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "hunter2"


def _unpacked_files(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as file:
        # Debian's Python 3.11.2 has the filters as no argument yet.
        file.extraction_filter = getattr(tarfile, "data_filter", None)
        file.extractall(directory)
    return directory


def _unpacked(archive: Path, directory: Path) -> NodeSubject:
    root = Root(_unpacked_files(archive, directory))
    return NodeSubject(
        root=root,
        facts=msgspec.json.decode(root.text(FACTS) or "", type=NodeFacts),
        objects=Objects.read(root),
    )


def _verdicts(diagnosis: Diagnosis) -> dict[str, object]:
    return {result.check_id: result.verdict for result in diagnosis.results}


@pytest.mark.parametrize(
    "breaks",
    [
        lambda machine: None,
        driver_cases._unloaded,
        driver_cases._upgraded,
        driver_cases._secure_boot,
        lambda m: m.char("/dev/nvidiactl", 195, 255, open_error="EPERM"),
        lambda m: m.unreadable("/proc/modules"),
        lambda m: m.remove(kubelet_cases.SOCKET),
        lambda m: m.remove(f"/proc/{POD_PID}/root/etc/ld.so.preload"),
        lambda m: m.write("/usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03", ""),
    ],
)
def test_a_bundle_gives_the_same_verdicts(breaks: object, tmp_path: Path) -> None:
    machine = healthy(tmp_path / "machine")
    _plant(machine)
    breaks(machine)  # type: ignore[operator]
    subject = machine.subject()
    archive = tmp_path / "bundle.tar.gz"
    write(record(machine.directory, subject), archive)
    elsewhere = _unpacked(archive, tmp_path / "elsewhere")
    # A bundle of what a bundle brought is as good as the first.
    again = tmp_path / "again.tar.gz"
    write(record(tmp_path / "elsewhere", elsewhere), again)
    for told in (elsewhere, _unpacked(again, tmp_path / "farther")):
        assert _verdicts(diagnose_node(told)) == _verdicts(diagnose_node(subject))
        assert _verdicts(diagnose_pod(told, "ml", "train")) == _verdicts(diagnose_pod(subject, "ml", "train"))


def test_no_secret_is_in_it(tmp_path: Path) -> None:
    machine = healthy(tmp_path / "machine")
    _plant(machine)
    contents = record(machine.directory, machine.subject())
    found = [(name, secret) for name, text in contents.texts.items() for secret in SECRETS if secret in text]
    assert found == []
    # The control: the secrets are in what was read.
    raw = Recording()
    diagnose_pod(replace(machine.subject(), root=Root(machine.directory, recording=raw)), "ml", "train")
    assert any("hunter2" in text for text in raw.texts.values())


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    machine = healthy(tmp_path / "machine")
    write(record(machine.directory, machine.subject()), tmp_path / "b.tar.gz")
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()].count("b.tar.gz") == 1
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("--token=abcdef", "--token=<removed>"),
        ('"password": "a b"', '"password": "<removed>"'),
        ("https://user:pw@host/x", "https://<removed>@host/x"),
        ("authentication:\n  anonymous:\n", "authentication:\n  anonymous:\n"),
        (f"driver {DRIVER} at 0000:18:00.0", f"driver {DRIVER} at 0000:18:00.0"),
        ("from 192.168.1.7 to 8.8.8.8", "from <address> to 8.8.8.8"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_x", "token <removed>"),
    ],
)
def test_redaction(text: str, left: str) -> None:
    assert redact("/var/log/x.log", text) == left


@pytest.mark.parametrize(
    ("command", "left"),
    [
        (("/usr/bin/mysql", "-phunter2"), ("/usr/bin/mysql",)),
        (("python3", "/usr/bin/hypervisor", "run"), ("python3", "/usr/bin/hypervisor", "run")),
        (("/usr/bin/kubelet", "--token=hunter2", "--v=2"), ("/usr/bin/kubelet", "--token=<removed>", "--v=2")),
    ],
)
def test_arguments_of_other_programs_stay_at_home(command: tuple[str, ...], left: tuple[str, ...]) -> None:
    assert redact("/proc/7/cmdline", words(*command)) == words(*left)


def test_a_variable_that_no_check_reads_keeps_its_name_only() -> None:
    told = redact("/proc/7/environ", words("HOME=/home/x", "CUDA_VERSION=12.4"))
    assert told == words("HOME=<removed>", "CUDA_VERSION=12.4")


SECRET = "S3cr3tV4lueXYZ"
SHAPES = (
    f"password={SECRET}",
    f"  password: {SECRET} and {SECRET}",
    f'{{"a":"{{\\"password\\":\\"{SECRET}\\"}}"}}',
    f'password: "ab\\"{SECRET}"',
    f'secret: "abc\n{SECRET}"',
    f"password: |\n  {SECRET}\n  {SECRET}\n",
    f"tokens:\n- {SECRET}\n- {SECRET}b\n",
    f"tokens: [{SECRET}, {SECRET}b]",
    f"password => {SECRET}",
    f"<password>{SECRET}</password>",
    f"machine x login y password {SECRET}",
    f"--db-password {SECRET}",
    f"mysql -u root -p{SECRET}",
    f"curl -u admin:{SECRET} http://x",
    f"https://{SECRET}@host/x",
    f"redis://:{SECRET}@host:6379/0",
    f"https://s3/x?X-Amz-Signature={SECRET}&sig={SECRET}",
    f"Authorization: Digest username=x, response={SECRET}",
    f"Cookie: session={SECRET}; other={SECRET}",
    f"client-key-data: {SECRET}",
    f"DB_PASS={SECRET}",
    f"DB_PWD={SECRET}",
    f"passphrase: {SECRET}",
    f"AccountKey={SECRET}==;EndpointSuffix=x",
    f"signing_key: {SECRET}",
    f"ENCRYPTION_KEY={SECRET}",
    f"//registry/:_authToken={SECRET}",
    f"user:$apr1${SECRET}",
    f"github_pat_11ABC{SECRET}{SECRET}",
    f"AIzaSyD{SECRET}{SECRET}",
    f"SG.{SECRET}.{SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{SECRET}\n{SECRET}",
    f"MIIEowIBAAKCAQEA{SECRET}ABCDEFGHIJKLMNOPQRSTUVWXYZ01\n-----END RSA PRIVATE KEY-----",
)


@pytest.mark.parametrize("text", SHAPES)
def test_secrets_of_many_shapes(text: str) -> None:
    assert SECRET not in redact("/var/log/x.log", text)


def test_secrets_in_objects_of_the_cluster() -> None:
    told = redact(
        f"{DIRECTORY}/pods.json",
        json.dumps(
            {
                "items": [
                    {
                        "metadata": {"annotations": {"example.com/api-token": SECRET, "tensor-fusion.ai/vram": "8Gi"}},
                        "spec": {
                            "volumes": [{"secret": {"secretName": "certificates"}}],
                            "containers": [
                                {
                                    "args": ["--password", SECRET, "--gpu", "0"],
                                    "env": [
                                        {"name": "TF_TOKEN", "value": SECRET},
                                        {"name": "TF_SHM_PATH", "value": "/run/x"},
                                    ],
                                }
                            ],
                        },
                    }
                ]
            }
        ),
    )
    assert SECRET not in told
    assert all(word in told for word in ("8Gi", "certificates", "--gpu", "/run/x"))


@pytest.mark.parametrize("text", ["-----BEGIN RSA----- ", "a.token-", "://a:", "--token-", 'password="', "bearer "])
def test_a_hostile_text_costs_no_square_of_its_length(text: str) -> None:
    def seconds(count: int) -> float:
        begun = time.process_time()
        redact("/var/log/x.log", text * count)
        return time.process_time() - begun

    # Four times the text may take eight times as long on a busy machine; by its square it would take sixteen.
    assert min(seconds(4000) for _ in range(3)) < 12 * max(min(seconds(1000) for _ in range(3)), 0.001)


def test_a_damaged_index_is_told(tmp_path: Path) -> None:
    place = tmp_path / INDEX.lstrip("/")
    place.parent.mkdir()
    for content in ("", "{", "[1]", '{"nodes": 7}', "\x00"):
        place.write_text(content)
        with pytest.raises(UnreadableError, match="not an index"):
            Root(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "a: " + "9" * 100_000])
def test_yaml_without_end_is_refused_at_once(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(yaml.YAMLError):
        yaml_text.parse(text)
    assert time.process_time() - begun < 2


def _lists(directory: Path, **kinds: object) -> Path:
    directory.mkdir()
    for kind, told in kinds.items():
        (directory / f"{kind}.json").write_text(json.dumps(told))
    return directory


def test_lists_of_a_large_cluster_are_read_whole(tmp_path: Path) -> None:
    pods = [{"metadata": {"name": f"p{number}", "namespace": "ml", "note": "y" * 4000}} for number in range(600)]
    directory = _lists(tmp_path / "lists", pods={"items": pods}, nodes={"items": []})
    assert len(Objects.read_directory(directory).all("pods")) == 600

    # A bundle that brings them, and an index of the same size, is a machine of its own.
    subject = NodeSubject(root=Root(tmp_path), facts=None, objects=Objects.read_directory(directory))
    machine = healthy(tmp_path / "machine")
    for number in range(6000):
        (machine.directory / "proc" / f"{'x' * 200}{number}").touch()
    write(record(machine.directory, subject), tmp_path / "bundle.tar.gz")
    there = _unpacked_files(tmp_path / "bundle.tar.gz", tmp_path / "there")
    assert (there / INDEX.lstrip("/")).stat().st_size > 1 << 20
    assert len(Objects.read(Root(there)).all("pods")) == 600


def test_one_object_is_a_list_of_one(tmp_path: Path) -> None:
    directory = _lists(tmp_path / "lists", pods={"kind": "Pod", "metadata": {"name": "p", "namespace": "ml"}})
    assert [each["metadata"]["name"] for each in Objects.read_directory(directory).all("pods")] == ["p"]


@pytest.mark.parametrize(
    "content", [b"", b'{"items": [{"metadata"', b"[]", b'{"items": 7}', b"{}", b"\xff\xfe", b"[" * 9999]
)
def test_a_list_that_is_none_is_told_and_not_taken_for_an_empty_cluster(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pods.json").write_bytes(content)
    with pytest.raises(UnreadableError, match=r"pods\.json"):
        Objects.read_directory(tmp_path)


def test_a_document_without_end_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "pods.json").open("wb") as file:
        file.truncate(1 << 30)
    assert MOST_DOCUMENT_BYTES < 1 << 30
    with pytest.raises(UnreadableError, match="MiB"):
        Objects.read_directory(tmp_path)


def test_names_of_any_bytes_stop_no_bundle_and_no_report(tmp_path: Path) -> None:
    machine = healthy(tmp_path / "machine")
    for name in (b"proc/\xff\xfe", b"dev/nvidia\xff", b"etc/modprobe.d/\xff.conf"):
        place = Path(os.fsdecode(os.fsencode(machine.directory) + b"/" + name))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("options nvidia NVreg_EnableGpuFirmware=0\n")
    Path(os.fsdecode(os.fsencode(machine.directory) + b"/dev/nvidia\xfe")).symlink_to(os.fsdecode(b"nvidia\xff"))
    write(record(machine.directory, machine.subject()), tmp_path / "bundle.tar.gz")
    there = Root(_unpacked_files(tmp_path / "bundle.tar.gz", tmp_path / "there"))
    assert any("?" in name for name in there.names("/proc"))

    @check("x.y", stage=Stage.DRIVER, looks_at="names", source="none")
    def look(subject: NodeSubject) -> Outcome:
        """Whether names can be told."""
        return failed(subject.root.names("/proc"), f"cause {subject.root.names('/proc')[-1]}", "remedy")

    told = examine([look], machine.subject(), name="node")
    as_json(told).encode()
    as_text(told).encode()
    assert told.results[0].cause.startswith("cause ")


def test_what_is_no_ordinary_file_is_not_replaced(tmp_path: Path) -> None:
    machine = healthy(tmp_path / "machine")
    taken = record(machine.directory, machine.subject())
    pipe, link, old = tmp_path / "pipe", tmp_path / "link", tmp_path / "old.tar.gz"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    old.write_text("")
    for path in (pipe, link):
        with pytest.raises(OSError, match="no ordinary file"):
            write(taken, path)
    write(taken, old)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()
    assert old.stat().st_size > 0
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []
