"""Failures of a network: cables, duplicate addresses, false ARP, links of another
MTU. The job continues with right sums, or its calls end within their time-outs and name the
cause."""
import os
import re
import socket
import subprocess
import threading
import time
import unittest

import harness
from harness import af_packet, af_xdp

JOB = 7
LONG = 60_000  # ms: a time-out that would fail the test if it were what ends a wait
SOON = 10_000  # ms: within the wait for a rank that may be ended by it
SECRET = "known-to-the-ranks-and-their-daemon"
GONE = 2  # seconds for which a cable is pulled: a rank joins again after 1.5 s without a packet
NOBODYS = "10.77.0.99"
KERNELS = "10.77.0.98"  # no Sluice runs there
FAR = "10.78.0.1"  # behind a gateway
AGGREGATOR, RANK_0 = (af_packet.aggregator_ip(0), af_packet.worker_ip(0).split("/")[0])
ETHERNET_BROADCAST = b"\xff" * 6


class NetworkFault(harness.NetworkTest):
    def serve(self, host=0, *flags, address=None, liveness_ms=LONG, **settings):
        return self.start_aggregator(host, "--straggler-warning-ms", 250, "--drain-timeout-ms", 100,
                                     "--liveness-timeout-ms", liveness_ms, *flags,
                                     address=address, **settings)

    def serve_authenticated(self):
        return self.serve(0, "--authenticate-packets", SLUICE_AGGREGATOR_SECRET=SECRET)

    def sum_steadily(self, ranks, daemon, **settings):
        return self.start_steady_job(ranks, daemon, SLUICE_JOB=JOB, **settings)

    def on_host(self, namespace, *command, call=af_packet.ip):
        harness.linux.enter_network_namespace(namespace)
        try:
            call(*command)
        finally:
            harness.linux.enter_network_namespace(self.network.switch)

    def pull_and_put_back(self, job, link, host=None):
        """The switch's port, or an interface of a host, is down for a while; then the job
        continues: each rank gets the sum that it has waited for."""
        host = self.network.switch if host is None else host
        self.goes_on_after(job, *(lambda state=state: self.on_host(host, "link", "set", link, state)
                                  for state in ("down", "up")))

    def goes_on_after(self, job, begin, end):
        before = [long_waits(rank) for rank in job]
        begin()
        time.sleep(GONE)
        end()
        for rank, waits in zip(job, before):
            harness.wait_until(lambda rank=rank, waits=waits: long_waits(rank) > waits or
                               not rank.is_running(), f"{rank.name} goes on")

    def loses_rank(self, rank, lost):
        self.ends_with(rank, 3, f"worker lost about rank {lost}: job {JOB}: rank {lost} is "
                                r"declared failed: nothing was received for \d+ ms")

    def loses_aggregator(self, rank):
        self.ends_with(rank, 3, f"aggregator lost: job {JOB}: aggregator 0 at {AGGREGATOR} is "
                                "declared failed: nothing was received for")

    def sums_or_ends_clearly(self, job, *sayings):
        """Which of both wins depends on whose answer comes first. No rank may be left behind."""
        harness.wait_until(lambda: all("under way" in rank.out for rank in job) or
                           not all(rank.is_running() for rank in job), "it sums or ends")
        if all("under way" in rank.out for rank in job):
            self.end_steady_job(job)
            return
        for rank in job:
            self.ends_with(rank, 3, "|".join(sayings))


def long_waits(rank):
    """The number of sums for which it has waited as long as a fault lasts."""
    waits = re.findall(r"waited from ([0-9.]+) to ([0-9.]+)\n", rank.out)
    return sum(float(end) - float(begin) > GONE / 2 for begin, end in waits)


class Cables:
    """Cases for every kind of port."""

    def setUp(self):
        self.make_network(workers=2, aggregators=1)
        self.network.driver = self.driver

    def test_pulled_and_put_back(self):
        daemon = self.serve()
        job = self.sum_steadily(2, daemon)
        for link in self.links:
            self.pull_and_put_back(job, link)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfPacketCables(Cables, NetworkFault):
    driver = af_packet.DRIVER
    links = ("w1", "a0")

    def test_of_a_rank_for_good(self):
        daemon = self.serve(liveness_ms=2000)
        job = self.sum_steadily(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=3000)
        af_packet.ip("link", "set", "w1", "down")
        self.loses_rank(job[0], 1)
        self.loses_aggregator(job[1])
        self.ends_on_signal(daemon)

    def test_of_a_rank_until_it_is_too_late(self):
        daemon = self.serve(liveness_ms=2000)
        job = self.sum_steadily(2, daemon)
        af_packet.ip("link", "set", "w1", "down")
        self.loses_rank(job[0], 1)
        af_packet.ip("link", "set", "w1", "up")
        self.loses_rank(job[1], 1)
        self.ends_on_signal(daemon)

    def test_of_the_aggregator_for_good(self):
        daemon = self.serve()
        job = self.sum_steadily(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=2000)
        af_packet.ip("link", "set", "a0", "down")
        for rank in job:
            self.loses_aggregator(rank)

    def test_interfaces_that_their_hosts_turn_off(self):
        daemon = self.serve()
        job = self.sum_steadily(2, daemon)
        for host in (self.network.worker_namespace(1), self.network.aggregator_namespace(0)):
            self.pull_and_put_back(job, af_packet.PORT, host)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)


    def test_frames_that_are_refused_for_a_while(self):
        """The kernel keeps the first frame that its queue or the switch's port refuses, and all
        those behind it."""
        daemon = self.serve()
        job = self.sum_steadily(2, daemon)
        shaper = ("qdisc", "add", "dev", af_packet.PORT, "root", "tbf", "rate", "100mbit", "burst",
                  500, "latency", "50ms")
        for host in (self.network.worker_namespace(1), self.network.aggregator_namespace(0)):
            self.goes_on_after(job, lambda host=host: self.on_host(host, *shaper, call=tc),
                               lambda host=host: self.on_host(host, "qdisc", "del", *shaper[2:5],
                                                              call=tc))
        for port in ("w1", "a0"):
            self.goes_on_after(job, *(lambda port=port, mtu=mtu: af_packet.ip(
                "link", "set", port, "mtu", mtu) for mtu in (300, af_packet.DEFAULT_MTU)))
        self.end_steady_job(job)
        self.ends_on_signal(daemon)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class AfXdpCables(Cables, NetworkFault):
    driver = af_xdp.DRIVER
    links = ("a0",)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class SameAddress(NetworkFault):
    UNHEARD = (rf"aggregator 0 at {AGGREGATOR} did not answer within",
               r"waits for rank [\d, ]+ to join",
               rf"aggregator 0 at {AGGREGATOR} is unreachable within",
               r"worker lost about rank \d", r"formation failed about rank \d",
               rf"aggregator lost: job {JOB}: aggregator 0 at {AGGREGATOR}")

    def setUp(self):
        self.make_network(workers=3, aggregators=2)

    def give_address_to_a_kernel(self):
        """Another host, where no Sluice runs, answers ARP for the aggregator's address."""
        self.on_host(self.network.worker_namespace(2), "address", "add", AGGREGATOR + "/16", "dev",
                     af_packet.PORT)

    def test_of_two_ranks(self):
        """They differ in their Ethernet addresses, and nobody asks for theirs."""
        daemon = self.serve()
        self.end_steady_job(self.sum_steadily(3, daemon, SLUICE_ADDRESS=af_packet.worker_ip(0)))
        self.ends_on_signal(daemon)

    def test_of_an_aggregator_and_a_host_while_ranks_join(self):
        self.give_address_to_a_kernel()
        daemon = self.serve(liveness_ms=SOON)
        job = self.launch_steady_job(2, daemon, SLUICE_JOB=JOB, SLUICE_JOIN_TIMEOUT_MS=3000,
                                     SLUICE_AGGREGATOR_TIMEOUT_MS=3000)
        self.sums_or_ends_clearly(job, *self.UNHEARD)
        self.ends_on_signal(daemon)

    def test_of_an_aggregator_and_a_host_while_a_job_runs(self):
        daemon = self.serve()
        job = self.sum_steadily(2, daemon)
        self.give_address_to_a_kernel()
        self.pull_and_put_back(job, "w1")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_of_two_daemons_while_ranks_join(self):
        daemons = [self.serve(liveness_ms=SOON), self.serve(1, address=0, liveness_ms=SOON)]
        job = self.launch_steady_job(3, daemons[0], SLUICE_JOB=JOB, SLUICE_JOIN_TIMEOUT_MS=3000,
                                     SLUICE_AGGREGATOR_TIMEOUT_MS=SOON)
        self.sums_or_ends_clearly(job, *self.UNHEARD)
        for daemon in daemons:
            self.ends_on_signal(daemon)

    def test_of_two_daemons_each_heard_by_one_rank(self):
        daemons = [self.serve(), self.serve(1, address=0)]
        for rank, daemon in enumerate((1, 0)):
            self.let_nothing_through(self.ethernet_address(self.network.aggregator_namespace(
                daemon)), f"w{rank}")
        job = self.launch_steady_job(2, daemons[0], SLUICE_JOB=JOB, SLUICE_JOIN_TIMEOUT_MS=1500)
        for rank, absent in ((0, 1), (1, 0)):
            self.ends_with(job[rank], 3, f"formation failed: job {JOB}: aggregator 0 at "
                                         f"{AGGREGATOR} still waits for rank {absent} to join")
        for daemon in daemons:
            self.ends_on_signal(daemon)

    def test_of_two_daemons_while_a_job_runs(self):
        """The job stays at its aggregator."""
        first = self.serve()
        job = self.sum_steadily(2, first)
        second = self.serve(1, address=0)
        self.pull_and_put_back(job, "w1")
        self.end_steady_job(job)
        for daemon, jobs in ((first, 1), (second, 0)):
            self.ends_on_signal(daemon)
            self.assertEqual(self.counter(daemon, "jobs_formed"), jobs)

    def ethernet_address(self, namespace):
        harness.linux.enter_network_namespace(namespace)
        try:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
                raw.bind((af_packet.PORT, 0))
                return raw.getsockname()[4].hex(":")
        finally:
            harness.linux.enter_network_namespace(self.network.switch)

    @staticmethod
    def let_nothing_through(source, link):
        """From that Ethernet address, through the switch's port."""
        af_packet.ip("link", "add", "name", f"nowhere-{link}", "type", "ifb")  # it is down
        tc("qdisc", "add", "dev", link, "clsact")
        tc("filter", "add", "dev", link, "egress", "protocol", "all", "u32", "match", "ether",
           "src", source, "action", "mirred", "egress", "redirect", "dev", f"nowhere-{link}")


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class ForgedArp(NetworkFault):
    """A third host claims the addresses of the aggregator and of a rank all the time."""

    def setUp(self):
        self.make_network(workers=3, aggregators=1)

    def forge(self, period=0.02):
        harness.linux.enter_network_namespace(self.network.worker_namespace(2))
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        raw.bind((af_packet.PORT, 0))
        harness.linux.enter_network_namespace(self.network.switch)
        forger = Forger(raw, period, AGGREGATOR, RANK_0)
        self.addCleanup(forger.end)
        return forger

    def test_while_a_job_runs(self):
        daemon = self.serve_authenticated()
        job = self.sum_steadily(2, daemon, SLUICE_SECRET=SECRET)
        forger = self.forge()
        forger.wait_for_rounds(50)
        self.assertTrue(all(rank.is_running() for rank in job))
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "not_authentic"), 0)

    def test_while_a_rank_joins_again(self):
        """It asks by ARP and gets false answers, but it knows where the aggregator was."""
        daemon = self.serve_authenticated()
        job = self.sum_steadily(2, daemon, SLUICE_SECRET=SECRET)
        forger = self.forge()
        forger.wait_for_rounds(1)
        # Its port stays up: with DPDK 24.11 a rank sees one that is down, and only waits.
        self.goes_on_after(
            job, lambda: self.on_host(self.network.switch, "link", "set", "w0", "nomaster"),
            lambda: self.on_host(self.network.switch, "link", "set", "w0", "master", "switch0"))
        job[0].wait_to_say(f"{AGGREGATOR} is at Ethernet address .*ARP is forged")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_while_a_job_forms(self):
        """Each rank asks all hosts that claim the address, and continues with the one that
        answers."""
        daemon = self.serve_authenticated()
        forger = self.forge(period=0.001)
        forger.wait_for_rounds(1)
        job = self.sum_steadily(2, daemon, SLUICE_SECRET=SECRET, SLUICE_JOIN_TIMEOUT_MS=20_000)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_formed"), 1)

    def test_of_an_aggregator_that_is_not_there(self):
        """The kernel of another host claims the address, and so does the third host."""
        self.on_host(self.network.worker_namespace(1), "address", "add", AGGREGATOR + "/16", "dev",
                     af_packet.PORT)
        forger = self.forge()
        forger.wait_for_rounds(1)
        rank = self.start_joiner(0, 1, AGGREGATOR, SLUICE_JOIN_TIMEOUT_MS=2000)
        self.ends_with(rank, 3, f"aggregator 0 at {AGGREGATOR} did not answer within 2 s; the way "
                                f"to {AGGREGATOR} is claimed by several Ethernet addresses: "
                                r"[0-9a-f:]{17}, [0-9a-f:]{17}: two hosts have one address, "
                                "or ARP is forged$")

    def test_and_it_ends(self):
        """A rank whose first ARP answer was false finds the aggregator."""
        daemon = self.serve_authenticated()
        forger = self.forge()
        forger.wait_for_rounds(1)
        job = self.launch_steady_job(2, daemon, SLUICE_JOB=JOB, SLUICE_SECRET=SECRET,
                                     SLUICE_JOIN_TIMEOUT_MS=LONG)
        forger.wait_for_rounds(50)
        forger.end()
        for rank in job:
            rank.wait_to_say("under way")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)


class Forger:
    """Every `period`, replies and requests from `raw`'s Ethernet address, to all."""

    def __init__(self, raw, period, *addresses):
        self.raw, self.period, self.rounds = raw, period, 0
        own = raw.getsockname()[4]
        self.frames = [arp(operation, own, address) for address in addresses
                       for operation in (1, 2)]
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.send_all_the_time)
        self.thread.start()

    def send_all_the_time(self):
        while not self.ended.wait(self.period):
            for frame in self.frames:
                self.raw.send(frame)
            self.rounds += 1

    def wait_for_rounds(self, count):
        until = self.rounds + count
        harness.wait_until(lambda: self.rounds >= until, "ARP is forged")

    def end(self):
        self.ended.set()
        self.thread.join()
        self.raw.close()


def arp(operation, mac, address):
    """An announcement: the sender, and the address that it claims."""
    ipv4 = socket.inet_aton(address)
    head = b"\x08\x06" b"\0\x01" b"\x08\0" b"\x06\x04" + operation.to_bytes(2, "big")
    return ETHERNET_BROADCAST + mac + head + mac + ipv4 + ETHERNET_BROADCAST + ipv4


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Mtu(NetworkFault):
    """Hosts are configured for 3000 bytes; joining needs only small packets."""

    HOSTS, LINK = 3000, 1500

    def setUp(self):
        self.make_network(workers=2, aggregators=1)
        for host in (*self.network.worker_hosts, *self.network.aggregator_hosts):
            self.on_host(host, "link", "set", af_packet.PORT, "mtu", self.HOSTS)
        self.network.mtu = self.HOSTS

    def put_link_between(self):
        """Two switches: the ranks are at one and the aggregator at the other."""
        for port in ("w0", "w1", "a0"):
            af_packet.ip("link", "set", port, "mtu", self.HOSTS)
        af_packet.ip("link", "add", "name", "switch1", "mtu", self.HOSTS, "type", "bridge",
                     "stp_state", 0, "forward_delay", 0)
        af_packet.ip("link", "set", "switch1", "up")
        af_packet.ip("link", "add", "link0", "mtu", self.LINK, "type", "veth", "peer", "name",
                     "link1", "mtu", self.LINK)
        for port, switch in (("link0", "switch0"), ("link1", "switch1"), ("w0", "switch1"),
                             ("w1", "switch1")):
            af_packet.ip("link", "set", port, "master", switch, "up")

    def test_a_link_that_carries_less_until_it_is_corrected(self):
        self.put_link_between()
        daemon = self.serve()
        job = self.launch_steady_job(2, daemon, SLUICE_JOB=JOB)
        daemon.wait_to_say(rf"job {JOB}: op 0 has waited \d+ ms for rank \d")
        for port in ("link0", "link1"):
            af_packet.ip("link", "set", port, "mtu", self.HOSTS)
        for rank in job:
            rank.wait_to_say("under way")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_a_link_that_carries_less_for_good(self):
        self.put_link_between()
        daemon = self.serve(liveness_ms=1000)
        job = self.launch_steady_job(2, daemon, SLUICE_JOB=JOB, SLUICE_AGGREGATOR_TIMEOUT_MS=1000)
        for rank in job:
            self.ends_with(rank, 3, rf"aggregator 0 at {AGGREGATOR}.* answers KEEPALIVEs, and "
                                    r"nothing else .*IP packets of 3000 bytes|lost the connection "
                                    "to aggregator 0")
        self.assertIn("IP packets of 3000 bytes", job[0].err + job[1].err)

    def test_ports_of_the_switch_that_carry_less(self):
        """veth keeps a frame that the switch's end does not accept, and all frames behind it."""
        daemon = self.serve(liveness_ms=2000)
        job = self.launch_steady_job(2, daemon, SLUICE_JOB=JOB, SLUICE_AGGREGATOR_TIMEOUT_MS=3000)
        for rank in job:
            self.ends_with(rank, 3, rf"worker lost about rank \d: job {JOB}: rank \d is declared "
                                    rf"failed|aggregator 0 at {AGGREGATOR} is declared failed")
        self.ends_on_signal(daemon)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class NoAnswer(NetworkFault):
    def test_to_arp_or_to_hello(self):
        self.make_network(workers=4, aggregators=1)
        self.on_host(self.network.worker_namespace(3), "address", "add", KERNELS + "/16", "dev",
                     af_packet.PORT)
        silent_gateway = f"{af_packet.worker_ip(1)}@{NOBODYS}"
        told = {
            self.start_joiner(0, NOBODYS): f"{NOBODYS} is unreachable within 1000 ms",
            self.start_joiner(1, FAR, SLUICE_ADDRESS=silent_gateway):
                f"{FAR} is unreachable within 1000 ms: gateway {NOBODYS} does not answer ARP; a "
                f"router that leads there expected in address {silent_gateway}",
            self.start_joiner(2, KERNELS): f"{KERNELS} did not answer within 1 s",
        }
        for rank, saying in told.items():
            self.refuses(rank, 3, rf"^rank \d: aggregator lost: job 0: aggregator 0 at {saying}$")

    def start_joiner(self, rank, aggregator, **settings):
        return super().start_joiner(rank, 4, aggregator, SLUICE_JOIN_TIMEOUT_MS=1000, **settings)


def tc(*words):
    subprocess.run(["tc", *map(str, words)], check=True)


class Names(harness.SystemTest):
    def test_of_an_interface_of_the_kernel(self):
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--port", "lo",
                            "--address", "10.0.0.1/24")
        self.ends_with(daemon, 1, "for an interface of the kernel say net_af_packet0,iface=lo")


if __name__ == "__main__":
    harness.main()
