"""A lease per device of this host, shared by all Ratchet work on it, whoever started it.

A GPU computes one step at a time. On the CPU the resource is cores: a step takes as many as it has threads, so two
steps of one thread run side by side on two cores, and one of all cores runs alone. What is leased is a locked file per
device, which the kernel frees when its holder dies, however it dies. Only one waiter at a time gathers what it needs,
and keeps what it has got so far: nothing waits in a circle, and a step that needs all cores is not passed by for ever.
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from conf.errors import UserError
from stages import gpus
from stages.contract import Hardware
from stages.hardware import cores

DIRECTORY = "RATCHET_LEASES_DIR"
"""Environment variable that names another place for the files; only who uses the same one waits for each other."""
_DEFAULT = "/tmp/ratchet-leases"  # the same for all users and jobs of the host, which $TMPDIR need not be
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_TELL_AFTER = 0.1

_CUDA = "CUDA_VISIBLE_DEVICES"

_ours: dict[str, str] = {}
"""The GPUs that this process was given first, and keeps: CUDA looks at CUDA_VISIBLE_DEVICES once."""

OnWait = Callable[[str], None]
"""Called with who holds what is waited for, about every half second; it ends the wait by raising."""


def once_each(tell: OnWait) -> OnWait:
    """Tell of every holder when it begins to be waited for, and not again while it is."""
    told = ""

    def on_wait(holder: str) -> None:
        nonlocal told
        if holder != told:
            tell(holder)
            told = holder

    return on_wait


@contextmanager
def lease(hardware: Hardware, holder: str, on_wait: OnWait) -> Iterator[None]:
    """Hold what a step computes on.

    Of several GPUs this process is given one, and sees no other from then on; processes that are started meanwhile for
    a step that has several (`stages.ranks`) see all that are leased for it.

    Args:
        hardware: The step's device, processes and threads; of what it wants, never more than there is is taken.
        holder: Who holds it; shown to those who wait.
        on_wait: Told whom we wait for.

    Raises:
        UserError: The leases cannot be written.
    """
    if hardware.device == "cuda" and gpus.visible():
        with _hold_gpus(hardware.num_processes, holder, on_wait):
            yield
        return
    names, count = [hardware.device], 1
    if hardware.device == "cpu":
        names, count = [f"core-{core}" for core in cores()], hardware.threads
    with _hold(hardware.device, names, count, holder, on_wait):
        yield


def command_holder(what: str) -> str:
    """A command as a holder, e.g. `an evaluation`, for others that wait for it."""
    return f"{what} (pid {os.getpid()} on {socket.gethostname()})"


def say_for_whom(say: Callable[[str], None]) -> OnWait:
    """Say of every holder once that it is waited for, in a line."""
    return once_each(lambda holder: say(f"waiting for {holder}, which computes on this host"))


def command_lease(what: str, hardware: Hardware, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Hold what a command computes on; while it waits, it is said once for whom (see `lease`)."""
    return lease(hardware, command_holder(what), say_for_whom(say))


@contextmanager
def _hold_gpus(count: int, holder: str, on_wait: OnWait) -> Iterator[None]:
    alone = count == 1
    choice = (_ours if alone else {}) or gpus.visible()
    with _hold("gpu", list(choice.values()), count, holder, on_wait) as held:
        leased = {entry: gpu for entry, gpu in choice.items() if gpu in held}
        if alone:
            _ours.update(leased)
        before = os.environ.get(_CUDA)
        os.environ[_CUDA] = ",".join(leased)
        try:
            yield
        finally:
            if not alone and before is not None:
                os.environ[_CUDA] = before
            elif not alone:
                del os.environ[_CUDA]


@contextmanager
def _hold(kind: str, names: Sequence[str], count: int, holder: str, on_wait: OnWait) -> Iterator[list[str]]:
    """Hold some of the devices of a kind; yields which."""
    folder = _folder()
    devices = [_LockFile(folder / name) for name in names]
    with ExitStack() as held:
        with ExitStack() as turn:
            waits = _Waits(devices, on_wait)
            if len(devices) > 1:  # who has no choice keeps nobody from the others
                first = _LockFile(folder / f"{kind}.turn")
                while not first.take(holder):
                    waits.a_moment()
                turn.callback(first.free)
            got: list[_LockFile] = []
            while len(got) < min(count, len(devices)):
                for device in devices:
                    if device not in got and len(got) < count and device.take(holder):
                        held.callback(device.free)
                        got.append(device)
                if len(got) < min(count, len(devices)):
                    waits.a_moment()
        yield [device.path.name for device in got]


class _Waits:
    """The pauses of one wait: short at first, because most are; from then on, those who wait are told for whom."""

    def __init__(self, devices: Sequence["_LockFile"], on_wait: OnWait) -> None:
        self._devices, self._on_wait, self._pause = devices, on_wait, _FIRST_PAUSE
        self._holders = "another step"

    def a_moment(self) -> None:
        """Pause once."""
        if self._pause > _TELL_AFTER:
            holders = [text for device in self._devices if not device.is_ours and (text := device.holder())]
            # Between two looks a holder may let go: then there is nobody new to tell of.
            self._holders = ", ".join(dict.fromkeys(holders)) or self._holders
            self._on_wait(self._holders)
        time.sleep(self._pause)
        self._pause = min(1.5 * self._pause, _LONGEST_PAUSE)


class _LockFile:
    """A file that one holder has locked; its text says who. It is emptied when it is freed, and never removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether we hold it."""
        return self._descriptor is not None

    def take(self, holder: str) -> bool:
        """Lock it if it is free."""
        descriptor = _open(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._write(holder)
        return True

    def free(self) -> None:
        """Unlock it, also for child processes that have a copy of the descriptor."""
        assert self._descriptor is not None
        self._write("")
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = None

    def holder(self) -> str:
        """Who holds it; only for people to read."""
        with suppress(OSError):
            return self.path.read_text(encoding="utf-8")
        return ""

    def _write(self, text: str) -> None:
        assert self._descriptor is not None
        with suppress(OSError):  # a full disk keeps nobody from computing
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)


def _folder() -> Path:
    """The directory of the leases; whoever uses this host may write there."""
    folder = Path(os.environ.get(DIRECTORY) or _DEFAULT)
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # another user has made it just now
                folder.chmod(0o1777)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def _open(path: Path) -> int:
    """A lock file's descriptor. The kernel refuses O_CREAT for another user's file in a directory such as this."""
    while True:
        try:
            with suppress(FileNotFoundError):
                return os.open(path, os.O_RDWR)
            with suppress(FileExistsError):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)
                return descriptor
        except OSError as error:
            raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{DIRECTORY}: {path} cannot be used ({error.strerror}); there all Ratchet work on this host agrees who "
        f"computes on what; set {DIRECTORY} to another directory for all of it"
    )
