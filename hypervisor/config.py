"""The settings of the daemon: one typed object, from defaults < file < environment < flags.

Each field says in its metadata what it means and whether SIGHUP may change it. The command line's flags, the
environment variables (HYPERVISOR_ and the name in capitals) and the keys of the TOML file are made from the fields,
so that a new setting is one field.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

ENVIRONMENT_PREFIX = "HYPERVISOR_"
# A label as Kubernetes has them: a name, with or without a domain before it, and a value that may be empty.
_LABEL = (
    r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
    r"=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
)


class SettingsError(ValueError):
    """A setting that can't be used; the text names the source, the setting and what is allowed."""


def _setting(text: str, *, reload: bool = False, **bounds: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, extra={"reload": reload}, **bounds)


def runtime_directory() -> Path:
    """Where sockets lie by default: /run/hypervisor for root, the user's runtime directory otherwise."""
    if os.geteuid() == 0:
        return Path("/run/hypervisor")
    return Path(os.environ.get("XDG_RUNTIME_DIR", f"/tmp/hypervisor-{os.geteuid()}")) / "hypervisor"  # noqa: S108


def state_directory() -> Path:
    """Where state is kept by default: /var/lib/hypervisor for root, the user's state directory otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/hypervisor")
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "hypervisor"


def default_base_directory() -> Path:
    """Where limit files lie by default."""
    if os.geteuid() == 0:
        return Path("/run/tensor-fusion/shm")
    return runtime_directory() / "shm"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of `hypervisor run`. Empty text means the default that the description names."""

    simulate: Annotated[str, _setting("Profile or machine file of a simulated machine to run on, for trying out")] = ""
    node_name: Annotated[str, _setting("Name of this node; the host name by default")] = ""
    node_label: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=_LABEL)], ...],
        _setting("Labels of this node, NAME=VALUE, by which pools select it; may be given several times"),
    ] = ()
    listen: Annotated[
        tuple[str, ...],
        _setting("Addresses of the gRPC API for queries, unix:PATH or HOST:PORT; may be given several times"),
    ] = ()
    admin_listen: Annotated[str, _setting("Address of the socket that may change something, unix:PATH")] = ""
    owner_listen: Annotated[
        str, _setting("Address of the socket on which a process asks for a share of its own, unix:PATH")
    ] = ""
    insecure: Annotated[bool, _setting("Allow gRPC on TCP without encryption and without authentication")] = False
    tls_dir: Annotated[
        str,
        _setting(
            "Directory of ca.crt, tls.crt and tls.key for gRPC on TCP, here and to the aggregator; read again when "
            "they change"
        ),
    ] = ""
    http_listen: Annotated[str, _setting("Host on which /metrics and the page are served")] = "127.0.0.1"
    http_port: Annotated[int, _setting("Port of /metrics and the page; 0 takes any free one", ge=0, le=65535)] = 8001
    base_dir: Annotated[str, _setting("Directory of the limit files, best a tmpfs of its own")] = ""
    state_dir: Annotated[str, _setting("Directory of what must survive a restart")] = ""
    report_to: Annotated[str, _setting("Address of the aggregator, HOST:PORT or unix:PATH; none by default")] = ""
    report_token: Annotated[
        str, _setting("File of the ServiceAccount token that says to the aggregator which node this is")
    ] = ""
    catalogue: Annotated[str, _setting("TOML file with models that override the built-in catalogue", reload=True)] = ""
    xid_policy: Annotated[
        str, _setting("TOML file with Xid errors whose treatment differs from the built-in policy", reload=True)
    ] = ""
    host_root: Annotated[
        str, _setting("Directory under which the host's /dev, /proc, /run and /sys are found; / by default")
    ] = ""
    unified_memory_ratio: Annotated[
        float,
        _setting("Share of the host's memory that a GPU without memory of its own offers", reload=True, gt=0, le=1),
    ] = 0.8
    tflops_ratio: Annotated[
        float, _setting("Requests of TFLOPS may sum up to capacity times this", reload=True, gt=0, le=100)
    ] = 1.0
    vram_ratio: Annotated[
        float, _setting("Requests of VRAM may sum up to capacity times this", reload=True, gt=0, le=100)
    ] = 1.0
    reading_interval_seconds: Annotated[
        float, _setting("Time between two readings of the GPUs", reload=True, ge=0.05, le=60)
    ] = 1.0
    reading_timeout_seconds: Annotated[
        float,
        _setting("Time after which a reading counts as hung and the reader is restarted", reload=True, ge=1, le=600),
    ] = 10.0
    health_hold_seconds: Annotated[
        float,
        _setting("Time for which a GPU must look well before a fault of it is forgotten", reload=True, ge=0, le=3600),
    ] = 30.0
    doctor_interval_seconds: Annotated[
        float,
        _setting("Time between two runs of the doctor's checks of the node; 0: none", reload=True, ge=0, le=86400),
    ] = 600.0
    control_interval_seconds: Annotated[
        float, _setting("Time between two steps of the compute control", reload=True, ge=0.02, le=10)
    ] = 0.1
    burst_milliseconds: Annotated[
        float, _setting("GPU time that a workload may use ahead of its share", reload=True, ge=0.1, le=1000)
    ] = 10.0
    debt_milliseconds: Annotated[
        float, _setting("Most GPU time that is carried as debt and repaid", reload=True, ge=1, le=600_000)
    ] = 10_000.0
    charge_copies: Annotated[bool, _setting("Charge memset and copies within a device as GPU time", reload=True)] = (
        False
    )
    context_mebibytes: Annotated[
        int, _setting("VRAM of a CUDA context until it is measured; 0: by GPU", reload=True, ge=0, le=65536)
    ] = 0
    journal_events: Annotated[int, _setting("Events that the journal keeps", reload=True, ge=100, le=1_000_000)] = (
        10_000
    )
    shutdown_seconds: Annotated[float, _setting("Time that a stop may take", ge=0.5, le=60)] = 4.0
    kubernetes: Annotated[
        bool, _setting("Serve the Pods of this node: kubelet's device plugin API, annotations, events on Pods")
    ] = False
    kubeconfig: Annotated[
        str, _setting("Kubeconfig file; by default the service account of the Pod that the daemon runs in")
    ] = ""
    kubelet_dir: Annotated[str, _setting("Root directory of kubelet")] = "/var/lib/kubelet"
    pod_logs_dir: Annotated[
        str, _setting("Directory of the logs of Pods, which tells what lives when nobody else does")
    ] = "/var/log/pods"
    host_dir: Annotated[
        str, _setting("Directory of the host, at the same path here, for the library that Pods are given")
    ] = "/run/tensor-fusion"
    device_injection: Annotated[
        str,
        _setting(
            "How cards get into containers: environment (NVIDIA_VISIBLE_DEVICES and device nodes), nodes, or cdi",
            pattern="^(environment|nodes|cdi)$",
        ),
    ] = "environment"
    isolation_policy: Annotated[
        str,
        _setting(
            "dynamic: the first Pod of an idle card decides its mode; static: all Pods have the node's mode",
            pattern="^(dynamic|static)$",
        ),
    ] = "dynamic"
    isolation_mode: Annotated[
        str, _setting("The node's mode where the policy is static", pattern="^(shared|soft|hard|partitioned)$")
    ] = "soft"
    mig_geometry: Annotated[
        tuple[str, ...],
        _setting(
            "What cards are to be divided into by MIG, each 'CARD: PROFILE ...', for instance '0: 3g.40gb 4x1g.10gb'; "
            "CARD is an index, a UUID or all"
        ),
    ] = ()
    pod_resources_proxy: Annotated[
        str, _setting("Socket on which PodResources are served with real GPUs, unix:PATH; none by default")
    ] = ""
    cdi_dir: Annotated[str, _setting("Directory for CDI files, such as /var/run/cdi; none are written by default")] = ""
    preload_hook: Annotated[
        str,
        _setting(
            "Path of the hypervisor program on the host, whose `preload merge` then keeps what an image has in "
            "/etc/ld.so.preload; needs cdi-dir; by default the file of the image is covered"
        ),
    ] = ""
    allocations_dir: Annotated[str, _setting("Directory of TOML files that declare allocations; none by default")] = ""
    mps_program: Annotated[str, _setting("Control program of MPS, for hard isolation")] = "nvidia-cuda-mps-control"
    mps_dir: Annotated[
        str, _setting("Directory of the MPS control daemons' pipes and logs; in the state directory by default")
    ] = ""
    mps_multiuser: Annotated[
        bool, _setting("As root: one MPS server for the users of all clients; else a card serves one user at a time")
    ] = True
    mps_shm: Annotated[
        str,
        _setting("Directory of the host that MPS servers have as /dev/shm, given to the containers of their clients"),
    ] = "/dev/shm"  # noqa: S108 - that is where it is
    mps_exclusive: Annotated[
        bool,
        _setting("Put cards of hard isolation into exclusive-process mode; else hard limits are reported cooperative"),
    ] = True
    mps_probe_seconds: Annotated[
        float,
        _setting("Time between two looks at an MPS control daemon; three bad ones in a row end it", ge=0.05, le=60),
    ] = 5.0
    mps_prepare_seconds: Annotated[
        float, _setting("Time in which a card must be ready for a hard share that is asked for", ge=1, le=600)
    ] = 8.0
    mps_answer_seconds: Annotated[
        float, _setting("Time in which an MPS control daemon must answer a command", ge=0.1, le=60)
    ] = 3.0
    freeze_idle_seconds: Annotated[
        float,
        _setting(
            "An allocation that launches nothing for so long is frozen to host memory; 0: never", reload=True, ge=0
        ),
    ] = 0.0
    worker_launcher: Annotated[
        str,
        _setting(
            "Socket of a launcher (worker-shim --serve) in another unit or Pod, unix:PATH, in which workers are started"
        ),
    ] = ""
    worker_cgroup: Annotated[
        str, _setting("cgroup-v2 directory for workers, outside the daemon's own; auto, none, or a directory")
    ] = "auto"
    worker_grace_seconds: Annotated[
        float, _setting("Time between the request to a worker to stop and its kill", reload=True, ge=0, le=3600)
    ] = 10.0
    worker_backoff_seconds: Annotated[
        float, _setting("Wait before a worker that ended is started again, at first", ge=0.01, le=3600)
    ] = 0.25
    worker_backoff_most_seconds: Annotated[
        float, _setting("Longest wait before a worker that ends again and again is started", ge=0.01, le=86400)
    ] = 60.0
    worker_backoff_reset_seconds: Annotated[
        float, _setting("A worker that ran for so long has ended for the first time", ge=0.1, le=86400)
    ] = 60.0
    worker_log_mebibytes: Annotated[int, _setting("Size at which a worker's log is rotated", ge=1, le=1024)] = 1
    worker_most_processes: Annotated[
        int, _setting("Processes and threads that a worker may have, by its cgroup; 0: any number", ge=0, le=4194304)
    ] = 32768
    worker_log_files: Annotated[int, _setting("Logs that are kept of a worker besides the current", ge=0, le=99)] = 3
    log_level: Annotated[
        str, _setting("debug, info, warning or error", reload=True, pattern="^(debug|info|warning|error)$")
    ] = "info"

    @property
    def base_path(self) -> Path:
        return Path(self.base_dir) if self.base_dir else default_base_directory()

    @property
    def state_path(self) -> Path:
        return Path(self.state_dir) if self.state_dir else state_directory()

    @property
    def host_root_path(self) -> Path:
        return Path(self.host_root or "/")

    @property
    def node_labels(self) -> tuple[tuple[str, str], ...]:
        """Name and value of each label, by name; of a name that is given twice, the last."""
        found = dict(label.split("=", 1) for label in self.node_label)
        return tuple(sorted(found.items()))

    @property
    def read_addresses(self) -> tuple[str, ...]:
        return self.listen or (f"unix:{runtime_directory() / 'hypervisor.sock'}",)

    @property
    def admin_address(self) -> str:
        return self.admin_listen or f"unix:{runtime_directory() / 'admin.sock'}"

    @property
    def owner_address(self) -> str:
        return self.owner_listen or f"unix:{runtime_directory() / 'owner.sock'}"


def setting_names() -> tuple[str, ...]:
    """Names of all settings, in the order of their declaration."""
    return Settings.__struct_fields__


def describe(name: str) -> tuple[str, bool]:
    """What a setting means, and whether SIGHUP may change it."""
    meta = _meta(name)
    return meta.description or "", bool((meta.extra or {})["reload"])


@functools.cache
def _hints() -> dict[str, Any]:
    """Worked out once: the options of the command line ask for each field several times."""
    return get_type_hints(Settings, include_extras=True)


def _meta(name: str) -> msgspec.Meta:
    for part in get_args(_hints()[name]):
        if isinstance(part, msgspec.Meta):
            return part
    raise KeyError(name)


def bounds(name: str) -> str:
    """What a number may be, in words; "" where there are no bounds."""
    meta = _meta(name)
    words = (("above", meta.gt), ("from", meta.ge), ("to", meta.le))
    return " ".join(f"{word} {value:g}" for word, value in words if value is not None)


def kind(name: str) -> Any:
    """The plain type of a setting: str, int, float, bool, or a tuple of str."""
    return get_args(_hints()[name])[0]


def default(name: str) -> Any:
    """The default of a setting."""
    return dict(zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True))[name]


def load(*, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """The settings in force. Raises SettingsError that names the source of what is wrong.

    flags holds only what was given on the command line.
    """
    values = _validated(_from_file(file), f"file {file}") if file else {}
    values |= _validated(_from_environment(environment), "the environment")
    values |= _validated(dict(flags), "the command line")
    return msgspec.convert(values, Settings)


def changed(old: Settings, new: Settings) -> tuple[str, ...]:
    """Names of the settings that differ."""
    return tuple(name for name in setting_names() if getattr(old, name) != getattr(new, name))


def reloaded(old: Settings, new: Settings) -> tuple[Settings, tuple[str, ...]]:
    """old with the reloadable part of new, and the names of changed settings that need a restart."""
    differing = changed(old, new)
    pending = tuple(name for name in differing if not describe(name)[1])
    take = {name: getattr(new, name) for name in differing if name not in pending}
    return msgspec.structs.replace(old, **take), pending


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"can't read the settings file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {file} is not TOML: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in setting_names():
        text = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if text is None:
            continue
        if get_origin(kind(name)) is tuple:
            found[name] = tuple(part.strip() for part in text.split(",") if part.strip())
        else:
            found[name] = text
    return found


def _validated(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    unknown = sorted(set(values) - set(setting_names()))
    if unknown:
        raise SettingsError(f"{source} has {'; '.join(map(_unknown, unknown))}; docs/settings.md lists them all")
    strict = source.startswith("file")
    try:
        settings = msgspec.convert(dict(values), Settings, strict=strict)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source} has a setting that can't be used: {error}") from error
    return {name: getattr(settings, name) for name in values}


def _unknown(name: str) -> str:
    """What a name is called that is none of a setting, with those that may have been meant."""
    import difflib  # here only: the start of every command would wait for it

    close = " or ".join(f"'{each}'" for each in difflib.get_close_matches(name, setting_names(), n=2))
    return f"an unknown setting '{name[:60]}'" + (f" (did you mean {close}?)" if close else "")
