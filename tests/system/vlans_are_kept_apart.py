"""Ports in a VLAN: their frames have its tag on the wire, and those of other VLANs do not reach
them. The switch forwards frames of every VLAN to all its ports."""
import ctypes
import fcntl
import os
import socket
import struct
import unittest

import harness
from harness import af_packet, af_xdp
from ranges import LARGEST_AF_XDP_MTU

VLAN, OTHER = 7, 8
HIGHEST_PRIORITY = 7 << 13
AGGREGATOR = af_packet.aggregator_ip(0)
KERNELS = "10.77.0.98"  # no Sluice runs there
BROADCAST = b"\xff" * 6
IGMP = 2
TAG, ARP, IPV4 = b"\x81\0", b"\x08\x06", b"\x08\0"
ETH_P_ALL = 3
# <linux/if_packet.h>: the kernel removes tags from frames, and reports them separately.
SOL_PACKET, PACKET_AUXDATA, VLAN_IS_VALID = 263, 8, 1 << 4
AUXDATA = struct.Struct("=IIIHHHH")
# <linux/ethtool.h>
SIOCETHTOOL, GET_FLAGS, SET_FLAGS, TX_VLAN, RX_VLAN = 0x8946, 0x25, 0x26, 1 << 7, 1 << 8


class Wire:
    """A packet socket at an interface of the namespace that this process is in."""

    def __init__(self, interface):
        self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.raw.settimeout(harness.TIME_LIMIT)
        self.raw.bind((interface, ETH_P_ALL))
        self.mac = self.raw.getsockname()[4]

    def send(self, to, control, kind, packet):
        self.raw.send(to + self.mac + TAG + control.to_bytes(2, "big") + kind + packet)

    def receive(self):
        """The next frame without its tag, and the tag or None."""
        frame, ancillary, _, _ = self.raw.recvmsg(65536, socket.CMSG_SPACE(AUXDATA.size))
        status, _, _, _, _, control, _ = AUXDATA.unpack(ancillary[0][2])
        return frame, control if status & VLAN_IS_VALID else None

    def answer(self, control, kind):
        """The next frame to this interface of that kind and tag."""
        while True:
            frame, told = self.receive()
            if (frame[:6], frame[12:14], told) == (self.mac, kind, control):
                return frame


class VlanTest(harness.NetworkTest):
    def start_job(self, ranks, daemon, *command, vlan=VLAN, **settings):
        return super().start_job(ranks, daemon, *command, SLUICE_VLAN=vlan, **settings)

    def wire_of(self, host, interface):
        harness.linux.enter_network_namespace(host)
        try:
            wire = Wire(interface)
            self.addCleanup(wire.raw.close)
            return wire
        finally:
            harness.linux.enter_network_namespace(self.network.switch)

    def answers_pings(self, *data_of_each):
        """Each is sent three times, and once in the VLAN."""
        wire = self.wire_of(self.network.worker_namespace(0), af_packet.PORT)
        wire.send(BROADCAST, HIGHEST_PRIORITY | VLAN, ARP, arp_request(wire.mac))
        to = wire.answer(VLAN, ARP)[6:12]
        for data in data_of_each:
            for control in (OTHER, 0, HIGHEST_PRIORITY | VLAN):
                wire.send(to, control, IPV4, ping(data))
            reply = wire.answer(VLAN, IPV4)
            self.assertEqual(reply[14 + 20:14 + 22], b"\0\0")
            self.assertEqual(reply[14 + 28:14 + 28 + len(data)], data)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Vlans(VlanTest):
    def test_all_frames_of_a_job_have_the_tag(self):
        self.make_network(workers=2, aggregators=1)
        daemon = self.start_aggregator(0, "--port-vlan", VLAN, "--lanes", 2)
        self.assertIn(f"UDP port 4747, VLAN {VLAN}", daemon.err)
        wire = self.wire_of(self.network.switch, "a0")
        job = self.start_steady_job(2, daemon)
        kinds = set()
        for _ in range(2000):
            frame, control = wire.receive()
            if frame[12:14] == IPV4 and frame[23] == IGMP:  # the switch's own
                continue
            self.assertEqual(control, VLAN, frame[:34].hex(" "))
            kinds.add(frame[12:14])
        self.assertEqual(kinds, {ARP, IPV4})
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        for lane in range(2):
            self.assertGreater(self.counter(daemon, "rounds_finished", lane), 0)
        handed_over = sum(self.counter(daemon, "rx_handed_over", lane) for lane in range(2))
        self.assertGreater(handed_over, 0)

    def test_the_longest_packets(self):
        self.make_network(workers=2, aggregators=1, mtu=9000)
        daemon = self.start_aggregator(0, "--port-vlan", VLAN)
        self.end_steady_job(self.start_steady_job(2, daemon, elements=500_000))
        self.answers_pings(bytes(8972))
        self.ends_on_signal(daemon)
        self.assertRegex(daemon.err, "formed, .*payload 8972 B")

    def test_results_by_group(self):
        self.make_network(workers=3, aggregators=1)
        daemon = self.start_aggregator(0, "--port-vlan", VLAN, "--stats-interval-s", 1,
                                       "--multicast-groups", "239.255.74.0/24")
        job = self.start_steady_job(3, daemon)
        daemon.wait_to_say(r"results_by_group \d")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_pings_of_any_priority_are_answered(self):
        self.make_network(workers=1, aggregators=1)
        daemon = self.start_aggregator(0, "--port-vlan", VLAN)
        self.answers_pings(b"", bytes(1472))
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "echoes_answered"), 2)
        self.assertGreaterEqual(self.counter(daemon, "rx_other_vlan"), 4)  # the switch queries, too

    def test_two_vlans_with_the_same_addresses(self):
        self.make_network(workers=4, aggregators=2)
        first = self.start_aggregator(0, "--port-vlan", VLAN)
        second = self.start_aggregator(1, "--port-vlan", OTHER, address=0)
        jobs = [self.start_steady_job(2, first)]
        self.network.worker_hosts[:2] = self.network.worker_hosts[2:]
        jobs.append(self.start_steady_job(2, second, vlan=OTHER))
        for job in jobs:
            self.end_steady_job(job)
        for daemon in (first, second):
            self.ends_on_signal(daemon)
            self.assertEqual(self.counter(daemon, "jobs_left"), 1)

    def test_ranks_of_another_vlan_or_of_none(self):
        self.make_network(workers=4, aggregators=1)
        daemon = self.start_aggregator(0, "--port-vlan", VLAN)
        job = self.start_steady_job(2, daemon)
        for rank, vlan, where in ((2, OTHER, f" in VLAN {OTHER}"), (3, 0, "")):
            lost = self.start_joiner(rank, 4, daemon, SLUICE_VLAN=vlan, SLUICE_JOIN_TIMEOUT_MS=1000)
            self.refuses(lost, 3, rf"aggregator 0 at {AGGREGATOR}{where} is unreachable within "
                                  "1000 ms$")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertGreater(self.counter(daemon, "rx_other_vlan"), 0)

    def test_a_daemon_of_none(self):
        self.make_network(workers=1, aggregators=1)
        daemon = self.start_aggregator(0)
        rank = self.start_joiner(0, 1, daemon, SLUICE_VLAN=VLAN, SLUICE_JOIN_TIMEOUT_MS=1000)
        self.refuses(rank, 3, f"in VLAN {VLAN} is unreachable within 1000 ms$")
        self.ends_on_signal(daemon)
        self.assertGreater(self.counter(daemon, "rx_other_vlan"), 0)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfXdp(VlanTest):
    """Its sockets cannot carry a tag that an interface has removed from its frame."""

    def setUp(self):
        self.make_network(workers=2, aggregators=1, mtu=LARGEST_AF_XDP_MTU)
        self.network.driver = af_xdp.DRIVER

    def test_an_interface_that_takes_tags_off(self):
        daemon = self.start("a0", harness.program("sluice-aggregator"),
                            *self.network.aggregator_arguments(0), "--port-vlan", VLAN,
                            before_exec=self._on(self.network.aggregator_namespace(0)))
        self.ends_with(daemon, 1, f"VLAN {VLAN}, but interface {af_packet.PORT} takes tags off "
                                  f"frames, .*: ethtool -K {af_packet.PORT} rxvlan off")

    def test_one_that_leaves_them(self):
        """The other end of a veth link must not keep tags outside of the frame either."""
        for host in (*self.network.worker_hosts, *self.network.aggregator_hosts):
            harness.linux.enter_network_namespace(host)
            leave_tags_in_frames(af_packet.PORT)
        harness.linux.enter_network_namespace(self.network.switch)
        for port in ("w0", "w1", "a0"):
            leave_tags_in_frames(port)
        daemon = self.start_aggregator(0, "--port-vlan", VLAN)
        self.end_steady_job(self.start_steady_job(2, daemon))
        self.answers_pings(bytes(LARGEST_AF_XDP_MTU - 28))
        self.ends_on_signal(daemon)


def leave_tags_in_frames(interface):
    """ethtool -K INTERFACE rxvlan off txvlan off."""
    def ask(question, flags):
        value = bytearray(struct.pack("=II", question, flags))
        address = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
        request = struct.pack("16sP", interface.encode(), address) + bytes(16)
        fcntl.ioctl(kernel, SIOCETHTOOL, request)
        return struct.unpack("=II", value)[1]

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        ask(SET_FLAGS, ask(GET_FLAGS, 0) & ~(RX_VLAN | TX_VLAN))


def arp_request(mac):
    """An ARP request for the aggregator's address, from the kernel's."""
    return (b"\0\x01" b"\x08\0" b"\x06\x04" b"\0\x01" + mac + socket.inet_aton(KERNELS)
            + bytes(6) + socket.inet_aton(AGGREGATOR))


def ping(data):
    """An IPv4 packet with an ICMP echo request."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(data), 0, 0x4000, 64, 1, 0)
    addresses = socket.inet_aton(KERNELS) + socket.inet_aton(AGGREGATOR)
    head = head[:10] + checksum(head + addresses) + addresses
    message = struct.pack("!BBHHH", 8, 0, 0, 1, 1) + data
    return head + message[:2] + checksum(message) + message[4:]


def checksum(data):
    """The checksum of RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return (~total & 0xffff).to_bytes(2, "big")


if __name__ == "__main__":
    harness.main()
