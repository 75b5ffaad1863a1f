"""Jobs over NICs that are bound to vfio-pci: for root of a guest of guests.py, which has four NICs
of one model behind a bridge. A class for each model, named as the kernel's driver."""
import json
import os
import re
import socket
import subprocess

import guests
import harness
from harness import af_packet, linux

NIC = os.path.join(harness.ROOT, "scripts", "nic")
NICS = [f"0000:00:{guests.FIRST_SLOT + nic:02x}.0" for nic in range(guests.NICS_OF_A_GUEST)]
INTERFACES = [f"eth{nic}" for nic in range(guests.NICS_OF_A_GUEST)]
DAEMONS, WORKERS = NICS[:2]  # the two that are bound to vfio-pci
UDP_PORT = 4747
LIMIT = 240  # seconds: instructions are interpreted
LONG_TIMEOUT_MS = 120_000
HUGEPAGES_MIB = 768  # for the daemon and for the worker with a NIC
GARBAGE = 32  # datagrams for each lane
HELLOS = 10  # the most that a rank sends before it gets an answer
PERF = ("sluice-perf", "-b", 4, "-e", "256K", "-f", 64, "-n", 2, "-w", 1)


def has_carrier(interface):
    with open(f"/sys/class/net/{interface}/carrier", encoding="ascii") as file:
        return file.read().strip() == "1"


class NicTest(harness.SystemTest):
    def nic(self, *words, status=0):
        done = subprocess.run([NIC, *map(str, words)], text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr


class Carries:
    """Cases for every model."""
    abilities = ""  # as in the daemon's log
    link = ""
    lanes = 2
    spreads = False  # the emulated device uses all of its queues
    steering = "software hand-over"

    def test_jobs(self):
        self.assertEqual(list(self.facts()), NICS)
        self.are_the_kernels(NICS)
        self.set_up_interfaces()
        self.prepare()
        self.carry(1500, ranks=2)
        self.carry(9000, ranks=3, flags=("--multicast-groups", "239.255.74.0/24"))
        for address in (DAEMONS, WORKERS):
            self.nic("unbind", address)
        self.are_the_kernels((DAEMONS, WORKERS))

    def facts(self):
        return {one["address"]: one for one in json.loads(self.nic("show", "--json"))}

    def are_the_kernels(self, addresses):
        facts = self.facts()
        for address in addresses:
            self.assertEqual(facts[address]["driver"], self.driver)
            self.assertIn("af_xdp", facts[address]["ways"])

    def set_up_interfaces(self):
        """The last rank is in its own network namespace: DPDK 22.11 sometimes gives packet sockets
        of two processes the same number, and then the kernel refuses one of them."""
        for name in INTERFACES:
            af_packet.ip("link", "set", name, "mtu", 9000, "up")
            harness.wait_until(lambda name=name: has_carrier(name), f"{name} has its link", LIMIT)
        home = af_packet.own_network_namespace()
        linux.enter_new_network_namespace()
        self.last_host = af_packet.own_network_namespace()
        linux.enter_network_namespace(home)
        last = INTERFACES[-1]
        af_packet.ip("link", "set", last, "netns", f"/proc/{os.getpid()}/fd/{self.last_host}")
        linux.enter_network_namespace(self.last_host)
        af_packet.ip("link", "set", last, "up")
        linux.enter_network_namespace(home)

    def prepare(self):
        """Acts as an operator: follows `nic check` until nothing is missing."""
        check = ("check", INTERFACES[0], "--lanes", self.lanes, "--mtu", 9000, "--memory",
                 HUGEPAGES_MIB)
        said = self.nic(*check, status=1).splitlines()
        missing = [line.split()[1] for line in said if line.startswith("MISSING")]
        self.assertEqual(missing, ["driver", "hugepages"], said)
        for line, command in zip(said, said[1:]):
            if line.startswith("MISSING"):
                subprocess.run(command, shell=True, check=True, cwd=harness.ROOT)
        self.nic("check", DAEMONS, *check[2:])
        self.nic("bind", WORKERS, "vfio-pci")
        facts = self.facts()
        for address in (DAEMONS, WORKERS):
            self.assertEqual(facts[address]["driver"], "vfio-pci")
            self.assertEqual(facts[address]["ways"], {"vfio": address})

    def carry(self, mtu, ranks, flags=()):
        """A job of which rank 0 has a NIC too, and the others interfaces of the kernel."""
        cpus = [word for cpu in guests.LANE_CPUS[:self.lanes] for word in ("--cpu", cpu)]
        daemon = self.start(
            "a0", harness.program("sluice-aggregator"), "--pci", "on", "--hugepages", "on",
            "--port", DAEMONS.removeprefix("0000:"), "--address", "10.77.0.1/16",
            "--udp-port", UDP_PORT, "--port-mtu", mtu, "--lanes", self.lanes, *cpus,
            "--liveness-timeout-ms", LONG_TIMEOUT_MS, "--formation-timeout-ms", LONG_TIMEOUT_MS,
            *flags)
        daemon.address = "10.77.0.1"
        daemon.wait_to_say(harness.READY, LIMIT)
        self.assertRegex(daemon.err, rf"port \S+: {self.abilities}\n")
        if self.lanes > 1:
            self.assertRegex(daemon.err, rf"port \S+: steering: {self.steering} \(")
        daemon.wait_to_say(rf"port \S+: the link is up{self.link}\n", LIMIT)
        self.send_garbage()
        rows = os.path.join(self.place, f"rows-{mtu}.json")
        ports = [WORKERS, *(f"net_af_packet0,iface={name}" for name in INTERFACES[2:])]
        hosts = [None, None, lambda: linux.enter_network_namespace(self.last_host)]
        job = [self.start_rank(rank, ranks, daemon, *PERF, "--density", "1,0.1",
                               *(("--json", rows) if rank == 0 else ()), before_exec=hosts[rank],
                               SLUICE_PORT=ports[rank], SLUICE_ADDRESS=af_packet.worker_ip(rank),
                               SLUICE_MTU=mtu, SLUICE_LOG="debug",
                               SLUICE_AGGREGATOR_TIMEOUT_MS=LONG_TIMEOUT_MS,
                               SLUICE_JOIN_TIMEOUT_MS=LONG_TIMEOUT_MS) for rank in range(ranks)]
        for rank in job:
            self.assertEqual(rank.wait(LIMIT), 0, rank.name)
        with open(rows, encoding="utf-8") as file:
            self.assertEqual([row["wrong"] for row in json.load(file)], [0] * 12)
        self.ends_on_signal(daemon)
        self.check_counters(daemon, ranks)
        if flags:
            self.assertGreater(sum(self.of_lanes(daemon, "results_by_group")), 0)
            self.assertRegex(job[0].err, "multicast groups are received by")
            self.assertRegex(job[0].err, r"beacons_received \d")

    def send_garbage(self):
        """From many ports, so that the device spreads it; the kernel leaves the checksum to its
        device, and a device that another emulates leaves it unfinished."""
        af_packet.ip("address", "replace", "10.77.9.9/16", "dev", INTERFACES[2])
        for lane in range(self.lanes):
            for _ in range(GARBAGE):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                    sender.sendto(b"garbage", ("10.77.0.1", UDP_PORT + lane))

    def of_lanes(self, daemon, name):
        if self.lanes == 1:
            return [self.counter(daemon, name)]
        return [self.counter(daemon, name, lane) for lane in range(self.lanes)]

    def check_counters(self, daemon, ranks):
        """Every lane has worked, and nothing was lost for the device's sake. Where it steers by
        source ports, garbage and each rank's first HELLOs reach wrong lanes, and no more."""
        self.assertTrue(all(self.of_lanes(daemon, "rounds_finished")))
        if self.spreads:
            self.assertTrue(all(self.of_lanes(daemon, "rx_frames")))
            self.assertLessEqual(sum(self.of_lanes(daemon, "rx_handed_over")),
                                 self.lanes * GARBAGE + HELLOS * ranks)
        self.assertNotRegex(daemon.err, r"\b(rx_bad_\w+|rx_multi_segment) \d")
        garbage = sum(map(int, re.findall(r"\btoo_short (\d+)", daemon.err)))
        self.assertEqual(garbage, self.lanes * GARBAGE)


class Vmxnet3(Carries, NicTest):
    driver = "vmxnet3"
    abilities = ("net_vmxnet3, 2 of 8 queues by addresses, UDP checksums computed and verified, "
                 "chained buffers taken")
    link = ", 10000 Mbit/s"


class VirtioNet(Carries, NicTest):
    driver = "virtio-pci"
    abilities = ("net_virtio, 2 of 2 queues by UDP ports, UDP checksums not computed and verified, "
                 "chained buffers taken")
    spreads = True
    steering = "source ports, by RSS"


class E1000e(Carries, NicTest):
    driver = "e1000e"
    abilities = ("net_e1000_em, 2 of 2 queues, UDP checksums computed and verified, "
                 "chained buffers taken")
    link = ", 1000 Mbit/s"


class E1000(Carries, NicTest):
    """Its driver tells of two queues, but what is sent by the second never leaves."""
    driver = "e1000"
    lanes = 1
    abilities = E1000e.abilities.replace("2 of 2", "1 of 2")
    link = E1000e.link


class WithoutIommu(NicTest):
    def test_a_device_keeps_its_driver(self):
        """Debian's kernels bind none then."""
        self.assertRegex(self.nic("check", INTERFACES[0], status=1),
                         "MISSING  IOMMU .* this one lacks CONFIG_VFIO_NOIOMMU")
        self.assertIn("vfio-pci did not take it", self.nic("bind", DAEMONS, "vfio-pci", status=1))
        self.assertIn("its driver is e1000, as before",
                      self.nic("bind", DAEMONS, "vfio-pci", status=1))
        facts = json.loads(self.nic("show", "--json", DAEMONS))
        self.assertEqual((facts[0]["driver"], facts[0]["interface"]), ("e1000", INTERFACES[0]))


if __name__ == "__main__":
    harness.main()
