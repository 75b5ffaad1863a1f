"""The few Linux calls that Python 3.11 does not offer."""
import contextlib
import ctypes
import os
import signal
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000

libc = ctypes.CDLL(None, use_errno=True)


def _checked(result, what):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def die_with_parent(parent, signum):
    """The calling process gets `signum` when its parent dies; at once if `parent` is gone."""
    _checked(libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def adopt_orphans():
    """Descendants whose parent ends become children of this process, so that none escapes."""
    _checked(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def enter_new_network_namespace():
    _checked(libc.unshare(CLONE_NEWNET), "unshare")


def enter_network_namespace(fd):
    _checked(libc.setns(fd, CLONE_NEWNET), "setns")


def state_of(process):
    """The state as a letter: "R" runs, "T" is stopped (proc(5), stat)."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


def kill_descendants():
    """Kills and reaps until this process, which adopts orphans, has no child left."""
    while True:
        with open("/proc/self/task/%d/children" % os.getpid()) as file:
            children = [int(pid) for pid in file.read().split()]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG if children else 0)[0] != 0:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WAIT_FOR_THREADS = 0x40000000  # __WALL


@contextlib.contextmanager
def stopped_thread(thread):
    """A thread of another process, by its id, does not run within the `with` statement; the
    process's other threads do."""
    def ptrace(request):
        _checked(libc.ptrace(*map(ctypes.c_long, (request, thread, 0, 0))), "ptrace")

    ptrace(PTRACE_SEIZE)
    ptrace(PTRACE_INTERRUPT)
    os.waitpid(thread, WAIT_FOR_THREADS)
    try:
        yield
    finally:
        ptrace(PTRACE_DETACH)
