"""The course of the demonstration: start everything, watch, change a limit, kill the daemon, judge."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypervisor.demo.processes import (
    DemoError,
    Processes,
    client_program,
    command,
    hypervisor,
    query,
    wait_for,
)
from hypervisor.demo.screen import Screen
from hypervisor.demo.table import Row, format_table
from hypervisor.demo.truth import DriverTruth, LedgerTruth, Sample, Truth, read_lines
from hypervisor.demo.verdict import Finding, achieved, judge_compute, judge_memory, why_starved
from hypervisor.demo.workloads import GreedyProgram, Workload, workloads

PROFILE = "h100-sxm-80gb"
LEAST_SECONDS = 12.0
MOST_SECONDS = 86_400.0
TICK_SECONDS = 0.25
SHOWN_WINDOW_SECONDS = 2.0
CHANGE_AT = 0.4
KILL_AT = 0.7
RESTART_AFTER = 0.1


@dataclass
class Course:
    """What is known so far; one task writes it."""

    processes: Processes
    screen: Screen
    directory: Path
    machine: Path | None
    samples: list[Sample] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def server(self) -> str:
        return f"unix:{self.directory / 'hypervisor.sock'}"

    @property
    def admin(self) -> str:
        return f"unix:{self.directory / 'admin.sock'}"

    @property
    def owner(self) -> str:
        return f"unix:{self.directory / 'owner.sock'}"

    @property
    def aggregator(self) -> str:
        return f"unix:{self.directory / 'aggregator.sock'}"

    def found(self, holds: bool, text: str) -> None:  # noqa: FBT001 - reads as a sentence
        self.findings.append(Finding(holds=holds, text=text))


def run_demo(*, seconds: float, simulate: bool, screen: Screen) -> bool:
    """The whole demonstration; True when every limit held. Raises DemoError when it can't go on."""
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise DemoError(f"--seconds {seconds:g} can't be judged; give {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hypervisor-demo-")))
        processes = stack.enter_context(Processes(directory))
        course = Course(
            processes=processes,
            screen=screen,
            directory=directory,
            machine=directory / "machine" if simulate else None,
        )
        _start_services(course)
        gpus = query("get", "gpus", "--server", course.server)["items"]
        programs = workloads(gpu_count=len(gpus), vram_bytes=min(int(gpu["capacity"]["vram"]["bytes"]) for gpu in gpus))
        greedy = GreedyProgram(gpu=min(2, len(gpus) - 1))
        screen.say(
            f"{len(gpus)} x {gpus[0]['model']}{', simulated' if simulate else ''}; every program is started with"
        )
        screen.say("  hypervisor exec --gpu N --compute P% --vram BYTES -- PROGRAM")
        truth: Truth = (
            LedgerTruth(course.machine)
            if course.machine
            else DriverTruth(lambda: query("get", "pods", "--server", course.server), time.monotonic)
        )
        _start_programs(course, programs, greedy, seconds)
        _watch(course, truth, programs, seconds)
        _judge(course, truth, programs, greedy)
    for finding in course.findings:
        screen.say(f"{'held  ' if finding.holds else 'BROKEN'} {finding.text}")
    every = all(finding.holds for finding in course.findings)
    if not every and (words := why_starved(os.getloadavg()[0], os.cpu_count() or 1)):
        screen.say(words)
    return every


def _start_services(course: Course) -> None:
    if course.machine:
        command("sim", "create", PROFILE, "--machine", str(course.machine))
    course.processes.start(
        "aggregator",
        hypervisor(
            "aggregator",
            "--listen",
            course.aggregator,
            "--store",
            str(course.directory / "aggregator.db"),
            "--http-listen",
            "127.0.0.1:0",
            *(("--allow-simulated",) if course.machine else ()),
        ),
    )
    _start_daemon(course)
    wait_for(
        "the node's GPUs",
        lambda: _has_gpus(course),
        course.processes,
        ("daemon", "aggregator"),
        reason=lambda: _conditions(course),
    )


def _start_daemon(course: Course) -> None:
    course.processes.start(
        "daemon",
        hypervisor(
            "run",
            *(("--simulate", str(course.machine)) if course.machine else ()),
            *("--listen", course.server, "--admin-listen", course.admin, "--owner-listen", course.owner),
            *("--base-dir", str(course.directory / "shm"), "--state-dir", str(course.directory / "state")),
            *("--report-to", course.aggregator, "--http-port", "0", "--node-name", "demo"),
        ),
    )


def _has_gpus(course: Course) -> bool:
    try:
        return bool(query("get", "gpus", "--server", course.server)["items"])
    except DemoError:
        return False


def _conditions(course: Course) -> str:
    """What the node itself says of its trouble."""
    try:
        nodes = query("get", "nodes", "--server", course.server)["items"]
    except DemoError as error:
        return str(error)
    found = [condition["message"] for node in nodes for condition in node.get("conditions", [])]
    return "; ".join(found)


def _environment(course: Course, name: str) -> Mapping[str, str]:
    if course.machine is None:
        return os.environ
    from hypervisor.simulation.environment import environment

    # SIM_GROUP names the program in the simulator's ledger.
    return {**environment(course.machine), "SIM_GROUP": name}


def _exec(course: Course, name: str, gpu: int, *limits: str) -> list[str]:
    return hypervisor("exec", "--server", course.owner, "--name", name, "--gpu", str(gpu), *limits, "--")


def _start_programs(course: Course, programs: Sequence[Workload], greedy: GreedyProgram, seconds: float) -> None:
    client = client_program()
    for program in programs:
        course.limits[program.name] = program.percent / 100
        limits = ("--compute", f"{program.percent}%", "--vram", str(program.vram_bytes))
        course.processes.start(
            program.name,
            [
                *_exec(course, program.name, program.gpu, *limits),
                client,
                *program.client_arguments(seconds + 60),
            ],
            environment=_environment(course, program.name),
        )
    course.processes.start(
        greedy.name,
        [
            *_exec(course, greedy.name, greedy.gpu, "--vram", str(greedy.vram_bytes)),
            client,
            "--idle",
            f"--grow={greedy.step_bytes}",
            f"--seconds={seconds + 60:.0f}",
        ],
        environment=_environment(course, greedy.name),
    )
    names = [program.name for program in programs]
    wait_for(
        "the programs' first words",
        lambda: all(len(read_lines(course.processes.output(name))) >= 2 for name in [*names, greedy.name]),
        course.processes,
        [*names, greedy.name, "daemon"],
    )


def _watch(course: Course, truth: Truth, programs: Sequence[Workload], seconds: float) -> None:
    begin = time.monotonic()
    marks: dict[str, float] = {}
    before: dict[str, Any] = {}
    # On a machine with much else to do a turn may take seconds: what the course promises happens all the same, and the
    # programs are watched as long as planned after it.
    until = begin + seconds
    while (now := time.monotonic()) < until or "restart" not in marks:
        elapsed = now - begin
        sample = truth.sample()
        course.samples.append(sample)
        marks.setdefault("begin", sample.at_seconds)
        if elapsed >= seconds * CHANGE_AT and "change" not in marks:
            _change_limits(course, programs)
            marks["change"] = truth.sample().at_seconds
        if elapsed >= seconds * KILL_AT and "kill" not in marks:
            before = _allocations(course)
            course.processes.kill("daemon")
            marks["kill"] = truth.sample().at_seconds
            course.screen.say("the daemon was killed with -9; the programs go on under their limits")
        if elapsed >= seconds * (KILL_AT + RESTART_AFTER) and "restart" not in marks:
            _start_daemon(course)
            wait_for(
                "the daemon after its restart",
                lambda: _has_gpus(course),
                course.processes,
                ("daemon",),
                meanwhile=lambda: course.samples.append(truth.sample()),
            )
            marks["restart"] = truth.sample().at_seconds
            until = max(until, time.monotonic() + seconds * (1 - KILL_AT - RESTART_AFTER))
            course.found(
                _allocations(course) == before,
                f"daemon killed with -9 and restarted: the same {len(before)} allocations",
            )
        for program in programs:
            course.processes.check(program.name)
        _show(course, programs, f"{elapsed:4.0f} s of {seconds:.0f} s, measured by {truth.name}")
        time.sleep(TICK_SECONDS)
    course.samples.append(truth.sample())
    marks["end"] = course.samples[-1].at_seconds
    _judge_compute(course, programs, marks)


def _change_limits(course: Course, programs: Sequence[Workload]) -> None:
    for program in programs:
        if program.later_percent is None:
            continue
        command("set-limits", program.name, "--compute", f"{program.later_percent}%", "--server", course.admin)
        course.limits[program.name] = program.later_percent / 100
        course.screen.say(f"limit of {program.name} changed from {program.percent}% to {program.later_percent}%")


def _allocations(course: Course) -> dict[str, Any]:
    items = query("get", "pods", "--server", course.server)["items"]
    kept = ("uid", "createdAt", "directory", "phase")
    return {item["spec"]["allocationId"]: {key: item.get(key) for key in kept} for item in items}


def _show(course: Course, programs: Sequence[Workload], title: str) -> None:
    latest = course.samples[-1]
    since = latest.at_seconds - SHOWN_WINDOW_SECONDS
    rows = []
    for program in programs:
        usage = latest.programs.get(program.name)
        share = achieved(course.samples, program.name, begin=since, end=latest.at_seconds)
        rows.append(
            Row(
                name=program.name,
                gpu=program.gpu,
                limit_share=course.limits[program.name],
                achieved_share=share[0] if share else None,
                vram_limit_bytes=program.vram_bytes,
                held_bytes=usage.held_bytes if usage else 0,
                peak_bytes=usage.peak_bytes if usage else 0,
            )
        )
    course.screen.show(format_table(rows, title=title))


def _judge_compute(course: Course, programs: Sequence[Workload], marks: Mapping[str, float]) -> None:
    for program in programs:
        first = program.percent / 100
        later = (program.later_percent or program.percent) / 100
        phases = [
            ("before the change", first, marks["begin"], marks["change"]),
            ("after the change", later, marks["change"], marks["kill"]),
            ("from the daemon's death to the end", later, marks["kill"], marks["end"]),
        ]
        for phase, limit, begin, end in phases:
            course.findings.append(
                judge_compute(course.samples, program.name, limit=limit, begin=begin, end=end, phase=phase)
            )


def _judge(course: Course, truth: Truth, programs: Sequence[Workload], greedy: GreedyProgram) -> None:
    course.samples.append(truth.sample())
    for program in programs:
        course.findings.append(judge_memory(course.samples, program.name, limit_bytes=program.vram_bytes))
    course.findings.append(judge_memory(course.samples, greedy.name, limit_bytes=greedy.vram_bytes))
    lines = read_lines(course.processes.output(greedy.name))
    refusal = next((line for line in lines if line.get("refused")), None)
    alive = any(line.get("alive") for line in lines)
    held = refusal["held_bytes"] if refusal else 0
    course.found(
        refusal is not None and alive and held <= greedy.vram_bytes,
        f"{greedy.name}: refused at {held} of {greedy.vram_bytes} bytes with CUDA_ERROR_OUT_OF_MEMORY, and lives on",
    )
    objects = query("get", "gpus", "--server", course.aggregator)["items"]
    own = query("get", "gpus", "--server", course.server)["items"]
    course.found(
        {item["name"] for item in objects} == {gpu["uuid"].lower() for gpu in own},
        f"the aggregator lists {len(objects)} GPU objects of the node's {len(own)} GPUs",
    )
