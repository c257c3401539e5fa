"""The control daemon of MPS on a simulated machine.

Verbs, answers and quirks by NVIDIA's own description: defaults count for the next server only and go with the daemon,
a device is not checked, one user at a time unless it serves several. Its faults come from the file `faults` beside the
pipe directory, one word a line: hang, fault, refuse-limits (as before Volta), slow SECONDS, forget, no-answer-to VERB.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
LOG = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))
MOST_CLIENTS = int(os.environ.get("FAKE_MPS_CLIENTS", "48"))
LOAD = Path(__file__).resolve().parents[2] / "hypervisor/native/clients/load"
SERVER_NOT_READY, MAX_CLIENTS_REACHED = 807, 808


def faults() -> dict[str, str]:
    try:
        lines = (PIPE.parent / "faults").read_text().split("\n")
    except FileNotFoundError:
        return {}
    return {line.split(" ", 1)[0]: line.partition(" ")[2] for line in lines if line}


class Server:
    """A server for one user: a program on the simulated driver that holds the GPU for its clients."""

    def __init__(self, daemon: Daemon, uid: int) -> None:
        self.uid = uid
        self.percent = daemon.default_percent
        self.memory = dict(daemon.default_memory)
        self.clients: dict[int, socket.socket] = {}
        environment = dict(os.environ) | {"SIM_MPS_SERVER": "1"}
        self.process = subprocess.Popen(
            [str(LOAD), "--idle", "--seconds", "86400"], env=environment, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()  # it has its context
        self.pid = self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None


class Daemon:
    def __init__(self, arguments: list[str]) -> None:
        self.multiuser = "-multiuser-server" in arguments
        self.default_percent = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
        self.default_memory: dict[str, int] = {}
        self.servers: list[Server] = []
        self.lock = threading.Condition()
        self.devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")

    def say(self, text: str) -> None:
        with (LOG / "control.log").open("a") as file:
            file.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')} Control {os.getpid()}] {text}\n")
        print(text, flush=True)

    def run(self) -> None:
        PIPE.mkdir(parents=True, exist_ok=True)
        LOG.mkdir(parents=True, exist_ok=True)
        path = PIPE / "control"
        if path.exists():
            probe = socket.socket(socket.AF_UNIX)
            try:
                probe.connect(str(path))
            except OSError:
                # The real one too stumbles over what a killed one left.
                self.say("Failed to start: a stale control socket is in the way")
                sys.exit(1)
            self.say("An instance of this daemon is already running")
            sys.exit(1)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        path.chmod(0o777)
        listening.listen(64)
        (PIPE / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
        self.say("Starting control daemon")
        signal.signal(signal.SIGTERM, lambda *_: self.quit())
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def quit(self) -> None:
        for server in self.servers:
            server.process.kill()
        for name in ("control", "nvidia-cuda-mps-control.pid"):
            (PIPE / name).unlink(missing_ok=True)
        os._exit(0)

    def serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rw")
        line = stream.readline()
        if line.startswith("CLIENT "):
            self.client(connection, stream, int(line.split()[1]), int(line.split()[2]))
            return
        while line:
            active = faults()
            verb = line.split()[0] if line.split() else ""
            if "hang" in active or active.get("no-answer-to") == verb:
                return_never()
            if "slow" in active and verb.startswith("set"):
                time.sleep(float(active["slow"]))
            with (PIPE.parent / "commands").open("a") as file:
                file.write(line)
            with self.lock:
                answer = self.answer(line.split(), active)
            stream.write(answer + "\0")
            stream.flush()
            line = stream.readline()

    def answer(self, words: list[str], active: dict[str, str]) -> str:  # noqa: C901 - a row a verb
        alive = [server for server in self.servers if server.running]
        match words:
            case ["get_server_list"]:
                return "\n".join(str(server.pid) for server in alive)
            case ["get_server_status", pid]:
                found = self.named(pid)
                return "Server not found" if found is None else "FAULT" if "fault" in active else "ACTIVE"
            case ["start_server", "-uid", uid]:
                if not alive:
                    self.servers.append(Server(self, int(uid)))
                return ""
            case ["set_default_active_thread_percentage", percent]:
                if "refuse-limits" in active:
                    return "Failed to set default active thread percentage: invalid argument"
                if "forget" not in active:
                    self.default_percent = float(percent)
                return f"{float(percent):.1f}"
            case ["get_default_active_thread_percentage"]:
                return f"{self.default_percent:.1f}"
            case ["set_default_device_pinned_mem_limit", device, value]:
                if "forget" not in active:
                    self.default_memory[device] = amount(value)
                return ""
            case ["get_default_device_pinned_mem_limit", device]:
                found_bytes = self.default_memory.get(device)
                return spelled(found_bytes)
            case ["set_active_thread_percentage", pid, percent]:
                found = self.named(pid)
                if found is None:
                    return "Server not found"
                found.percent = float(percent)
                return f"{found.percent:.1f}"
            case ["set_device_pinned_mem_limit", pid, device, value]:
                found = self.named(pid)
                if found is None:
                    return "Server not found"
                found.memory[device] = amount(value)
                return ""
            case ["get_active_thread_percentage", pid]:
                found = self.named(pid)
                return "Server not found" if found is None else f"{found.percent:.1f}"
            case ["get_device_pinned_mem_limit", pid, device]:
                found = self.named(pid)
                if found is None:
                    return "Server not found"
                return spelled(found.memory.get(device))
            case ["get_client_list", pid]:
                found = self.named(pid)
                return "Server not found" if found is None else "\n".join(map(str, found.clients))
            case ["terminate_client", pid, client]:
                found = self.named(pid)
                if found is None or int(client) not in found.clients:
                    return "Client not found"
                found.clients.pop(int(client)).close()
                return ""
            case ["shutdown_server", pid, *_]:
                found = self.named(pid)
                if found is not None:
                    found.process.kill()
                return ""
            case ["quit", *_]:
                threading.Timer(0.01, self.quit).start()
                return ""
        return f'Unknown command "{words[0] if words else ""}"'

    def named(self, pid: str) -> Server | None:
        return next((server for server in self.servers if server.running and str(server.pid) == pid), None)

    def client(self, connection: socket.socket, stream: object, pid: int, uid: int) -> None:
        with self.lock:
            while True:
                alive = [server for server in self.servers if server.running]
                if not alive:
                    self.servers.append(Server(self, 0 if self.multiuser else uid))
                    continue
                server = alive[0]
                if self.multiuser or server.uid == uid:
                    break
                if server.clients:
                    self.lock.wait(0.05)  # of another user: until the clients of this one have gone
                else:
                    server.process.kill()
                    server.process.wait()
            if "fault" in faults():
                connection.sendall(f"ERROR {SERVER_NOT_READY}\n".encode())
                return
            if len(server.clients) >= MOST_CLIENTS:
                connection.sendall(f"ERROR {MAX_CLIENTS_REACHED}\n".encode())
                return
            server.clients[pid] = connection
        memory = "".join(
            f" {uuid}={server.memory[key]}"
            for ordinal, uuid in enumerate(self.devices)
            for key in (uuid, str(ordinal))
            if key in server.memory
        )
        connection.sendall(f"OK {server.pid} {server.percent}{memory}\n".encode())
        try:
            connection.recv(1)  # until it goes
        except OSError:
            pass
        with self.lock:
            server.clients.pop(pid, None)
            self.lock.notify_all()


def return_never() -> None:
    while True:
        time.sleep(3600)


def spelled(found: int | None) -> str:
    """As the real one spells it: nothing where there is no limit, from one gigabyte on whole ones, rounded down."""
    if found is None:
        return ""
    return f"{found >> 30}G" if found >= 2**30 else f"{found >> 20}M"


def amount(text: str) -> int:
    return int(text[:-1]) << {"G": 30, "M": 20}[text[-1]]


if __name__ == "__main__":
    Daemon(sys.argv[1:]).run()
