"""Messages that people meet, with what they mean and what to do. A new symptom is one row.

The words are those of the handbook, the article and of bug reports.
"""

from __future__ import annotations

from hypervisor.doctor.check import Stage
from hypervisor.doctor.symptom import Place, Symptom
from hypervisor.model import Verdict

_NODE = "'hypervisor doctor node' on the Pod's node"
SYMPTOMS: tuple[Symptom, ...] = (
    # ---- the webhook turns the Pod away ----
    Symptom(
        id="pool-unknown",
        stage=Stage.ALLOCATABLE,
        place=Place.REJECTIONS,
        pattern=r"gpu pool\(?.*\)? ?does not exist",
        cause="the annotation tensor-fusion.ai/gpupool names no pool, or there is none and no default pool",
        remedy="take a name of 'kubectl get gpupool', or set isDefault: true on a pool of the TensorFusionCluster",
        source="handbook: turned away by the webhook",
    ),
    Symptom(
        id="request-missing",
        stage=Stage.ALLOCATABLE,
        place=Place.REJECTIONS,
        pattern=r"tflops request is not set",
        cause="the Pod asks for no share",
        remedy="add tensor-fusion.ai/tflops-request or compute-percent-request, and tensor-fusion.ai/vram-request",
        source="handbook: turned away by the webhook",
    ),
    Symptom(
        id="annotation-invalid",
        stage=Stage.ALLOCATABLE,
        place=Place.REJECTIONS,
        pattern=r"parse tf resources",
        cause="the value of an annotation can't be understood",
        remedy="compare the annotations with the reference: 8Gi, 312, 40",
        source="handbook: turned away by the webhook",
    ),
    Symptom(
        id="webhook-down",
        stage=Stage.ALLOCATABLE,
        place=Place.REJECTIONS,
        pattern=r"failed calling webhook .*mpod\.tensor-fusion\.ai",
        cause="no replica of the controller is ready, or its certificate is not valid; labelled Pods can't be made"
        " meanwhile",
        remedy="see 'hypervisor doctor cluster', cluster.controller",
        source="handbook: turned away by the webhook",
    ),
    Symptom(
        id="request-unequal-limit",
        stage=Stage.ALLOCATABLE,
        place=Place.REJECTIONS,
        pattern=r"(must be equal to|invalid request for extended resource|Limit must be set for non overcommitable)",
        cause="requests and limits of an extended resource (nvidia.com/gpu) differ; the API server refuses the Pod",
        remedy="give limits only, or the same number in both",
        source="article 2.4; it is the API server and not the scheduler that refuses (nvidia-stack.md 7.4)",
    ),
    # ---- the scheduler finds no place ----
    Symptom(
        id="capacity",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"^GPUQuotaOrCapacityNotEnough",
        cause="no GPU has the TFLOPS and the VRAM that are asked for, or the namespace's GPUResourceQuota is used up",
        remedy="compare the request with 'hypervisor get gpus' (AVAILABLE) and 'kubectl get gpuresourcequota -n NS';"
        " ask"
        " for less, make room, or raise the quota",
        source="handbook: pending; events reference",
    ),
    Symptom(
        id="gpu-not-fit",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"GPU not fit",
        cause="GPUs have the room and fail another condition: model, indices, vendor, or the isolation mode, of which a"
        " card has one at a time",
        remedy="compare gpu-model, gpu-indices and isolation with MODEL and ISOLATION of 'hypervisor get gpus -o wide'",
        source="handbook: pending",
    ),
    Symptom(
        id="hypervisor-unhealthy",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"hypervisor likely unhealthy|tensor-fusion\.ai/index_\w+ allocatable is <= 0",
        cause="the daemon of that node is down, so that its index resources are gone",
        remedy=f"run {_NODE}",
        source="handbook: pending; hypervisor Pod not ready",
    ),
    Symptom(
        id="gang",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"gang scheduling timeout|^Gang(WaitingForMembers|SchedulingTimeout|StrictRejected)",
        cause="the Pod belongs to a group whose members can't all be placed at once",
        remedy="make room for the whole group, or lower tensor-fusion.ai/gang-min-members",
        source="handbook: pending; events reference: gang scheduling",
    ),
    Symptom(
        id="partition-template",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"^PartitionTemplateMatchFailed",
        cause="no MIG profile fits what is asked for",
        remedy="ask for what a profile has ('nvidia-smi mig -lgip'), or use isolation soft",
        source="events reference: scheduling and GPU allocation",
    ),
    Symptom(
        id="topology",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"^GPUInterconnectTopologyUnsatisfied|TopologyAffinityError",
        cause="no node has so many GPUs as close together as the Pod demands",
        remedy="ask for fewer GPUs or a weaker topology, or make room on one NUMA node",
        source="events reference: GPU topology; article 2.4",
    ),
    Symptom(
        id="insufficient-native",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"Insufficient nvidia\.com/",
        cause="no node offers that resource in that number: no NVIDIA device plugin has registered it, or all are"
        " taken."
        " TensorFusion itself registers no nvidia.com/gpu",
        remedy="'hypervisor doctor node' on a GPU node, registration and allocatable; or ask for a share with the"
        " tensor-fusion.ai labels instead",
        source="article 3.1 A; handbook: Pods that ask for nvidia.com/gpu",
    ),
    Symptom(
        id="selector",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"didn't match (Pod's )?node (selector|affinity)",
        cause="no node has the labels that the Pod's nodeSelector or affinity asks for",
        remedy="compare them with 'kubectl get nodes --show-labels'; a letter is enough",
        source="article 2.4 and 3.1 B",
    ),
    Symptom(
        id="untolerated-taint",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"untolerated taint|had taint",
        cause="GPU nodes are tainted, and the Pod does not tolerate it",
        remedy="add the toleration to the Pod's spec",
        source="article 2.3 and the table of 3.4; handbook: pending for ordinary reasons",
    ),
    Symptom(
        id="node-resources",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"Insufficient (cpu|memory|ephemeral-storage|pods)",
        cause="a GPU would fit, and the node has no CPU, memory or Pod left",
        remedy="lower those requests, as for any Pod",
        source="handbook: pending for ordinary reasons",
    ),
    Symptom(
        id="device-ids",
        stage=Stage.SCHEDULING,
        place=Place.EVENTS,
        pattern=r"^(GPUDeviceAllocatedFailed|ContainerGPUAllocationFailed|CommitFailed)",
        cause="the scheduler chose GPUs and could not write the grant",
        remedy="look at the controller's log for the API server's answer; the scheduler tries again",
        source="events reference: scheduling and GPU allocation",
    ),
    # ---- the container can't start ----
    Symptom(
        id="sandbox",
        stage=Stage.RUNTIME,
        place=Place.EVENTS,
        pattern=r"FailedCreatePodSandBox.*(nvidia|runtime|handler)|no runtime for \"?nvidia",
        cause="the container runtime has no handler of the name that the Pod's runtimeClassName asks for, or that"
        " failed",
        remedy=f"run {_NODE}, runtime.handler and runtime.toolkit",
        source="article 3.1 C and 2.5",
    ),
    Symptom(
        id="container-cli",
        stage=Stage.RUNTIME,
        place=Place.EVENTS,
        pattern=r"nvidia-container-cli|unresolvable CDI devices|failed to inject CDI",
        cause="the NVIDIA runtime could not hand the devices over: a dead card, an old CDI file, or a driver too old"
        " for"
        " the image",
        remedy=f"run {_NODE}, runtime.dead-card, runtime.cdi-current and runtime.cuda-version",
        source="nvidia-stack.md 7.2 and 9.1 row 20",
    ),
    Symptom(
        id="admission",
        stage=Stage.RUNTIME,
        place=Place.STATES,
        pattern=r"UnexpectedAdmissionError",
        cause="the kubelet admitted the Pod before its device plugin had registered, after a restart of the node",
        remedy="delete the Pod; its controller makes another",
        source="nvidia-stack.md 9.3 row 42",
    ),
    Symptom(
        id="webhook-secret",
        stage=Stage.RUNTIME,
        place=Place.EVENTS,
        pattern=r"tensor-fusion-webhook-secret",
        cause="the webhook's certificate was not made: that is a Helm hook, which 'helm template | kubectl apply'"
        " leaves"
        " out",
        remedy="install or upgrade with 'helm upgrade --install'",
        source="handbook: the controller restarts again and again",
    ),
    Symptom(
        id="init-limiter-image",
        stage=Stage.RUNTIME,
        place=Place.STATES,
        pattern=r"^init-(soft-limiter|runtime|shm): (ImagePullBackOff|ErrImagePull)",
        cause="the node can't pull the provider or hypervisor image",
        remedy="set providerConfigs.nvidia.images.middleware and cluster.hypervisorImage to a registry that the node"
        " reaches, with imagePullSecrets where needed",
        source="handbook: stuck in Init; hypervisor Pod not ready; images can't be pulled",
    ),
    Symptom(
        id="inject-lib-image",
        stage=Stage.RUNTIME,
        place=Place.STATES,
        pattern=r"^inject-lib: (ImagePullBackOff|ErrImagePull)",
        cause="the node can't pull the client image",
        remedy="set providerConfigs.nvidia.images.remoteClient to a registry that the node reaches",
        source="handbook: stuck in Init",
    ),
    Symptom(
        id="image-pull",
        stage=Stage.RUNTIME,
        place=Place.STATES,
        pattern=r"^(?!init-|inject-lib)\S+: (ImagePullBackOff|ErrImagePull)",
        cause="the node can't pull the image: no way to the registry, or no credentials",
        remedy="set up a mirror on the node or imagePullSecrets; in mainland China use values-cn.yaml",
        source="handbook: images can't be pulled",
    ),
    Symptom(
        id="no-shell",
        stage=Stage.RUNTIME,
        place=Place.STATES,
        pattern=r"^tf-soft-preload-\d+: .*(StartError|RunContainerError|CreateContainerError|exec|no such file|"
        r"ContainerCannotRun)",
        cause="this init container runs in the application's image and needs /bin/sh, cat and chmod, which distroless"
        " and"
        " scratch images do not have",
        remedy="use an image with a shell, or another isolation mode",
        source="handbook: stuck in Init",
    ),
    Symptom(
        id="toolkit-validation",
        stage=Stage.RUNTIME,
        place=Place.LOGS,
        pattern=r"waiting for nvidia container stack to be setup",
        cause="the Pod waits for /run/nvidia/validations/toolkit-ready, which the GPU Operator writes",
        remedy="mend the GPU Operator on the node; without one set controller.compatibleWithNvidiaContainerToolkit to"
        " false",
        source="handbook: hypervisor Pod not ready",
    ),
    Symptom(
        id="accelerator-library",
        stage=Stage.RUNTIME,
        place=Place.LOGS,
        pattern=r"failed to load accelerator library",
        cause="TF_ACCELERATOR_LIB_PATH names no library, or the driver's libraries are not in the container",
        remedy="see that nvidia-smi works on the node and that the NVIDIA Container Toolkit is set up; the log says"
        " what"
        " was tried",
        source="handbook: hypervisor Pod not ready; nvidia-stack.md 9.2 row 22",
    ),
    Symptom(
        id="port-in-use",
        stage=Stage.RUNTIME,
        place=Place.LOGS,
        pattern=r"(bind|listen).*(8001|http).*(in use|EADDRINUSE)|port 8001 .*in use|address already in use",
        cause="another program of the node has the port; with host networking a node has each port once",
        remedy="free it, or set componentConfig.hypervisor.portNumber (--http-port)",
        source="handbook: hypervisor Pod not ready",
    ),
    Symptom(
        id="crash-loop",
        stage=Stage.RUNTIME,
        place=Place.STATES,
        pattern=r"CrashLoopBackOff",
        cause="the container ends again and again",
        remedy="read its log from before the restart ('kubectl logs --previous') and the other symptoms here",
        source="handbook: HypervisorCrashLoopRecreate; remote workers restart again and again",
    ),
    # ---- the program fails ----
    Symptom(
        id="driver-insufficient",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"CUDA driver version is insufficient for CUDA runtime version",
        cause="the driver is older than the image's CUDA: drivers run older CUDA and not newer",
        remedy="upgrade the driver, or use an image of an older CUDA; see pod.cuda-version. (A newer image, as the"
        " article"
        " has it, makes it worse)",
        source="article 4.3",
    ),
    Symptom(
        id="no-kernel-image",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"no kernel image is available for execution on the device",
        cause="the program has no code for this card's compute capability; driver and CUDA versions are not the matter",
        remedy="use a build for this card (torch.cuda.get_arch_list() must have its sm_XX), or build it with it",
        source="article 2.5, which blames the CUDA version",
    ),
    Symptom(
        id="version-mismatch",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"[Dd]river/library version mismatch",
        cause="libraries and kernel module are of different driver versions",
        remedy=f"run {_NODE}, driver.version-match; make the Pod anew afterwards",
        source="nvidia-stack.md 9.2 row 23",
    ),
    Symptom(
        id="nvml-function",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"NVML Function Not Found|NVML_ERROR_FUNCTION_NOT_FOUND|undefined symbol: nvml|"
        r"symbol lookup error.*nvml",
        cause="libnvidia-ml.so.1 is older than its caller, or another file of that name is found first",
        remedy="see pod.driver-libraries: which file is mapped; set TF_NVML_LIB_PATH to the driver's",
        source="handbook: CUDA or NVML library errors; nvidia-stack.md 9.2 rows 24, 26 and 30",
    ),
    Symptom(
        id="nvml-missing",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"libnvidia-ml\.so\.1: cannot open shared object|libcuda\.so\.1: cannot open shared object|"
        r"cuInit_fn != nullptr",
        cause="the driver's libraries are not in the container, or not where they are looked for",
        remedy="set up the NVIDIA Container Toolkit; where they lie elsewhere, set TF_CUDA_LIB_PATH and"
        " TF_NVML_LIB_PATH",
        source="handbook: CUDA or NVML library errors",
    ),
    Symptom(
        id="no-device",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"device >= 0 && device < num_gpus|no CUDA-capable device is detected|No CUDA GPUs are available",
        cause="the program sees no device: the Pod was not injected, or its devices were not handed over",
        remedy="see pod.preload, pod.visible-devices and pod.device-files",
        source="handbook: CUDA or NVML library errors, PyTorch sees no device",
    ),
    Symptom(
        id="out-of-memory",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_ALLOC_FAILED",
        cause="an allocation was refused: at the Pod's own limit, on a full card, or by a framework's large"
        " reservation",
        remedy="pod.memory says which of the three; raise the limit, set request to limit, or bound the reservation",
        source="handbook: CUDA out of memory",
    ),
    Symptom(
        id="devices-busy",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"all CUDA-capable devices are busy or unavailable",
        cause="the card is in exclusive-process mode, and another process or an MPS server has it",
        remedy="nvidia-smi -c DEFAULT -i INDEX, or mount the MPS pipe directory into the Pod",
        source="nvidia-stack.md 9.5 row 80",
    ),
    Symptom(
        id="not-ready",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized",
        cause="the Pod's limit file is missing or not armed, or on an NVSwitch machine the fabric manager does not run",
        remedy="see pod.limit-file; on the node 'systemctl status nvidia-fabricmanager'",
        source="DESIGN 4.3",
    ),
    Symptom(
        id="remote-symbol",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"named symbol not found|call api=\w+ failed",
        cause="the program calls what remote GPUs do not support; the worker's log names it (cuMemAddressReserve comes"
        " from PyTorch's expandable segments)",
        remedy="unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or whatever makes the call, or use a local GPU",
        source="handbook: remote GPU workloads",
    ),
    Symptom(
        id="remote-address",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"Invalid Memory Address",
        cause="a rare conflict with the worker's memory manager",
        remedy="annotate the workload with tensor-fusion.ai/disable-features: mem-manager",
        source="handbook: remote GPU workloads",
    ),
    Symptom(
        id="harmless-sve",
        stage=Stage.WORKLOAD,
        place=Place.LOGS,
        pattern=r"prctl\(PR_SVE_GET_VL\) failed",
        cause="",
        remedy="",
        source="handbook: errors to ignore (ARM image on a CPU without SVE)",
        verdict=Verdict.PASS,
    ),
)
