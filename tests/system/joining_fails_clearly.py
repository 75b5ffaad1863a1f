"""A rank that cannot join gets the reason in one line, and running jobs stay right."""
import os
import signal
import socket
import struct
import threading
import unittest

import harness
import linux
from harness import af_packet

HELLO, VERSION = 0x01, 0x8c  # kinds of packets
HEADER = struct.Struct("<HBBHHII")  # magic, version, kind, length, flags, job, integrity
MAGIC = 0x4c53
SO_NO_CHECK = 11  # of <asm/socket.h>


class Joining(harness.SystemTest):
    def setUp(self):
        self.daemon = self.start_daemon("--formation-timeout-ms", "600000")
        self.other_job = self.start_steady_job(2, self.daemon)

    def tearDown(self):
        if all(rank.is_running() for rank in self.other_job):
            self.end_steady_job(self.other_job)
            self.ends_on_signal(self.daemon)
        else:
            self.fail("the job that ran at the same time has ended")

    def fails(self, rank, code, *sayings):
        self.refuses(rank, 3, f"^rank \\d+: {code}", *sayings)

    def test_two_processes_with_one_rank_while_the_job_forms(self):
        rivals = [self.start_joiner(0, 2, self.daemon) for _ in range(2)]
        harness.wait_until(lambda: not all(rival.is_running() for rival in rivals),
                           "one of two processes with the same rank is refused")
        rivals.sort(key=harness.Process.is_running)
        self.fails(rivals[0], "formation failed", "two processes joined as rank 0",
                   "the first is alive and keeps the number")
        other = self.start_joiner(1, 2, self.daemon)
        rivals[1].wait_to_say("under way")
        other.wait_to_say("under way")

    def test_two_processes_with_one_rank_while_the_job_runs(self):
        job = self.start_steady_job(2, self.daemon, SLUICE_JOB=77)
        second = self.start_joiner(1, 2, self.daemon, SLUICE_JOB=77)
        self.fails(second, "formation failed", "two processes joined as rank 1")
        self.end_steady_job(job)

    def test_ranks_that_disagree(self):
        for variable, first, second, field in (
                ("SLUICE_WORLD_SIZE", 3, 4, "world size"),
                ("SLUICE_BLOCK_ELEMENTS", 128, 64, "block elements"),
                ("SLUICE_STREAMS", 8, 16, "number of streams"),
                ("SLUICE_HISTORY", 4, 8, "history depth"),
        ):
            with self.subTest(field=field):
                ranks = [self.start_joiner(0, 3, self.daemon, **{variable: first}),
                         self.start_joiner(1, 3, self.daemon, **{variable: second})]
                for rank in ranks:
                    self.fails(rank, "formation failed", "ranks disagree about the job",
                               f"rank 0 has {field} {first}|rank 1 has {field} {second}",
                               f"rank 0 has .*{first}", f"rank 1 has .*{second}")

    def test_a_rank_beyond_the_running_jobs_world(self):
        job = self.start_steady_job(2, self.daemon, SLUICE_JOB=77)
        self.fails(self.start_joiner(2, 3, self.daemon, SLUICE_JOB=77), "formation failed",
                   "rank 0 has world size 2, rank 2 has 3")
        self.end_steady_job(job)

    def test_more_than_the_aggregator_accepts(self):
        self.fails(self.start_joiner(0, 1, self.daemon, SLUICE_STREAMS=1000, SLUICE_HISTORY=64),
                   "quota", "does not accept memory in MiB \\d+; its limit is \\d+")

    def test_a_rank_that_never_comes(self):
        """On a slow machine, another rank may be so late."""
        ranks = [self.start_joiner(r, 3, self.daemon, SLUICE_JOIN_TIMEOUT_MS=6000) for r in (0, 2)]
        for rank in ranks:
            self.fails(rank, "formation failed", r"rank .*\b1\b.* to join")

    def test_waiting_is_told_and_control_c_ends_it(self):
        """At a log level of warnings."""
        rank = self.start_joiner(0, 2, self.daemon, SLUICE_JOIN_TIMEOUT_MS=600000,
                                 SLUICE_JOB="bert")
        rank.wait_to_say(r"job bert \(\d+\): the join has waited 3 s for rank 1 to join")
        self.daemon.wait_to_say(r"job bert \(\d+\): has waited 3 s for rank 1 to join")
        rank.send(signal.SIGINT)
        self.assertEqual(rank.wait(), -signal.SIGINT)

    def test_no_such_directory(self):
        self.fails(self.start_joiner(0, 1, "vhost:/no/such/directory"), "unavailable",
                   "vhost directory '/no/such/directory' is missing")

    def test_an_aggregator_of_another_place(self):
        """The one address given is that of shard 0 of 1, but the daemon is shard 1 of 2."""
        daemon = self.start_daemon("--shard", "1", "--shards", "2", name="a1")
        self.fails(self.start_joiner(0, 1, daemon), "quota",
                   "does not accept shard 0; its limit is 1. Compare the aggregator's shard")

    def test_too_many_jobs(self):
        daemon = self.start_daemon("--max-jobs", "1", name="a1")
        job = self.start_steady_job(1, daemon)
        self.fails(self.start_joiner(0, 1, daemon), "quota", "its limit of 1 jobs")
        self.end_steady_job(job)


class FormationTimeout(harness.SystemTest):
    def test_the_aggregator_names_the_absent(self):
        daemon = self.start_daemon("--formation-timeout-ms", "5000")
        ranks = [self.start_joiner(r, 4, daemon) for r in (0, 3)]
        for rank in ranks:
            self.refuses(rank, 3, "formation failed about rank 1",
                         "2 of the job's ranks never joined, the first is rank 1")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def packet(version, kind, job, body):
    def with_integrity(integrity):
        return HEADER.pack(MAGIC, version, kind, HEADER.size + len(body), 0, job, integrity) + body

    return with_integrity(crc32c(with_integrity(0)))


def udp_socket():
    """Without UDP checksums: a kernel leaves those of a virtual link to hardware, which is none."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    return made


class AggregatorOfVersion2:
    """Answers each HELLO as an aggregator with versions 2 and 3 does."""

    def __init__(self, address):
        self.socket = udp_socket()
        self.socket.bind((address, af_packet.UDP_PORT))
        self.socket.settimeout(0.1)
        self.hellos = 0
        self.serves = True
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while self.serves:
            try:
                asked, sender = self.socket.recvfrom(65536)
            except TimeoutError:
                continue
            _, _, kind, _, _, job, _ = HEADER.unpack_from(asked)
            if kind == HELLO:
                self.hellos += 1
                self.socket.sendto(packet(3, VERSION, job, asked[16:24] + b"\2\3" + bytes(6)),
                                   sender)

    def end(self):
        self.serves = False
        self.thread.join()
        self.socket.close()


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class OtherVersion(harness.NetworkTest):
    def as_host(self, namespace, make, *addresses):
        """The result of `make` on that host, whose kernel has these addresses."""
        linux.enter_network_namespace(namespace)
        for address in addresses:
            af_packet.ip("address", "add", address, "dev", af_packet.PORT)
        try:
            return make()
        finally:
            linux.enter_network_namespace(self.network.switch)

    def test_of_the_aggregator(self):
        """The rank names both versions after a few HELLOs, long before its time is over."""
        self.make_network(workers=1, aggregators=1)
        address = af_packet.aggregator_ip(0)
        other = self.as_host(self.network.aggregator_namespace(0),
                             lambda: AggregatorOfVersion2(address), address + "/16")
        self.addCleanup(other.end)
        rank = self.start_joiner(0, 1, address, SLUICE_JOB=7)
        self.refuses(rank, 3, "^rank 0: formation failed", f"job 7: aggregator 0 at {address}.* "
                     "speaks versions 2 to 3 of the protocol, this library version 1 "
                     r"\(build [0-9A-Za-z.-]+\): use the same release on both")
        self.assertGreaterEqual(other.hellos, 3)

    def test_of_a_rank(self):
        """The daemon answers with its own version, and nothing else."""
        self.make_network(workers=2, aggregators=1)
        daemon = self.start_aggregator(0)
        rank = self.as_host(self.network.worker_namespace(1), udp_socket, af_packet.worker_ip(1))
        self.addCleanup(rank.close)
        rank.settimeout(1)
        nonce = bytes(range(1, 9))

        def answer_to(kind, body):
            """The first answer; None if none comes within a second."""
            for _ in range(harness.TIME_LIMIT if kind == HELLO else 1):
                rank.sendto(packet(2, kind, 7, body), (daemon.address, af_packet.UDP_PORT))
                try:
                    return rank.recv(65536)
                except TimeoutError:
                    pass
            return None

        expected = packet(1, VERSION, 7, nonce + b"\1\1" + bytes(6))
        self.assertEqual(answer_to(HELLO, nonce + bytes(104)), expected)
        # Padding to the length of the answer.
        self.assertEqual(answer_to(HELLO, nonce + bytes(8)), expected)
        self.assertIsNone(answer_to(2, nonce + bytes(104)))
        self.end_steady_job(self.start_steady_job(1, daemon))
        self.ends_on_signal(daemon)
        self.assertGreaterEqual(self.counter(daemon, "bad_version"), 3)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)


if __name__ == "__main__":
    harness.main()
