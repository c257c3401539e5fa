"""What runs in one cell of the matrix."""

from __future__ import annotations

from dataclasses import dataclass

MIXED = (20, 20, 20, 20, 100, 20, 20, 20000)  # most launches are short, most of the time is in one


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One Pod: how much it may have (in percent of GPU time; None: no limiter), and what it runs without end.

    Kernels are in microseconds and launched in turn, after change_ms those of later; or, where same is set, the same
    functions, which take as long as those of later from then on. Each process launches into its streams in turn.

    Several devices run an exchange: none goes on before all have ended a round. One process has all of them, two have
    half of them each, and of more each has one; where there are more than devices, they are several jobs with an
    exchange each. With ranks there is one process for each device, and all meet after each launch.
    """

    percent: float | None
    kernels: tuple[int, ...] = (1000,)
    kernels_each: tuple[tuple[int, ...], ...] = ()  # of each process, where they are not all the same
    grid: int = 108
    form: str = "plain"
    processes: int = 1
    streams: int = 1
    devices: int = 1
    ranks: bool = False
    wait: bool = False
    later: tuple[int, ...] = ()
    change_ms: int = 0
    same: bool = False
    stop_ms: int | None = None  # nothing more is launched from then on
    burst_ms: float = 10.0
    work_conserving: bool = False
    charge_copies: bool = False
    request: float | None = None  # guaranteed, in percent; None: as the limit

    @property
    def process_count(self) -> int:
        """Processes of the Pod."""
        return self.devices if self.ranks else self.processes

    @property
    def own_devices(self) -> int:
        """Devices of each process."""
        return 1 if self.ranks else max(self.devices // self.processes, 1)

    @property
    def job(self) -> int:
        """Processes that run one exchange."""
        return self.devices // self.own_devices

    @property
    def on_a_device(self) -> int:
        """Processes on each device."""
        return self.process_count // self.job if self.devices > 1 else self.processes

    @property
    def share(self) -> float:
        return 1.0 if self.percent is None else self.percent / 100

    @property
    def longest_us(self) -> int:
        """The longest piece of work that one launch of this Pod starts."""
        return max(self.kernels + self.later) * (50 if self.form == "graph" else 1)

    @property
    def charge_us(self) -> float:
        """How long the launch is, in the mean, in which a moment of this Pod's GPU time lies: of a mix whose time is
        mostly in one long kernel, about that."""
        return sum(each * each for each in self.kernels) / sum(self.kernels) * (50 if self.form == "graph" else 1)

    def __str__(self) -> str:
        kernels = "mix" if self.kernels == MIXED else ",".join(map(str, self.kernels)) + " us"
        limit = "no limit" if self.percent is None else f"{self.percent:g} %"
        return (
            f"{limit}, {kernels}, grid {self.grid}, {self.form}, "
            f"{self.processes} processes, {self.streams} streams"
            + (f", {self.devices} devices" if self.devices > 1 else "")
            + (", a process for each" if self.ranks else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Pods on the same devices; the first is judged. The daemon ends after daemon_seconds (None: it stays)."""

    pods: tuple[Load, ...]
    daemon_seconds: float | None = None
    seconds: float | None = None  # None: by the rule of the window

    @property
    def window_seconds(self) -> float:
        """max(10 s, 100 charges over the share), as the numbers are defined."""
        first = self.pods[0]
        return self.seconds or max(10.0, 100 * first.charge_us / 1e6 / first.share)

    @property
    def points(self) -> float:
        """How far from its limit the first Pod may be: a point alone on one device, two beside others and over several
        devices that wait for each other."""
        return 1.0 if len(self.pods) == 1 and self.pods[0].devices == 1 else 2.0

    def reachable(self, pod: int) -> float:
        """The share that a Pod can have: its limit, unless neighbours without one leave less. The device gives each
        process turns of the same length."""
        processes = sum(load.on_a_device for load in self.pods if load.percent is None)
        own = self.pods[pod]
        if own.percent is None or not processes:
            return own.share
        return min(own.share, own.on_a_device / (own.on_a_device + processes))

    @property
    def leaves_unknown(self) -> bool:
        """Does nobody know what neighbours leave? An exchange waits for devices on which it is not its turn, and has
        then fewer turns than there are; also beside one that is limited."""
        return self.pods[0].devices > 1 and len(self.pods) > 1

    def __str__(self) -> str:
        text = str(self.pods[0])
        for neighbour in self.pods[1:]:
            text += f"; beside: {neighbour}"
        return text + ("" if self.daemon_seconds is None else f"; no daemon after {self.daemon_seconds:g} s")
