"""What must be right before an address is listened on, and after: directories, stale sockets, modes, holders."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from hypervisor.rpc.address import AddressError, TcpAddress, UnixAddress, parse_address
from hypervisor.rpc.holder import listener_of, tcp_port_holder

READ_MODE = 0o666
OWNER_MODE = 0o666
ADMIN_GROUP = "hypervisor"
_CONNECT_SECONDS = 1.0


class ListenError(Exception):
    """An address that can't be listened on; the text says which, why and what to do."""


def parse_listen(text: str, setting: str) -> UnixAddress | TcpAddress:
    """An address of a setting. Raises ListenError that names the setting."""
    try:
        return parse_address(text)
    except AddressError as error:
        raise ListenError(f"{setting}: {error}") from error


def parse_unix(text: str, setting: str) -> UnixAddress:
    """An address of a setting that takes unix sockets only. Raises ListenError."""
    address = parse_listen(text, setting)
    if isinstance(address, TcpAddress):
        raise ListenError(
            f"{setting}: {text} is a TCP address, and who may change something is decided by the mode of a unix "
            "socket; write it as unix:PATH"
        )
    return address


def admin_access() -> tuple[int, int]:
    """Mode and group (-1: as it comes) of the admin socket: the group hypervisor's where there is one, else ours."""
    try:
        group = grp.getgrnam(ADMIN_GROUP).gr_gid
    except KeyError:
        return 0o600, -1
    # Another user can give a socket to his own groups only.
    ours = os.geteuid() == 0 or group in (os.getegid(), *os.getgroups())
    return (0o660, group) if ours else (0o600, -1)


@contextmanager
def unix_socket_place(address: UnixAddress, *, mode: int, group: int = -1) -> Iterator[None]:
    """Holds the place of a unix socket while the block binds it; on leaving, mode and group are set.

    Makes the directory where it is missing, and removes a socket that nobody listens on any more. Raises ListenError
    when somebody does, or when the place can't be used.
    """
    path = address.path
    _make_directory(address)
    with _directory_lock(address):
        _remove_stale(address)
        # Made for nobody but us and then opened, so that no umask leaves a moment in which others may connect. The
        # umask is the process's own, and narrower for less than a millisecond.
        umask = os.umask(0o177)
        try:
            yield
        finally:
            os.umask(umask)
        try:
            if group != -1:
                os.chown(path, -1, group)
            path.chmod(mode)
        except OSError as error:
            raise ListenError(f"can't set the mode of {path}: {error.strerror}") from error


def remove_socket(address: UnixAddress, inode: int) -> None:
    """Remove our socket at shutdown, unless another one stands in its place."""
    try:
        if address.path.lstat().st_ino == inode:
            address.path.unlink()
    except OSError:
        return  # gone already, or its directory is


def explain_bind_failure(address: UnixAddress | TcpAddress, why: str) -> ListenError:
    """Why gRPC could not bind: asked again of the system, since gRPC's own words don't say."""
    if isinstance(address, UnixAddress):
        return ListenError(f"can't listen on {address}: {_unix_errno(address) or why}")
    error = _tcp_errno(address)
    if error == errno.EADDRINUSE:
        holder = tcp_port_holder(address.port)
        return ListenError(
            f"can't listen on {address}: the port is in use by {holder or 'another process'}; "
            "stop it, or choose another port with --listen"
        )
    return ListenError(f"can't listen on {address}: {os.strerror(error) if error else why}")


def _make_directory(address: UnixAddress) -> None:
    directory = address.path.parent
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        for missing in reversed([part for part in (directory, *directory.parents) if not part.exists()]):
            missing.mkdir(mode=mode, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise ListenError(f"can't make the directory of {address}: {error.strerror} ({error.filename})") from error
    if not stat.S_ISDIR(found.st_mode):
        raise ListenError(f"can't listen on {address}: {directory} is no directory")
    if os.geteuid() not in (0, found.st_uid) and found.st_uid != 0:
        raise ListenError(
            f"can't listen on {address}: {directory} belongs to another user (uid {found.st_uid}), who could put "
            "another socket in its place; choose a directory of your own"
        )
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise ListenError(
            f"can't listen on {address}: everybody may write in {directory} and could put another socket in its "
            f"place; mend it with 'chmod o-w {directory}'"
        )


@contextmanager
def _directory_lock(address: UnixAddress) -> Iterator[None]:
    """Two daemons that start at once look at the place one after the other."""
    try:
        descriptor = os.open(address.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ListenError(f"can't use the directory of {address}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(address: UnixAddress) -> None:
    path = address.path
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"can't listen on {address}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"can't listen on {address}: there is a file that is no socket; remove it or choose another")
    holder = _listening(address)
    if holder is not None:
        raise ListenError(f"can't listen on {address}: it is in use by {holder}; stop it, or choose another path")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ListenError(f"can't remove the stale socket {path}: {error.strerror}") from error


def _listening(address: UnixAddress) -> str | None:
    """Who listens there; None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(address.path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError as error:  # no right to connect, or a full backlog: somebody's in any case
            return f"another process ({error.strerror or error})"
        return listener_of(probe) or "a process outside our PID namespace"


def _unix_errno(address: UnixAddress) -> str | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(str(address.path))
        except OSError as error:
            return error.strerror
    address.path.unlink(missing_ok=True)
    return None


def _tcp_errno(address: TcpAddress) -> int | None:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OSError as error:
        return error.errno if error.errno and error.errno > 0 else errno.EADDRNOTAVAIL
    return None
