"""Memory that local workers share by reference: whatever one of them passes to the daemon, or keeps
from it, the daemon goes on, keeps nothing, and the jobs of all others are right. A worker that may
not share joins all the same, and says why."""
import array
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import sys
import unittest

import harness

# A message of common/memory/exchange.cpp: magic, kind, reserved, id, job, reason.
MESSAGE = struct.Struct("<IHHQI108s")
MAGIC = 0x524c5302
ARENA, MAPPED, ASK, RESULTS, REFUSED, FORGET = 1, 2, 3, 4, 5, 6

SHARES = {"SLUICE_SHARED_MEMORY": 1, "SLUICE_LOG": "info"}
BY_REFERENCE = "blocks in shared memory"  # what a daemon says of such a job
IN_PACKETS = "blocks go in packets: "  # and a rank that cannot share
KIB = 1024
GIB = 1 << 30


def message(kind, region=0, job=0, magic=MAGIC):
    return MESSAGE.pack(magic, kind, 0, region, job, b"")


def memfd(size=4 * KIB, seals=fcntl.F_SEAL_SHRINK, flags=0):
    """A region, of which no page is taken."""
    file = os.memfd_create("region", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(file, size)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


class Client:
    """Speaks with the daemon as a worker does, or otherwise."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(harness.TIME_LIMIT)
        self.socket.connect(path)

    def close(self):
        self.socket.close()

    def send(self, data, *files):
        socket.send_fds(self.socket, [data], files)

    def ask(self, data, *files):
        """Kind, region and text of the answer."""
        self.send(data, *files)
        _, kind, _, region, _, reason = MESSAGE.unpack(self.socket.recv(MESSAGE.size))
        return kind, region, reason.split(b"\0")[0].decode()

    def is_dropped(self):
        """Whether the daemon has ended the connection; what it sent before is passed over."""
        try:
            while self.socket.recv(MESSAGE.size, socket.MSG_DONTWAIT):
                pass
            return True
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def wait_until_dropped(self):
        harness.wait_until(self.is_dropped, "the daemon disconnects")


class RegionTest(harness.SystemTest):
    def start_serving(self, *flags, **settings):
        """A daemon, and a job by reference that runs all the while."""
        self.daemon = self.start_daemon(*flags, **settings)
        self.other_job = self.start_sharing_job()

    def start_sharing_job(self, ranks=2):
        number = 2000 + next(self.numbers)
        job = self.start_steady_job(ranks, self.daemon, SLUICE_JOB=number, **SHARES)
        self.daemon.wait_to_say(rf"job {number}: formed, .*{BY_REFERENCE}")
        return job

    def path(self):
        return os.path.join(self.directory(), "regions")

    def client(self):
        client = Client(self.path())
        self.addCleanup(client.close)
        return client

    def file(self, descriptor):
        self.addCleanup(os.close, descriptor)
        return descriptor

    def open_files(self):
        return len(os.listdir(f"/proc/{self.daemon.popen.pid}/fd"))

    def keeps_no_file(self, before):
        harness.wait_until(lambda: self.open_files() <= before, f"the daemon has {before} files "
                           "open as before", harness.AT_ONCE)

    def nobody_notices(self, aborted=0):
        """The job that ran all the while is right, another goes by reference, too, and the daemon
        ends in order."""
        newcomer = self.start_sharing_job()
        for job in (newcomer, self.other_job):
            self.end_steady_job(job)
        self.ends_on_signal(self.daemon)
        self.assertEqual(self.counter(self.daemon, "jobs_aborted"), aborted)


class Failing(RegionTest):
    def test_memory_ends_the_job_that_reads_it_alone(self):
        """As of a damaged page: the daemon gets SIGBUS where a rank's slots are mapped."""
        fails = os.path.join(self.place, "fails")
        self.start_serving(LD_PRELOAD=harness.program("libmemory_fails.so"), MEMORY_FAILS=fails)
        job = self.start_sharing_job()
        with open(fails, "w", encoding="ascii"):
            pass
        for rank in job:
            self.ends_with(rank, 3, r"worker lost about rank [01]: .*rank [01] is lost: the memory "
                           "that it shares cannot be read any more")
        self.daemon.wait_to_say(rf"process ({job[0].popen.pid}|{job[1].popen.pid}) shared cannot be "
                                "read any more")
        self.nobody_notices(aborted=1)


if __name__ == "__main__":
    harness.main()
