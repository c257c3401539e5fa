"""What the sources report, each with the scenarios that show what the product says of it.

A scenario is a test ("PATH::NAME"), a row of the fault matrix ("matrix: FAULT"), or cases of the doctor from the same
source ("doctor: CHECK"). test_sources.py fails for a report that has none, or names one that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass

HEALTH = "tests/unit/gpu/health"
READER = "tests/integration/gpu"
LIFE = "tests/integration/health/test_life.py"


@dataclass(frozen=True)
class Report:
    """One symptom, in our words, as its source has it. verdict is what the product must say or do, from the source."""

    source: str
    symptom: str
    verdict: str
    scenarios: tuple[str, ...]


BUG_REPORTS = (
    Report(
        "9.1/1",
        "a program's Xid makes a card unhealthy for ever",
        "healthy; its Pod is told",
        (
            "matrix: a program's Xid (13)",
            f"{LIFE}::test_a_program_s_xid_is_told_to_the_owner_of_the_only_allocation",
            "tests/unit/doctor/test_node_faults.py::test_xids_that_are_a_programs_or_nothing_take_no_card_away",
        ),
    ),
    Report(
        "9.1/2",
        "every Xid that is not listed is for ever",
        "a policy by number, with the site's over it",
        (
            f"{HEALTH}/test_policy.py::test_every_xid_is_treated_as_the_catalogue_says",
            "tests/integration/doctor/test_doctor_commands.py::test_the_site_s_own_xids",
            "doctor: driver.xid",
        ),
    ),
    Report(
        "9.1/3",
        "94 takes capacity and 109 is ignored",
        "94 is a program's, 109 takes a reset",
        (
            "matrix: a contained memory error (48 and 94)",
            "matrix: an Xid that asks for a reset (109), and the reset",
            "doctor: driver.xid",
        ),
    ),
    Report(
        "9.1/4",
        "a card that was repaired stays unhealthy",
        "healthy when the driver asks no more, after a hold",
        (f"{HEALTH}/test_machine.py::test_an_xid_goes_when_the_driver_asks_no_more",),
    ),
    Report(
        "9.1/6",
        "errors from before the start are not seen",
        "the state is read at the start",
        (
            f"{LIFE}::test_faults_from_before_the_daemon_are_seen_and_are_no_news",
            "matrix: uncorrectable memory errors, and the driver asks for nothing",
            "doctor: driver.health",
            "doctor: driver.xid",
        ),
    ),
    Report(
        "9.1/7",
        "one lost card fails the admission of all Pods",
        "the others keep their places and their grants",
        (
            "tests/unit/gpu/test_topology.py::test_one_lost_gpu_does_not_void_the_matrix",
            "tests/unit/kube/test_indices_and_ids.py::test_preference_is_total",
            "doctor: driver.health",
        ),
    ),
    Report(
        "9.1/8",
        "thousands of Pods fail on one node",
        "the card is lost at once, and new grants are made on the others",
        (
            f"{READER}/test_faults.py::test_a_lost_gpu_is_lost_at_once_and_keeps_who_it_is",
            f"{LIFE}::test_a_lost_card_is_unhealthy_in_all_outputs_within_two_seconds",
            "doctor: driver.health",
            "doctor: registration.count",
        ),
    ),
    Report(
        "9.1/9",
        "our own rights to the device are gone",
        "blind, which says nothing against the card",
        ("matrix: our access to the device nodes is gone (NVML 999)", "doctor: driver.access", "doctor: driver.health"),
    ),
    Report(
        "9.1/10",
        "'Unknown Error' ends the daemon",
        "vague: the card can't be seen, everything goes on",
        ("matrix: our access to the device nodes is gone (NVML 999)", "doctor: driver.health"),
    ),
    Report(
        "9.1/11",
        "a container is not told that its card has died",
        "an event on the Pod",
        ("tests/unit/node/test_changes_told_to_pods.py::test_the_pod_of_a_card_that_fails_is_told_and_no_other",),
    ),
    Report(
        "9.1/12",
        "only two words for the health of a card, and no reason",
        "conditions, metrics and reports say why",
        ("matrix: the driver asks for a reset (recovery action 1)", "matrix: a row of memory could not be remapped"),
    ),
    Report(
        "9.1/14",
        "an Xid that NVML's events missed",
        "the kernel's log is a second source, and each error counts once",
        (
            "matrix: an Xid that only the kernel's log tells of (62)",
            "doctor: driver.xid",
        ),
    ),
    Report(
        "9.1/15",
        "the series of a card that fell off the bus vanish",
        "state lost, for as long as the card is known",
        (
            "matrix: the card vanishes, from the bus too",
            "doctor: driver.count",
            "doctor: driver.health",
            "doctor: cluster.gpu-health",
        ),
    ),
    Report(
        "9.1/16",
        "what was held against a card is never taken back",
        "the driver's recovery action is the way back",
        ("matrix: the driver asks for a reset (recovery action 1)",),
    ),
    Report(
        "9.1/17",
        "a crash when a card becomes lost",
        "each call maps the code to lost; a card that is lost at the start is told",
        (
            f"{READER}/test_faults.py::test_a_gpu_lost_before_the_start_is_a_hole_that_the_node_tells_of",
            "matrix: the card has fallen off the bus (79)",
        ),
    ),
    Report(
        "9.1/18",
        "recovery that flaps",
        "a hold that doubles with each relapse; one read alone is nothing",
        (
            f"{HEALTH}/test_machine.py::test_a_sign_goes_after_good_reads_and_a_while_and_later_each_time",
            f"{HEALTH}/test_machine.py::test_what_is_said_once_and_never_again_was_nothing",
        ),
    ),
    Report(
        "9.1/20",
        "one dead card keeps every container from starting",
        "the node is told, with CDI as the remedy",
        ("doctor: runtime.dead-card", "doctor: symptom.container-cli"),
    ),
    Report(
        "9.2/21",
        "a plugin that runs without any GPU, the error only in its log",
        "not ready, with the reason, and tried again",
        (
            f"{READER}/test_survival.py::test_a_machine_that_comes_later",
            "doctor: driver.nvml",
            "doctor: cluster.conditions",
        ),
    ),
    Report(
        "9.2/22",
        "NVML's library is not found",
        "what was tried is told",
        (
            f"{READER}/test_survival.py::test_no_library",
            "doctor: driver.library",
            "doctor: symptom.accelerator-library",
            "doctor: runtime.handler",
            "doctor: runtime.toolkit",
        ),
    ),
    Report(
        "9.2/23",
        "library and module of different versions",
        "a condition of the node; no crash, capacity and Pods stay",
        (
            f"{READER}/test_faults.py::test_a_driver_that_is_exchanged_underneath_is_taken_up",
            "doctor: driver.version-match",
            "doctor: symptom.version-mismatch",
            "doctor: cluster.conditions",
        ),
    ),
    Report(
        "9.2/24",
        "an old driver lacks symbols",
        "older calls in their place",
        (
            f"{READER}/test_faults.py::test_an_older_driver_loses_nothing_that_has_an_older_call",
            "doctor: driver.version-supported",
        ),
    ),
    Report(
        "9.2/25",
        "a crash by a call that only newer drivers have",
        "the figure is absent",
        (f"{READER}/test_odd_drivers.py::test_missing_functions_are_absent_figures_and_no_conditions",),
    ),
    Report(
        "9.2/26",
        "the driver was exchanged under a process that runs",
        "the reader is started anew",
        (
            f"{READER}/test_faults.py::test_a_driver_that_is_exchanged_underneath_is_taken_up",
            "doctor: driver.version-match",
            "doctor: symptom.nvml-function",
        ),
    ),
    Report(
        "9.2/29",
        "WSL has no minor numbers and no device nodes",
        "the card is used all the same",
        (
            "tests/unit/gpu/test_unified.py::test_wsl_has_no_minor_numbers_no_events_and_no_memory_of_processes",
            "tests/unit/doctor/test_node_faults.py::test_machines_without_device_files_of_linux",
        ),
    ),
    Report(
        "9.2/30",
        "an undefined symbol of a library that should have it",
        "the message says which file is loaded",
        (
            f"{READER}/test_odd_drivers.py::test_missing_functions_are_absent_figures_and_no_conditions",
            "doctor: symptom.nvml-function",
        ),
    ),
    Report(
        "9.2/31",
        "never recovers from a driver that was not ready at boot",
        "capabilities are found anew with each start",
        (f"{READER}/test_survival.py::test_a_driver_that_is_not_ready_at_first_is_asked_for_all_it_has_later",),
    ),
    Report(
        "9.2/32",
        "'[N/A]' that can't be parsed hides the data",
        "typed answers; what is not supported is absent",
        (f"{READER}/test_faults.py::test_a_feature_that_a_gpu_lacks_is_absent_with_a_reason_and_no_condition",),
    ),
    Report(
        "9.2/33",
        "calls hang, and old values are told for ever",
        "a deadline; the figure is stale, then unknown",
        ("matrix: a call that never returns", "doctor: driver.nvml", "doctor: driver.hang", "doctor: driver.access"),
    ),
    Report(
        "9.2/36",
        "a limiter hangs with a new driver",
        "a Pod whose processes do not attach is told",
        ("doctor: pod.attached",),
    ),
    Report(
        "9.2/37",
        "fails on legacy drivers",
        "symbols are optional; the doctor says that the driver is too old",
        (
            f"{READER}/test_odd_drivers.py::test_missing_functions_are_absent_figures_and_no_conditions",
            "doctor: driver.version-supported",
        ),
    ),
)


def _symptoms(source: str, text: str) -> tuple[Report, ...]:
    """Lines of "check | symptom": what must find it, and what people see. A test of the doctor on Pods may stand for a
    check, where the verdict is that nothing is wrong, or goes beyond the check's own."""
    rows = (line.split(" | ") for line in text.strip().splitlines())
    return tuple(Report(source, symptom, "told", (_scenario(by),)) for by, symptom in rows)


def _scenario(by: str) -> str:
    return f"tests/unit/doctor/test_pod_faults.py::{by}" if by.startswith("test_") else f"doctor: {by}"


HANDBOOK = _symptoms(
    "handbook",
    """
cluster.controller | controller: unable to load global config file
cluster.controller | controller: invalid isolation mode policy
symptom.webhook-secret | controller: the webhook's Secret is missing
cluster.controller | controller: unknown kind or field, CRDs are older
cluster.controller | controller: OOMKilled
cluster.discovery | no GPU: the node has no label
allocatable.node-label | no GPU: the node has no label, seen from the node
cluster.discovery | no GPU: label and no GPUNode
cluster.discovery | no GPU: GPUNode and no hypervisor Pod
cluster.gpus | no GPU: the hypervisor runs and has none
cluster.gpu-objects | no GPU: cards lack, or the pool's total is zero
cluster.phases | cluster, pool or GPUNode is not Running
cluster.gpu-owners | USED_BY is not tensor-fusion, seen from the objects
driver.nvml | no GPU: the hypervisor runs and has none, seen from the node
hypervisor.foreign-use | USED_BY is not tensor-fusion
hypervisor.model-known | TFLOPS are missing or wrong
symptom.init-limiter-image | hypervisor Pod: init images can't be pulled
hypervisor.toolkit-ready | hypervisor Pod: waiting for nvidia container stack to be setup
symptom.toolkit-validation | hypervisor Pod: the same, in its log
symptom.accelerator-library | hypervisor Pod: failed to load accelerator library
hypervisor.library-path | hypervisor Pod: the variable leads nowhere
cluster.crash-loops | hypervisor Pod: HypervisorCrashLoopRecreate
cluster.pod-security | hypervisor Pod: refused by Pod Security
hypervisor.http-port | hypervisor Pod: the HTTP port is taken
symptom.port-in-use | hypervisor Pod: the same, in its log
pod.label | not injected: no label
test_a_label_on_the_deployment_alone | not injected: the label is on the Deployment alone
pod.injected | not injected: made before the label
pod.injected | not injected: inject-container names none
pod.injected | not injected: enabled-replicas
cluster.webhook | not injected: the webhook is not registered
symptom.pool-unknown | refused: gpu pool does not exist
symptom.request-missing | refused: tflops request is not set
symptom.annotation-invalid | refused: parse tf resources
symptom.webhook-down | refused: failed calling webhook
symptom.capacity | Pending: GPUQuotaOrCapacityNotEnough
symptom.gpu-not-fit | Pending: GPU not fit
pod.whole-card | Pending: shared takes a whole card
symptom.hypervisor-unhealthy | Pending: hypervisor likely unhealthy
symptom.gang | Pending: gang scheduling timeout
symptom.node-resources | Pending: CPU or memory of the node
symptom.untolerated-taint | Pending: taints
pod.scheduler-answers | Pending: no event at all
symptom.inject-lib-image | Init: inject-lib
symptom.no-shell | Init: the image has no shell
pod.preload | limit: no limiter in /etc/ld.so.preload
pod.isolation-mode | limit: another isolation mode
test_shared_isolation_has_no_limit_by_design | limit: shared has none, by design
pod.limit-file | limit: TF_SHM_PATH names no file
pod.library-mapped | limit: static or musl
pod.worker-limits | limit: hard without its variables
pod.memory | out of memory: at its own limit
pod.memory | out of memory: a framework reserves all
memory.promises | out of memory: the card is full
symptom.out-of-memory | out of memory, in the log
pod.memory | OOMKilled and evicted are host memory
driver.module-loaded | libraries: no driver
driver.library | libraries: not on the node
pod.driver-libraries | libraries: not in the container, or in another folder
symptom.nvml-function | NVML Function Not Found
symptom.nvml-missing | libnvidia-ml.so.1 can't be opened, cuInit_fn
symptom.no-device | PyTorch sees no device
pod.connection | remote: no worker or address
cluster.workers | remote: the worker restarts
symptom.remote-symbol | remote: named symbol not found
symptom.remote-address | remote: Invalid Memory Address
symptom.image-pull | images can't be pulled
cluster.images | images can't be pulled, in the cluster
pod.native-resource | Pods that ask for nvidia.com/gpu
test_an_error_that_can_be_ignored | to be ignored: prctl(PR_SVE_GET_VL)
""",
)
ARTICLE = _symptoms(
    "article",
    """
driver.kernel-match | 2.1: built for another kernel
driver.secure-boot | 2.1: Secure Boot
driver.device-files | 2.1: device files are missing
driver.unified-memory | 2.1: /dev/nvidia-uvm is missing
registration.plugin | 2.2: the plugin does not run
registration.plugin-log | 2.2: failed to initialize NVML
pod.native-resource | 2.2: another resource name
allocatable.feature-gate | 2.3: the gate DevicePlugins
registration.kubelet-socket | 2.3: the kubelet's socket
scheduling.taints | 2.3: taints
allocatable.node-object | 2.3: not in Allocatable
allocatable.node-ready | 2.3: the node is not Ready
pod.extended-resources | 2.4: requests and limits differ
scheduling.topology-manager | 2.4: topology
pod.node-selector | 2.4: labels and affinity
runtime.handler | 2.5: no nvidia runtime
runtime.toolkit | 2.5: a toolkit that is too old
pod.device-files | 2.5: no device in the container
symptom.no-kernel-image | 2.5: no kernel image is available
symptom.insufficient-native | 3.1 A: Insufficient nvidia.com/gpu
symptom.selector | 3.1 B: node selector
symptom.sandbox | 3.1 C: the sandbox can't be made
driver.module-loaded | 3.3: lsmod has no nvidia
cluster.device-plugin | 3.2: the plugin's DaemonSet
pod.memory | 3.4: OOM Killed
driver.probe | 4.1: the probe of a card failed
pci.memory-windows | 4.1: SR-IOV and memory windows
registration.count | 4.1: four cards and two registered
memory.fragmentation | 4.2: free in pieces
runtime.cuda-version | 4.3: driver and CUDA
symptom.driver-insufficient | 4.3: driver version is insufficient
pod.threads | 4.4: a hang in futex
runtime.process-limits | 4.4: ulimit -u
driver.hang | 4.4: a task in D
cluster.zero-allocatable | 4.5: a zero that was copied
hypervisor.ready | 4.5: the circuit breaker holds
memory.sources-agree | 5.3: more than 15 % between sources
scheduling.failures | 3.1: reasons of FailedScheduling
cluster.scheduling | 5.3: the ten most frequent reasons
""",
)
