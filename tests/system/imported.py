"""Programs in Python that begin with modules imported, which takes seconds for PyTorch.

One process imports the modules, and every program is a fork of it. What distinguishes it from one
that was started afresh: all have the same addresses and the same hashes of strings.
"""
import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import __main__

HERE = os.path.dirname(os.path.realpath(__file__))
PATHS = [HERE, os.path.realpath(os.path.join(HERE, "..", "..", "scripts", "lib"))]
sys.path.extend(path for path in PATHS if path not in sys.path)

import linux  # noqa: E402

LONGEST_REQUEST = 1 << 17  # bytes
# Variables that are read when they are needed. Any other one may matter as soon as Python or a
# module starts.
READ_LATER = ("PYTHONPATH", "RUNTIME_DIRECTORY", "SLUICE_", "XDG_RUNTIME_DIR")


class Program:
    """One that runs, with what is used of Popen's interface. This process has adopted it."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None

    def poll(self):
        return self._look(os.WNOHANG)

    def wait(self):
        return self._look(0)

    def send_signal(self, signum):
        if self.poll() is None:
            os.kill(self.pid, signum)

    def _look(self, options):
        if self.returncode is None and (ended := os.waitpid(self.pid, options))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode


class Python:
    """The process that has imported `modules`. It starts with the first program, in the environment
    of that one, and ends with this process. `read_later`: how the names of more variables begin
    that programs read when they need them."""

    def __init__(self, python, *modules, read_later=()):
        self.begin = [python, "-B"]  # of the commands that it takes
        self.modules = modules
        self.read_later = READ_LATER + read_later
        self.connection = None

    def spawn(self, command, environment, out, err, before_exec=None):
        """As processes.spawn. None if the program must be started by itself: another Python's, or
        one in another environment."""
        fixed = {name: value for name, value in environment.items()
                 if not name.startswith(self.read_later)}
        if before_exec or command[:2] != self.begin or command[2].startswith("-"):
            return None
        if self.connection is None:
            self._start(fixed)
        if fixed != self.fixed:
            return None
        request = json.dumps([command[2:], environment]).encode()
        socket.send_fds(self.connection, [request], [out.fileno(), err.fileno()])
        return Program(int(self.connection.recv(100)))

    def _start(self, environment):
        linux.adopt_orphans()
        self.fixed = environment
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import imported; exec(imported.serve({os.getpid()}, *{self.modules}))"
        with other:
            server = subprocess.Popen([*self.begin, "-c", code], process_group=0, stdin=other,
                                      stdout=subprocess.DEVNULL,
                                      env={**environment, "PYTHONPATH": os.pathsep.join(PATHS)})
        atexit.register(server.wait)
        atexit.register(self.connection.close)  # before


def serve(asker, *modules):
    """The code that a program is to run; returns in the program's process, and nowhere else."""
    for name in modules:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has no other thread"
    gc.freeze()
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        request, files, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 2)
        if not request:
            sys.exit()
        parent = os.fork()
        if parent == 0:
            parent = os.getpid()
            if os.fork():
                os._exit(0)  # so that the asker adopts the program
            return become(asker, parent, connection, files, *json.loads(request))
        os.waitpid(parent, 0)
        for file in files:
            os.close(file)


def become(asker, parent, connection, files, command, environment):
    while os.getppid() == parent:
        time.sleep(0.001)
    linux.die_with_parent(asker, signal.SIGKILL)
    os.setpgid(0, 0)
    for file, standard in zip(files, (1, 2)):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    path = command[0]
    begin = [os.path.dirname(path), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = begin + [place for place in sys.path[1:] if place not in PATHS]
    sys.argv[:] = command
    __main__.__file__ = path
    seed_generators()
    connection.send(str(os.getpid()).encode())
    connection.close()
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec")


def seed_generators():
    """So that no two programs draw the same, as Python's own does by itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
