"""Multicast groups are only sent to hosts that have joined them: the kernel's bridge accepts their
reports and their answers to its queries, and forwards to no other host."""
import json
import os
import re
import signal
import socket
import subprocess
import time
import unittest

import harness
from harness import af_packet, af_xdp

GROUP, OTHER = "239.192.7.1", "239.192.7.2"
SAME_ETHERNET_ADDRESS = "239.64.7.1"  # as GROUP
NOBODYS = "239.192.7.3"
UDP_PORT = 4748
ALL_HOSTS = "224.0.0.1"


class Forwarding:
    """Cases for ports of one queue and of several."""

    queues = 1

    def setUp(self):
        self.make_network(workers=3, aggregators=1)
        self.wait_for_snooping()

    def wait_for_snooping(self):
        """Waits: until its first queries could be answered, the bridge sends all groups to all."""
        with self.all_frames_of_worker(2) as received:
            harness.wait_until(lambda: not self.reaches(received), "groups go to their members")

    def all_frames_of_worker(self, host):
        harness.linux.enter_network_namespace(self.network.worker_namespace(host))
        try:
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
            raw.bind((af_packet.PORT, 0))
            raw.settimeout(0.2)
            return raw
        finally:
            harness.linux.enter_network_namespace(self.network.switch)

    def reaches(self, received):
        """Whether a frame to a group that nobody has joined comes there."""
        self.send(NOBODYS, "flooded")
        try:
            while not received.recv(2000).endswith(b"flooded"):
                pass
            return True
        except TimeoutError:
            return False

    def set_switch(self, **settings):
        """Starts its querier again, as its next query may be due only in minutes."""
        words = [word for name, value in settings.items() for word in (f"mcast_{name}", value)]
        af_packet.ip("link", "set", "switch0", "type", "bridge", *words, "mcast_querier", 0)
        af_packet.ip("link", "set", "switch0", "type", "bridge", "mcast_querier", 1)
        self.wait_for_snooping()

    def join(self, host, *groups):
        address = af_packet.worker_ip(host).split("/")[0]
        member = self.start(f"host{host}", harness.program("net_groups"), self.device, address,
                            self.queues, *groups,
                            before_exec=self._on(self.network.worker_namespace(host)))
        member.wait_to_say("joined by")
        return member

    def members(self, group):
        """The switch's ports to which it forwards the group."""
        shown = subprocess.run(["bridge", "-j", "mdb", "show"], check=True, capture_output=True)
        return {entry["port"] for table in json.loads(shown.stdout)
                for entry in table.get("mdb", []) if entry["grp"] == group}

    def wait_for_members(self, group, *ports):
        harness.wait_until(lambda: self.members(group) == set(ports), f"{group} goes to {ports}")

    def send(self, group, text, source_port=4747):
        """From the aggregator's host, which has no address, as Sluice would."""
        harness.linux.enter_network_namespace(self.network.aggregator_namespace(0))
        try:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
                raw.bind((af_packet.PORT, 0))
                raw.send(frame(group, text.encode(), source_port))
        finally:
            harness.linux.enter_network_namespace(self.network.switch)

    def counted(self, member, name):
        return int(re.search(rf"^{name} (\d+)$", member.out, re.MULTILINE)[1])

    def end(self, *members):
        for member in members:
            member.send(signal.SIGTERM)
        self.all_end_well(members)

    def test_a_group_goes_to_those_that_joined_it(self):
        first, second, third = self.join(0, GROUP), self.join(1, GROUP), self.join(2, OTHER)
        self.wait_for_members(GROUP, "w0", "w1")
        self.wait_for_members(OTHER, "w2")
        for i in range(50):
            self.send(GROUP, f"number {i}.", source_port=5000 + i)
        self.send(OTHER, "other")
        self.send(ALL_HOSTS, "all")
        for member in (first, second):
            member.wait_to_say(r"got number 49\.")
        third.wait_to_say("got other")
        self.end(first, second, third)
        for member in (first, second):
            self.assertEqual(self.counted(member, "rx_group_datagrams"), 50)
        self.assertEqual(self.counted(third, "rx_group_datagrams"), 1)
        # The bridge sends reports of version 3 to all.
        reports = sum(self.counted(member, "igmp_reports_sent") for member in (first, second))
        self.assertLessEqual(self.counted(third, "rx_other_mac"), reports)


class Groups(Forwarding):
    """Cases for each of the transports."""

    def test_answers_to_queries_keep_the_membership(self):
        self.set_switch(query_interval=af_packet.SECOND,
                        membership_interval=6 * af_packet.SECOND)
        member = self.join(0, GROUP)
        self.wait_for_members(GROUP, "w0")
        for _ in range(8):
            time.sleep(1)
            self.assertEqual(self.members(GROUP), {"w0"})
        self.send(GROUP, "still here")
        member.wait_to_say("got still here")
        member.send(signal.SIGSTOP)
        self.wait_for_members(GROUP)
        member.send(signal.SIGCONT)
        self.wait_for_members(GROUP, "w0")
        self.end(member)
        self.assertGreaterEqual(self.counted(member, "igmp_queries"), 8)
        self.assertEqual(self.counted(member, "igmp_ignored"), 0)

    def test_a_group_that_is_left(self):
        member = self.join(0, GROUP, OTHER)
        self.wait_for_members(GROUP, "w0")
        member.send(signal.SIGUSR1)
        self.wait_for_members(GROUP)
        self.wait_for_members(OTHER)
        self.end(member)
        self.assertGreaterEqual(self.counted(member, "igmp_reports_sent"), 3)

    def test_a_switch_of_version_2(self):
        self.set_switch(igmp_version=2, query_interval=af_packet.SECOND,
                        membership_interval=6 * af_packet.SECOND)
        members = [self.join(0, GROUP), self.join(1, GROUP)]
        self.wait_for_members(GROUP, "w0", "w1")
        for _ in range(8):
            time.sleep(1)
            self.assertEqual(self.members(GROUP), {"w0", "w1"})
        members[0].send(signal.SIGUSR1)
        self.wait_for_members(GROUP, "w1")
        self.end(*members)

    def test_a_group_of_the_same_ethernet_address_is_told_apart(self):
        member = self.join(0, GROUP)
        other = self.join(1, SAME_ETHERNET_ADDRESS)
        self.wait_for_members(GROUP, "w0")
        self.wait_for_members(SAME_ETHERNET_ADDRESS, "w1")
        self.send(SAME_ETHERNET_ADDRESS, "not yours")
        self.send(GROUP, "yours")
        member.wait_to_say("got yours")
        other.wait_to_say("got not yours")
        self.end(member, other)
        self.assertNotIn("not yours", member.out)

    def test_the_kernel_knows_what_the_device_must_let_in(self):
        member = self.join(0, GROUP)
        member.wait_to_say("joined by its kernel interface's list of addresses")
        self.assertLessEqual({"01:00:5e:40:07:01", "01:00:5e:00:00:01"}, self.let_in(0))
        member.send(signal.SIGUSR1)
        member.wait_to_say("left")
        harness.wait_until(lambda: "01:00:5e:40:07:01" not in self.let_in(0), "it is forgotten")
        self.end(member)

    def let_in(self, host):
        harness.linux.enter_network_namespace(self.network.worker_namespace(host))
        try:
            shown = subprocess.run(["ip", "-j", "maddress", "show", "dev", af_packet.PORT],
                                   check=True, capture_output=True)
        finally:
            harness.linux.enter_network_namespace(self.network.switch)
        return {address["link"] for interface in json.loads(shown.stdout)
                for address in interface["maddr"] if "link" in address}


def frame(group, payload, source_port):
    """To a multicast group, with UDP's checksum left out."""
    to = socket.inet_aton(group)
    words = [0x4500, 28 + len(payload), 0, 0x4000, 0x4011, 0]
    header = b"".join(word.to_bytes(2, "big") for word in words) + socket.inet_aton("10.77.0.1")
    total = sum(int.from_bytes((header + to)[i:i + 2], "big") for i in range(0, 20, 2))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    header = header[:10] + (~total & 0xffff).to_bytes(2, "big") + header[12:]
    udp = b"".join(word.to_bytes(2, "big")
                   for word in (source_port, UDP_PORT, 8 + len(payload), 0))
    ethernet = b"\x01\x00\x5e" + bytes([to[1] & 0x7f]) + to[2:] + b"\x02\0\0\0\0\x07\x08\0"
    return ethernet + header + to + udp + payload


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfPacket(Groups, harness.NetworkTest):
    device = af_packet.DEVICE


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfPacketOfTwoQueues(Forwarding, harness.NetworkTest):
    device = af_packet.DEVICE
    queues = 2


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfXdp(Groups, harness.NetworkTest):
    device = af_xdp.DEVICE


if __name__ == "__main__":
    harness.main()
