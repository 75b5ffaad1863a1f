"""Started processes, their output line by line, and their end; one loop serves them all."""
import os
import selectors
import signal
import subprocess
import time

import linux


class Interrupted(Exception):
    """A signal requested the end; its number is `signum`."""

    def __init__(self, signum):
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Child:
    """One process in a process group of its own. `on_line(stream, line)` gets its output: stream is
    "stdout" or "stderr", line is bytes without the newline.

    All are of our session: a kernel that shares cores out by session would let a rank's
    sched_yield() pass, and starve the daemon. See docs/mpi.md, "What to know".
    """

    def __init__(self, name, popen, on_line):
        self.name = name
        self.popen = popen
        self.on_line = on_line
        self.partial = {"stdout": b"", "stderr": b""}

    def poll(self):
        """Its exit status as a shell tells it, or None while it runs."""
        status = self.popen.poll()
        return status if status is None or status >= 0 else 128 - status

    def send(self, signum):
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signum)

    def feed(self, stream, data):
        lines = (self.partial[stream] + data).split(b"\n")
        self.partial[stream] = lines.pop()
        for line in lines:
            self.on_line(stream, line)

    def finish(self, stream):
        if self.partial[stream]:
            self.feed(stream, b"\n")


class Children:
    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        self.asked_to_end = None
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for signum in self.SIGNALS:
            signal.signal(signum, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.SIGNALS)

    def _note(self, signum, frame):
        self.asked_to_end = self.asked_to_end or signum

    def start(self, name, command, environment, on_line, network_namespace=None):
        """`network_namespace` is an open file of the namespace to start in, or None for our own."""
        parent = os.getpid()

        def before_exec():
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            linux.die_with_parent(parent, signal.SIGKILL)
            if network_namespace is not None:
                linux.enter_network_namespace(network_namespace)

        popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, process_group=0, preexec_fn=before_exec, bufsize=0)
        child = Child(name, popen, on_line)
        for stream in ("stdout", "stderr"):
            os.set_blocking(getattr(popen, stream).fileno(), False)
            self.selector.register(getattr(popen, stream), selectors.EVENT_READ, (child, stream))
        return child

    def serve(self, until, seconds=None, interruptible=True):
        """Passes output on until `until()` holds (returns True) or the time is over (False). Raises
        Interrupted if a signal came, unless that is switched off."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            if interruptible and self.asked_to_end:
                raise Interrupted(self.asked_to_end)
            if until():
                self._serve_once(0)  # what the last one wrote before it ended
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._serve_once(left)

    def _serve_once(self, seconds):
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                os.read(self.wake_read, 4096)
            else:
                self._read(key.fileobj, *key.data)

    def _read(self, file, child, stream):
        while (data := file.read(1 << 16)):
            child.feed(stream, data)
        if data == b"":
            child.finish(stream)
            self.selector.unregister(file)
            file.close()

    def stop(self, children, seconds):
        """Asks them to end, waits, and kills those that did not; output is still passed on."""
        for child in children:
            child.send(signal.SIGTERM)
        ended = self.serve(lambda: all(c.poll() is not None for c in children), seconds,
                           interruptible=False)
        if not ended:
            for child in children:
                child.send(signal.SIGKILL)
            self.serve(lambda: all(c.poll() is not None for c in children), interruptible=False)
        return ended
