"""Linux namespaces for the sandbox, by `ctypes`: Python has `os.unshare` only since 3.12, and no `mount`.

What a program sees after `build_root` is made from nothing: system directories and Python read-only, an empty scratch
directory in memory, its own processes in `/proc`, no network device. Home directories, data and the project's own files
are not there at all. Needs Linux 5.12 (`mount_setattr`) and permission to make user namespaces.
"""

import ctypes
import os

SCRATCH = "/scratch"
"""Where the scratch directory is in the new root."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_OLD = "/old"

_NEW_NAMESPACES = 0x10000000 | 0x20000000 | 0x00020000 | 0x40000000 | 0x08000000 | 0x04000000
"""CLONE_NEWUSER, NEWPID, NEWNS, NEWNET, NEWIPC and NEWUTS."""
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _RDONLY = 442, -100, 0x8000, 1
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38

_libc = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Move this process into new namespaces; its next child is the first process of the new process namespace.

    Every user keeps their id. Another process, outside, writes the maps: only that one may map more than one user.

    Raises:
        OSError: The kernel does not allow it.
    """
    wait, go = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.close(go)
        os._exit(_write_maps(os.getppid()) if os.read(wait, 1) else 1)
    try:
        _check("unshare", _libc.unshare(_NEW_NAMESPACES))
        os.write(go, b".")
    finally:
        os.close(go)
        os.close(wait)
        _, status = os.waitpid(writer, 0)
    if status:
        raise OSError("the user namespace's ids could not be mapped")


def build_root(visible: list[str], scratch_mb: int, owner: int, group: int) -> None:
    """Give this process, the first of its namespaces, a root directory of its own.

    Args:
        visible: Files and directories to show, read-only, beside the system's.
        scratch_mb: Size of the scratch directory.
        owner: User that owns the scratch directory.
        group: Its group.

    Raises:
        OSError: The kernel does not allow it.
    """
    sources = {path: os.path.realpath(path) for path in (*_SYSTEM, *visible) if os.path.exists(path)}
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", "/proc", "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    os.mkdir("/proc" + _OLD)
    _check("pivot_root", _libc.pivot_root(b"/proc", b"/proc" + _OLD.encode()))
    os.chdir("/")
    for target in sorted(sources, key=len):
        if not os.path.lexists(target):
            _bind(sources[target], target)
            _read_only(target, _AT_RECURSIVE)
    _make_devices()
    os.mkdir(SCRATCH)
    options = f"size={scratch_mb}m,nr_inodes=16384,mode=700,uid={owner},gid={group}"
    _mount("tmpfs", SCRATCH, "tmpfs", _NOSUID | _NODEV, options)
    if not os.path.lexists("/tmp"):
        os.symlink(SCRATCH, "/tmp")
    _mount_proc()
    _check("umount", _libc.umount2(_OLD.encode(), _DETACH))
    os.rmdir(_OLD)
    _read_only("/", 0)


def drop_capabilities() -> None:
    """Nothing this process executes can gain a privilege: no capability of root, no setuid program."""
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    _check("no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def die_with_parent(number: int = 9) -> None:
    """Get a signal when the parent (the thread that started this process) ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets away."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide() -> None:
    """Let no process of the same user look into this one's memory, files or environment."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _write_maps(process: int) -> int:
    """Map every user and group this process may map to themselves, or else only its own; returns an exit status."""
    try:
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/self/{kind}") as extents:
                known = [line.split() for line in extents]
            _write(f"/proc/{process}/{kind}", "".join(f"{first} {first} {count}\n" for first, _, count in known))
    except OSError:
        try:
            _write(f"/proc/{process}/setgroups", "deny")
            _write(f"/proc/{process}/uid_map", f"{os.geteuid()} {os.geteuid()} 1\n")
            _write(f"/proc/{process}/gid_map", f"{os.getegid()} {os.getegid()} 1\n")
        except OSError:
            return 1
    return 0


def _bind(source: str, target: str) -> None:
    """Show what was `source` in the old root at `target`."""
    if os.path.isdir(_OLD + source):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, "")
    _mount(_OLD + source, target, None, _BIND | _RECURSIVE)


def _make_devices() -> None:
    for name in _DEVICES:
        _bind(f"/dev/{name}", f"/dev/{name}")
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    os.symlink(SCRATCH, "/dev/shm")


def _mount_proc() -> None:
    """Mount /proc, where a container does not forbid it, and forbid namespaces inside these; both can be missed."""
    os.mkdir("/proc")
    try:
        _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        _write("/proc/sys/user/max_user_namespaces", "0")
    except OSError:
        pass


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    _check(f"mount {target}", _libc.mount(*encoded, ctypes.c_ulong(flags), options.encode()))


def _read_only(path: str, flags: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(_RDONLY | _NOSUID | (_NODEV if flags else 0), 0, 0, 0)
    call = (_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), ctypes.sizeof(attributes))
    _check(f"mount_setattr {path}", _libc.syscall(*call))


def _check(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
