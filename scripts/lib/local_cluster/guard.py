"""Two processes, so that one is always left to clean up.

The user's process forks the one that does the work, passes signals on to it, and waits. If the
worker process is killed, the guard kills what is left below it and removes the directory. If the
guard is killed, the kernel tells the worker process (SIGTERM), which ends in its usual orderly way.
"""
import os
import shutil
import signal
import sys

import linux
import processes

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_guarded(work):
    """Exit status of `work(directory)`, which runs in a process of its own."""
    linux.adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until there is someone to pass them to
    directory = processes.make_directory()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_status_of(work, directory, guard)
    for signum in FORWARDED:
        signal.signal(signum, lambda number, frame: pass_on(number, pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    linux.kill_descendants()
    shutil.rmtree(directory, ignore_errors=True)
    return status if status >= 0 else 128 - status


def pass_on(signum, pid):
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass  # it ended on its own just now


def end_with_status_of(work, directory, guard):
    status = 1
    try:
        os.setpgid(0, 0)  # the terminal's Ctrl-C goes to the guard alone, which passes it on once
        linux.adopt_orphans()
        linux.die_with_parent(guard, signal.SIGTERM)
        status = work(directory)
    except BaseException:  # the process must not return into the guard's code
        sys.excepthook(*sys.exc_info())
    finally:
        linux.kill_descendants()
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(status)
