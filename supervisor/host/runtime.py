"""Where a running supervisor is found: its folder, its sockets, the lock that makes it the only one.

A supervisor of a name is running exactly while its lock is held. The kernel lets go of a `flock` when the
holder dies, by whatever death, so nothing here trusts a pid that somebody once wrote down; the JSON in the
lock file only says whom to show. Folders are 0700 and a folder that somebody else could have prepared is
refused (spec 15).

Server and client derive the same paths from the same name and environment; nothing needs to be handed over.
A socket path longer than the kernel takes (107 bytes on Linux, 103 on macOS) would be cut or refused, so
then the sockets, and only they, live in a short folder whose name is a digest of the real one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from engine.errors import StokerError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SOCKET_NAMES = ("control.sock", "engines.sock", "clients.sock")
SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""What fits into `sockaddr_un.sun_path` with its closing NUL."""

LOCK_ATTEMPTS = 1000
LOCK_PAUSE_S = 0.001
"""A lock that is only looked at, or whose file is being replaced, is free again within microseconds."""


class AlreadyRunning(StokerError):
    """A supervisor holds the lock of this name."""

    def __init__(self, name: str, pid: int | None, listen: str | None) -> None:
        self.name, self.pid, self.listen = name, pid, listen
        where = f" on {listen}" if listen else ""
        super().__init__(
            f"a supervisor named {name!r} is already running{where} (pid {pid or 'unknown'}): "
            f"stop it with 'stoker stop --name {name}', or start this one with another --name"
        )


class Holder(msgspec.Struct, frozen=True):
    """What the lock file says of the supervisor that holds it; `started` in seconds since the epoch."""

    pid: int
    started: float
    listen: str
    name: str


class Running(msgspec.Struct, frozen=True):
    """A supervisor that holds its lock now; `holder` is None in the moment before it has said who it is."""

    name: str
    folder: Path
    holder: Holder | None


def runtime_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all runtime folders of this user: absolute, not created here.

    `$STOKER_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/stoker` where that is a folder of this user (under sudo it
    is often somebody else's), else `/tmp/stoker-<uid>`.
    """
    own, xdg = environ.get("STOKER_RUNTIME_DIR"), environ.get("XDG_RUNTIME_DIR", "")
    if own:
        return Path(own).absolute()
    return Path(xdg, "stoker") if os.path.isabs(xdg) and _is_own_folder(xdg) else _short_root()


def log_root(configured: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where logs go: `configured`, else `$XDG_STATE_HOME/stoker`, else `~/.local/state/stoker`."""
    if configured is not None:
        return configured.expanduser().absolute()
    state = environ.get("XDG_STATE_HOME", "")
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(state if os.path.isabs(state) else Path(home, ".local/state").absolute(), "stoker")


class RuntimeDir:
    """The paths of the supervisor called `name`. Making one touches no file.

    Symbolic links above the root are resolved, so that every way to it leads to the same sockets. Raises
    StokerError for a name that is not `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`, and where no socket path fits.
    """

    def __init__(
        self,
        name: str,
        root: Path | None = None,
        log_dir: Path | None = None,
        short_root: Path | None = None,
    ) -> None:
        if not NAME.fullmatch(name):
            raise StokerError(
                f"the name {name[:80]!r} cannot be used: expected 1 to 64 letters, digits, '.', '_' or '-', "
                "the first a letter or digit"
            )
        self.name = name
        given = root or runtime_root()
        self.root = Path(os.path.realpath(given.parent), given.name)
        self.folder = self.root / name
        self.lock = self.folder / "lock"
        self.logs = log_root(log_dir) / name
        self.sockets = _socket_folder(self.folder, short_root or _short_root())
        self.control, self.engines, self.clients = (self.sockets / socket for socket in SOCKET_NAMES)

    def acquire(self, listen: str, started: float) -> RuntimeLock:
        """Creates the folders, takes the lock and clears what a killed predecessor left.

        Raises AlreadyRunning where the lock is held, StokerError where a folder is unsafe or cannot be made.
        """
        with _telling(f"the runtime folder {self.folder} cannot be used"):
            lock = RuntimeLock(self, self._locked_file())
            try:
                lock.sign(Holder(os.getpid(), started, listen, self.name))
                self.remove_sockets()
            except BaseException:
                lock.release()
                raise
            return lock

    def running(self) -> Running | None:
        """The supervisor of this name, if one runs now; a client asks before it connects.

        Raises StokerError where somebody else could have prepared the folder and the sockets in it.
        """
        try:
            for folder in (self.root, self.folder, self.sockets):
                _check_owned(folder)
        except FileNotFoundError:
            return None
        return _running(self.name, self.folder)

    def remove_sockets(self) -> None:
        for socket in (self.control, self.engines, self.clients):
            socket.unlink(missing_ok=True)

    def _locked_file(self) -> int:
        for _ in range(LOCK_ATTEMPTS):
            descriptor = self._try_lock()
            if descriptor is not None:
                return descriptor
            time.sleep(LOCK_PAUSE_S)
        raise StokerError(f"the lock {self.lock} changes hands all the time: try again")

    def _try_lock(self) -> int | None:
        """The locked file, or None where it was looked at or removed in this very moment: try again."""
        try:
            self._create_folders()
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            return None
        ours = False
        try:
            locked, in_place = _lock(descriptor, fcntl.LOCK_EX), _is_file_at(self.lock, descriptor)
            ours = locked and in_place
            if not locked and in_place and not _lock(descriptor, fcntl.LOCK_SH):
                raise AlreadyRunning(self.name, *_whom_to_show(descriptor))
        finally:
            if not ours:
                os.close(descriptor)
        return descriptor if ours else None

    def _create_folders(self) -> None:
        _ensure_root(self.root)
        _ensure_private(self.folder)
        if self.sockets != self.folder:
            _ensure_root(self.sockets.parent)
            _ensure_private(self.sockets)


class RuntimeLock:
    """The lock of a name, held until `release` or the end of the process; no child inherits it."""

    def __init__(self, runtime: RuntimeDir, descriptor: int) -> None:
        self.runtime = runtime
        self._descriptor: int | None = descriptor

    def sign(self, holder: Holder) -> None:
        """Writes into the lock file whom to show to those who find it held."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(holder) + b"\n", 0)

    def release(self) -> None:
        """Removes sockets, lock, folders (that of the logs only if empty), then lets go. Twice is once."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            if _is_file_at(self.runtime.lock, descriptor):
                self._remove_files()
        finally:
            os.close(descriptor)

    def _remove_files(self) -> None:
        """The lock goes late: once it is gone, a successor may be at work in the same folder."""
        runtime = self.runtime
        with suppress(OSError):
            runtime.remove_sockets()
        for folder in {runtime.sockets, runtime.logs} - {runtime.folder}:
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            runtime.lock.unlink()
            runtime.folder.rmdir()

    def __enter__(self) -> RuntimeLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def running_supervisors(root: Path | None = None) -> list[Running]:
    """The supervisors of this user that run now, by name. Leftovers of killed ones are not among them.

    Raises StokerError where the root belongs to somebody else.
    """
    folder = root or runtime_root()
    try:
        _check_owned(folder)
        names = sorted(entry.name for entry in os.scandir(folder) if NAME.fullmatch(entry.name))
    except OSError:
        return []
    found = (_running(name, folder / name) for name in names)
    return [running for running in found if running is not None]


def _running(name: str, folder: Path) -> Running | None:
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        free = _lock(descriptor, fcntl.LOCK_SH)
        return None if free else Running(name, folder, _holder(descriptor))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Owners lock exclusively, those who look lock shared: trying the second tells an owner from a look."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file_at(path: Path, descriptor: int) -> bool:
    """A lock on a file that was unlinked in between guards nothing: the path must still lead to it."""
    try:
        there, here = os.stat(path, follow_symlinks=False), os.fstat(descriptor)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _holder(descriptor: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    except msgspec.DecodeError:
        return None


def _whom_to_show(descriptor: int) -> tuple[int | None, str | None]:
    holder = _holder(descriptor)
    return (holder.pid, holder.listen) if holder else (None, None)


def _socket_folder(folder: Path, short_root: Path) -> Path:
    """`folder` (a real path) where its socket paths fit, else the short folder that stands for it."""
    if _fits(folder):
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    short = short_root / f"x-{digest}"
    if _fits(short):
        return short
    raise StokerError(
        f"no socket path fits into {SOCKET_PATH_BYTES} bytes, neither in {folder} nor in {short}: "
        "set STOKER_RUNTIME_DIR to a shorter folder"
    )


def _fits(folder: Path) -> bool:
    return all(len(os.fsencode(folder / name)) <= SOCKET_PATH_BYTES for name in SOCKET_NAMES)


def _short_root() -> Path:
    return Path("/tmp", f"stoker-{os.geteuid()}")


def _is_own_folder(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _ensure_root(path: Path) -> None:
    """Creates the root folder, or checks that nobody else can put anything into the one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _ensure_owned(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        raise StokerError(
            f"{path} can be written by other users (mode {mode:04o}): "
            f"run 'chmod 700 {path}', or set STOKER_RUNTIME_DIR to a folder of your own"
        )


def _ensure_private(path: Path) -> None:
    """Creates a folder that only this user enters; one that is there becomes so."""
    _ensure_owned(path)
    if stat.S_IMODE(path.stat().st_mode) != 0o700:
        path.chmod(0o700)


def _ensure_owned(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(0o700)
    _check_owned(path)


def _check_owned(path: Path) -> None:
    """Raises StokerError unless `path` is a folder of this user and no link to one; OSError: not there."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise StokerError(f"{path} is a symbolic link to {os.readlink(path)}: remove it, a folder is needed")
    if not stat.S_ISDIR(found.st_mode):
        raise StokerError(f"{path} is not a folder: remove it, or set STOKER_RUNTIME_DIR to another place")
    if found.st_uid != os.geteuid():
        raise StokerError(
            f"{path} belongs to user {found.st_uid}, not to you ({os.geteuid()}): "
            "remove it, or set STOKER_RUNTIME_DIR to a folder of your own"
        )


@contextmanager
def _telling(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StokerError(f"{what}: {error.strerror or error} ({error.filename or 'lock'})") from error
