"""Whole jobs over network ports: veth links between network namespaces, by af_packet and af_xdp."""
import json
import os
import socket
import struct
import unittest

import harness
from harness import af_packet
from ranges import LARGEST_AF_XDP_MTU


class Jobs:
    """Jobs over each of the transports."""

    def run_cluster(self, workers, *arguments, **settings):
        cluster = self.start_cluster("--transport", self.transport, "--workers", workers,
                                     *arguments, **settings)
        self.all_end_well([cluster])
        return cluster

    def sweep(self, workers, *arguments):
        path = os.path.join(self.place, "rows.json")
        self.run_cluster(workers, *arguments, "--json", path)
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.assertEqual({row["ranks"] for row in rows}, {workers})
        return rows

    def test_four_workers_and_two_aggregators(self):
        rows = self.sweep(4, "--aggregators", 2, "--", "sluice-perf", "-b", "4", "-e", "1M", "-f",
                          "16", "--density", "1,0.1,0.01", "-n", "3", "-w", "1")
        self.assertEqual(len(rows), 5 * 3 * 2)

    def test_large_frames(self):
        rows = self.sweep(2, "--mtu", self.large_mtu, "--", "sluice-perf", "-b", "1M", "-e",
                          "4M", "-f", "4", "--density", "1,0.1", "-n", "3", "-w", "1")
        self.assertEqual(len(rows), 2 * 2 * 2)

    def test_links_of_a_rate(self):
        rows = self.sweep(2, "--rate", 100, "--", "sluice-perf", "-b", "1M", "-e", "1M", "-n", "3",
                          "-w", "1", "--in-place", "1")
        rate = rows[0]["algbw_gbps"] * 8000  # each rank sends and receives that much, and headers
        self.assertLess(rate, 100)
        self.assertGreater(rate, 10)

    def test_results_by_multicast(self):
        cluster = self.run_cluster(4, "--aggregator-arg=--multicast-groups=239.255.74.0/24",
                                   "--show-aggregators", "--", "sluice-perf", "-b", "4M", "-e",
                                   "4M", "-n", "3", "--density", "1,0.1")
        self.assertRegex(cluster.out + cluster.err, r"results_by_group \d")

    def test_the_whole_interface(self):
        self.run_cluster(2, "--aggregators", 1, "--", "api", "every_type_and_reduction",
                         "many_ops_in_flight", "destroyed_with_ops_pending")


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfPacket(Jobs, harness.SystemTest):
    transport = "af_packet"
    large_mtu = 9000


    def test_the_most_ranks_behind_one_port_at_the_defaults(self):
        cluster = self.run_cluster(1, "--show-aggregators", "--", "many-ranks", 256, 1024, "dense",
                                   SLUICE_MEMORY_MIB=1000)
        said = cluster.out + cluster.err
        self.assertRegex(said, r"job 256: formed, 256 ranks")
        self.assertIn(" 0 ranks with wrong sums", said)
        self.assertNotRegex(said, r"tx_backlog_full \d|pool_empty \d|rounds_stalled \d")


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfXdp(Jobs, harness.SystemTest):
    transport = "af_xdp"
    large_mtu = LARGEST_AF_XDP_MTU

    def test_an_interface_with_fewer_queues_than_lanes(self):
        cluster = self.start_cluster("--transport", "af_xdp", "--aggregator-arg=--lanes=2", "--",
                                     "true")
        self.assertEqual(cluster.wait(), 1)
        self.assertIn("2 queues, but interface port0 has 1 (see ethtool -L)", cluster.err)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Pings(harness.NetworkTest):
    def test_an_aggregator_answers_those_of_a_kernel(self):
        self.make_network(workers=1, aggregators=1)
        self.network.let_kernel_speak()
        daemon = self.start_aggregator(0, "--lanes", 2)
        harness.linux.enter_network_namespace(self.network.worker_namespace(0))
        for data in (b"", b"x", bytes(range(200)), bytes(1472)):
            self.assertEqual(ping(daemon.address, data), data)
        self.ends_on_signal(daemon)
        self.assertEqual(sum(self.counter(daemon, "echoes_answered", lane) for lane in range(2)), 4)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Routed(harness.NetworkTest):
    def test_an_aggregator_of_another_network(self):
        self.make_network(workers=3, aggregators=1)
        self.make_router(self.network.worker_namespace(2), "10.77.0.254/16", "10.78.0.254/16")
        daemon = self.start("a0", harness.program("sluice-aggregator"), "--port", af_packet.DEVICE,
                            "--address", "10.78.0.1/16@10.78.0.254",
                            before_exec=self._on(self.network.aggregator_namespace(0)))
        daemon.address = "10.78.0.1"
        daemon.wait_to_say(harness.READY)
        job = [self.start_rank(r, 2, daemon, "api", "every_type_and_reduction",
                               SLUICE_ADDRESS=af_packet.worker_ip(r) + "@10.77.0.254")
               for r in range(2)]
        self.all_end_well(job)
        self.ends_on_signal(daemon)

    def make_router(self, host, *addresses):
        harness.linux.enter_network_namespace(host)
        for address in addresses:
            af_packet.ip("address", "add", address, "dev", af_packet.PORT)
        af_packet.write("/proc/sys/net/ipv4/conf/all/send_redirects", "0")
        af_packet.write(f"/proc/sys/net/ipv4/conf/{af_packet.PORT}/send_redirects", "0")
        af_packet.write("/proc/sys/net/ipv4/ip_forward", "1")
        harness.linux.enter_network_namespace(self.network.switch)


def ping(address, data):
    """Returns the answer, in a packet that this machine's kernel has found valid."""
    request = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xffff, len(data)) + data
    request = request[:2] + struct.pack("!H", checksum(request)) + request[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as icmp:
        icmp.settimeout(harness.TIME_LIMIT)
        icmp.sendto(request, (address, 0))
        while True:
            packet = icmp.recv(65536)[20:]
            kind, code, _, ident, number = struct.unpack("!BBHHH", packet[:8])
            if (kind, code, ident, number) == (0, 0, os.getpid() & 0xffff, len(data)):
                assert checksum(packet) == 0
                return packet[8:]


def checksum(message):
    words = struct.unpack(f"!{(len(message) + 1) // 2}H", message + bytes(len(message) % 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


if __name__ == "__main__":
    harness.main()
