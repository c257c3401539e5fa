"""Registration and allocatable: whether the kubelet knows of the GPUs, and tells the scheduler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import yaml

from hypervisor.doctor import yaml_text
from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.driver import NVML
from hypervisor.doctor.kernel_log import matching
from hypervisor.doctor.kubernetes import Object, labels_of, part, quantity
from hypervisor.doctor.pod_logs import logs
from hypervisor.doctor.process_files import arguments
from hypervisor.doctor.subject import DEVICE_PLUGINS, NodeSubject

SOCKET = "registration.kubelet-socket"
PLUGIN = "registration.plugin"
NODE_OBJECT = "allocatable.node-object"
CHECKPOINT = f"{DEVICE_PLUGINS}/kubelet_internal_checkpoint"
_CONFIG = "/var/lib/kubelet/config.yaml"
_OURS = "tensor-fusion.ai/index_"
_NO_KUBELET = "there is no kubelet on this machine"


@check(
    SOCKET,
    stage=Stage.REGISTRATION,
    looks_at="/var/lib/kubelet/device-plugins/kubelet.sock",
    source="article 2.3 and 3.2; it is a unix socket, and no firewall is in its way (nvidia-stack.md 7.4)",
)
def kubelet_socket(subject: NodeSubject) -> Outcome:
    """Does the kubelet listen for device plugins?"""
    if not subject.has_kubelet:
        return not_applicable(_NO_KUBELET)
    path = f"{DEVICE_PLUGINS}/kubelet.sock"
    found = subject.root.node(path)
    if found is None:
        return failed(
            [f"{path} is missing"],
            "the kubelet is not running, or keeps its plugins elsewhere (--root-dir)",
            "look at 'systemctl status kubelet' and its log; mount the directory that it uses into the plugin's Pod",
        )
    if found.kind != "socket":
        return failed(
            [f"{path} is a {found.kind}"],
            "something other than the kubelet made this file, a mount of a missing path for instance",
            "remove it and restart the kubelet",
        )
    if found.uid != 0 or found.mode & 0o600 != 0o600:
        return failed(
            [f"{path}: owner {found.uid}, mode {found.mode:o}"],
            "its owner or mode keeps plugins out",
            "restart the kubelet as root, so that it makes the socket anew; with SELinux see 'ausearch -m avc'",
        )
    return passed(f"{path} is a socket of root's")


@check(
    PLUGIN,
    stage=Stage.REGISTRATION,
    looks_at="/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
    source="article 2.2 and 3.2; nvidia-stack.md 7.3, 9.3 rows 38 and 39; handbook: Pods that ask for nvidia.com/gpu",
    requires=(SOCKET,),
)
def plugin(subject: NodeSubject) -> Outcome:
    """Has a device plugin registered GPUs with the kubelet?"""
    if not subject.has_kubelet:
        return not_applicable(_NO_KUBELET)
    registered = registered_devices(subject)
    if registered is None:
        return _damaged_checkpoint()
    ours = [name for name in registered if name.startswith(_OURS)]
    evidence = [f"{name}: {len(devices)}" for name, devices in registered.items() if not name.startswith(_OURS)]
    evidence += [f"{_OURS}*: {len(ours)} resources"] if ours else []
    if ours or "nvidia.com/gpu" in registered or any(name.startswith("nvidia.com/mig-") for name in registered):
        return passed(*evidence)
    others = [name for name in registered if name.startswith("nvidia.com/")]
    if others:
        return warned(
            evidence,
            f"the plugin registers its cards as {', '.join(others)}: a Pod that asks for nvidia.com/gpu finds none",
            "ask for the registered name, or set the plugin's resource name back to nvidia.com/gpu",
        )
    return failed(
        evidence or ["no resource is registered"],
        "no device plugin has registered GPUs: it does not run, it failed at NVML, or it registered before the kubelet"
        " restarted",
        "look at the plugin's Pod and log for 'Registered device plugin' (its first line, 'Starting FS watcher', says"
        " nothing yet); restart the Pod. Driver and plugin versions need not match in pairs",
    )


def _damaged_checkpoint() -> Outcome:
    return warned(
        [f"{CHECKPOINT} can't be understood"],
        "the kubelet's own record of devices is damaged: after its next start it knows of no device that a Pod has",
        "drain the node, stop the kubelet, remove the file and start the kubelet; its plugins register anew",
    )


@check(
    "registration.plugin-log",
    stage=Stage.REGISTRATION,
    looks_at="/var/log/pods/*nvidia-device-plugin*",
    source="article 2.2 and 3.2: failed to initialize NVML",
    requires=(SOCKET,),
)
def plugin_log(subject: NodeSubject) -> Outcome:
    """Does NVIDIA's device plugin not complain?"""
    # Its chart gives other Pods names that begin alike (feature discovery, the MPS daemon), so each log is looked at.
    found = logs(subject.root, "nvidia-device-plugin")
    if not found:
        return not_applicable("no log of NVIDIA's device plugin is on this node")
    told: list[str] = []
    complaints: list[str] = []
    for each in found:
        bad = matching(each.lines, r"failed to initialize NVML", r"error .*NVML", r"could not load NVML library")
        started = matching(each.lines, r"Registered device plugin")
        told += started[-1:]
        if bad and not (started and _place(each.lines, started) > _place(each.lines, bad)):
            denied = matching(each.lines, r"Operation not permitted", r"permission denied")
            complaints += [*bad[-2:], *denied[-1:]]
    if not complaints:
        return passed(*told[-1:])
    return failed(
        complaints,
        "the plugin finds no driver in its container",
        "give its Pod the nvidia runtime class or make that runtime the default, so that the libraries are mounted; it"
        " needs privileged or the device files; on the node see driver.version-match",
    )


@check(
    "registration.count",
    stage=Stage.REGISTRATION,
    looks_at="kubelet_internal_checkpoint and the list of GPUs",
    source="article 4.1: four by nvidia-smi and two registered",
    requires=(PLUGIN, NVML),
)
def registered_count(subject: NodeSubject) -> Outcome:
    """Is every GPU registered?"""
    if not subject.has_kubelet:
        return not_applicable(_NO_KUBELET)
    registered = registered_devices(subject) or {}
    devices = registered.get("nvidia.com/gpu")
    if devices is None:
        return not_applicable("nvidia.com/gpu is not registered here")
    cards = [gpu for gpu in subject.facts.gpus if not gpu.parent_uuid] if subject.facts else []
    expected = len(cards) or len(subject.gpus_on_bus)
    # A shared card is registered several times, as UUID::0, UUID::1 and so on.
    whole = {device.partition("::")[0] for device in devices}
    if len(whole) >= expected:
        return passed(f"{len(whole)} registered, {expected} cards")
    missing = [gpu.uuid for gpu in cards if gpu.uuid not in whole]
    return failed(
        [f"{len(whole)} registered, {expected} cards", *missing],
        "the plugin left out cards: they were unhealthy or failed to start when it looked",
        "see driver.health, driver.probe and pci.memory-windows for these cards, then restart the plugin's Pod",
    )


@check(
    "allocatable.feature-gate",
    stage=Stage.ALLOCATABLE,
    looks_at="the kubelet's command line and its configuration file",
    source="article 2.3; the gate is always on since Kubernetes 1.26 (nvidia-stack.md 7.4)",
)
def feature_gate(subject: NodeSubject) -> Outcome:
    """Are device plugins not switched off in the kubelet?"""
    if not subject.has_kubelet:
        return not_applicable(_NO_KUBELET)
    words = kubelet_arguments(subject)
    off = [word for word in words if re.search(r"feature-gates=.*DevicePlugins=false", word)]
    gates = kubelet_configuration(subject).get("featureGates")
    if isinstance(gates, Mapping) and gates.get("DevicePlugins") is False:
        off.append(f"{kubelet_configuration_file(subject)}: featureGates.DevicePlugins: false")
    if not off:
        return passed("DevicePlugins is not turned off; there is no need to turn it on either")
    return failed(
        off,
        "device plugins are switched off, so that no plugin's resources reach the node",
        "remove the gate and restart the kubelet; from 1.26 on it does not exist, and a kubelet that is given it does"
        " not"
        " start",
    )


@check(
    NODE_OBJECT,
    stage=Stage.ALLOCATABLE,
    looks_at="status.allocatable of the Node object, beside what is registered",
    source="article 2.3, 3.2 and 4.5: a zero that somebody else wrote",
    requires=(PLUGIN,),
)
def node_object(subject: NodeSubject) -> Outcome:
    """Does the Node offer what the plugin registered?"""
    node = this_node(subject)
    if node is None:
        return not_applicable("there is no Node object to look at; give one with --kubernetes DIR")
    capacity, allocatable = part(node, "status", "capacity") or {}, part(node, "status", "allocatable") or {}
    registered = registered_devices(subject) or {}
    names = {name for name in (*registered, *capacity, *allocatable) if name.startswith(("nvidia.com/", _OURS))}
    evidence, lost, fewer = [], [], []
    for name in sorted(names):
        have, offered = len(registered.get(name, ())), quantity(allocatable.get(name))
        there = max(have, quantity(capacity.get(name)))
        evidence.append(f"{name}: {have} registered, capacity {capacity.get(name, 0)}, allocatable {offered}")
        if there and offered == 0:
            lost.append(name)
        elif offered < there:
            fewer.append(name)
    if not names:
        return failed(
            ["no GPU resource under status.allocatable"],
            "no plugin's resource has reached the Node object",
            "see registration.plugin and allocatable.feature-gate on this node",
        )
    if lost:
        return failed(
            evidence,
            f"{', '.join(lost)}: devices are there and none is offered: the plugin calls them unhealthy, its stream"
            " to the"
            " kubelet broke, or another program wrote the Node's status",
            "restart the plugin's Pod so that it registers anew; let nothing but the device plugin write these"
            " figures, a"
            " monitor least of all",
        )
    if fewer:
        return warned(
            evidence,
            f"{', '.join(fewer)}: some devices are not offered: the plugin calls them unhealthy",
            "see driver.health and driver.xid for the card; when it is well again, restart the plugin's Pod, which"
            " calls no card healthy again by itself",
        )
    return passed(*evidence)


@check(
    "allocatable.node-ready",
    stage=Stage.ALLOCATABLE,
    looks_at="conditions of the Node object",
    source="article 2.3: Conditions, Ready",
)
def node_ready(subject: NodeSubject) -> Outcome:
    """Is the Node ready?"""
    node = this_node(subject)
    if node is None:
        return not_applicable("there is no Node object to look at; give one with --kubernetes DIR")
    conditions = part(node, "status", "conditions") or ()
    none: Object = {}
    ready = next((each for each in conditions if each.get("type") == "Ready"), none)
    if ready.get("status") == "True":
        return passed("Ready is True")
    return failed(
        [f"Ready is {ready.get('status', 'absent')}: {ready.get('message', 'no message')}"],
        "the kubelet has not reported in, or says that it can't run Pods",
        "look at 'systemctl status kubelet', its log, and the container runtime",
    )


@check(
    "allocatable.node-label",
    stage=Stage.ALLOCATABLE,
    looks_at="labels of the Node object",
    source="handbook: no GPU is discovered, the node has no label; nvidia-stack.md 7.3",
)
def node_label(subject: NodeSubject) -> Outcome:
    """Has the Node the label by which GPU nodes are chosen?"""
    node = this_node(subject)
    if node is None:
        return not_applicable("there is no Node object to look at; give one with --kubernetes DIR")
    value = labels_of(node).get("nvidia.com/gpu.present")
    if value == "true":
        return passed("nvidia.com/gpu.present=true")
    if not subject.gpus_on_bus and not (subject.facts and subject.facts.gpus):
        return not_applicable("this node has no GPU")
    return warned(
        [f"nvidia.com/gpu.present is {value or 'absent'}, and there are GPUs"],
        "the controller looks at labelled nodes only, and passes this one by",
        "kubectl label node NODE nvidia.com/gpu.present=true; or set initialGpuNodeLabelSelector and the pool's"
        " nodeSelector to a label that it has",
    )


def registered_devices(subject: NodeSubject) -> Mapping[str, tuple[str, ...]] | None:
    """Ids of devices by resource, as the kubelet keeps them; None where what it has written can't be understood.

    Newer kubelets list them flat, older ones by NUMA node. One that has never had a plugin has written nothing.
    """
    text = subject.root.text(CHECKPOINT)
    if text is None:
        return {}
    try:
        data = json.loads(text)["Data"]["RegisteredDevices"] or {}
        return {name: tuple(_flat(devices)) for name, devices in data.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _flat(devices: object) -> Iterable[str]:
    if isinstance(devices, Mapping):
        for inner in devices.values():
            yield from _flat(inner)
    elif isinstance(devices, list):
        for each in devices:
            yield str(each)


def kubelet_arguments(subject: NodeSubject) -> tuple[str, ...]:
    """The command line of the kubelet; empty when it does not run."""
    for process in subject.processes:
        if process.command == "kubelet":
            return arguments(subject.root, process)
    return ()


def kubelet_configuration_file(subject: NodeSubject) -> str:
    """Where the kubelet's configuration lies: where its command line says, which differs by distribution."""
    words = kubelet_arguments(subject)
    for at, word in enumerate(words):
        name, equals, value = word.lstrip("-").partition("=")
        if name == "config" and word.startswith("-"):
            found = value if equals else next(iter(words[at + 1 :]), "")
            if found.startswith("/"):
                return found
    return _CONFIG


def kubelet_configuration(subject: NodeSubject) -> Mapping[str, object]:
    """The kubelet's configuration file; empty where there is none."""
    text = subject.root.text(kubelet_configuration_file(subject))
    try:
        found = yaml_text.parse(text) if text else {}
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, Mapping) else {}


def this_node(subject: NodeSubject) -> Object | None:
    """The Node object of this node: by the daemon's name for it, by the host name, or the only one there is."""
    nodes = subject.objects.all("nodes")
    names = {subject.facts.name} if subject.facts else set()
    names.add(subject.root.word("/etc/hostname"))
    found = next((each for each in nodes if part(each, "metadata", "name") in names), None)
    return found or (nodes[0] if len(nodes) == 1 else None)


def _place(lines: tuple[str, ...], found: list[str]) -> int:
    """Where the last of the lines that were found stands."""
    return max(at for at, line in enumerate(lines) if line.strip() == found[-1])


CHECKS = (
    kubelet_socket,
    plugin,
    plugin_log,
    registered_count,
    feature_gate,
    node_object,
    node_ready,
    node_label,
)
