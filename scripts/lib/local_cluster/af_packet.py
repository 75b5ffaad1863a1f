"""Hosts behind a switch: a network namespace and a veth link each, joined by a bridge in one more
namespace. The namespaces have no names: open files hold them, so they and their interfaces go when
the last process using them does, whatever happened. The machine's own namespace is never touched.

Sluice's addresses are unknown to the kernel, which therefore answers nothing in Sluice's place,
unless `let_kernel_speak` is called for programs that use its TCP.
"""
import os
import subprocess

import linux

from .vhost import host_name

DEFAULT_MTU = 1500
PORT = "port0"  # every host's interface
UPLINK = "uplink"  # a host's interface, if its ranks have one each on top of it
UDP_PORT = 4747
ETHERNET_HEADER = 14
SECOND = 100  # as ip(8) counts a bridge's times
QUIET_IPV6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
DRIVER = "net_af_packet0"
DEVICE = f"{DRIVER},iface={PORT}"
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"


class AfPacket:
    driver = DRIVER
    ranks_meet_at = None  # each is on a host of its own, without TCP

    def __init__(self, options, directory):
        self.mtu = options.mtu or DEFAULT_MTU
        self.rate = options.rate
        self.queue = options.queue
        linux.enter_new_network_namespace()  # the switch lives here, and so do we from now on
        silence_kernel()
        self.switch = own_network_namespace()
        self._make_switch()
        self.aggregator_hosts = [self._add_host(f"a{m}") for m in range(options.aggregators)]
        self.ranks_per_host = options.ranks_per_host
        hosts = [self._add_worker_host(first, options.workers)
                 for first in range(0, options.workers, self.ranks_per_host)]
        self.worker_hosts = [hosts[rank // self.ranks_per_host] for rank in range(options.workers)]

    def _make_switch(self):
        """The switch sends multicast to all ports until its querier's first queries could be
        answered, which is a second after the querier was turned on."""
        ip("link", "add", "name", "switch0", "mtu", self.mtu, "type", "bridge", "stp_state", 0,
           "forward_delay", 0, "mcast_snooping", 1, "mcast_igmp_version", 3,
           "mcast_query_response_interval", SECOND, "mcast_startup_query_interval", SECOND)
        ip("link", "set", "switch0", "up", "type", "bridge", "mcast_querier", 1)

    def _add_host(self, name):
        """An open file of the new host's namespace; its link to the switch is called `name`."""
        linux.enter_new_network_namespace()
        silence_kernel()
        host = own_network_namespace()
        self._link_to_switch(PORT, name)
        return host

    def _add_worker_host(self, first, workers):
        """The namespace of a host with the ranks from `first` on."""
        ranks = range(first, min(first + self.ranks_per_host, workers))
        if self.ranks_per_host == 1:
            return self._add_host(f"w{first}")
        linux.enter_new_network_namespace()
        silence_kernel()
        host = own_network_namespace()
        self._link_to_switch(UPLINK, f"w{first}")
        linux.enter_network_namespace(host)
        for rank in ranks:
            # DPDK numbers its sockets' groups by process id xor index; ids are consecutive.
            index = (1 + rank % self.ranks_per_host) << 8
            ip("link", "add", "link", UPLINK, "name", self._port(rank), "index", index,
               "mtu", self.mtu, "type", "macvlan", "mode", "bridge")
            ip("link", "set", self._port(rank), "up")
        linux.enter_network_namespace(self.switch)
        return host

    def _port(self, rank):
        return f"port{rank % self.ranks_per_host}"

    def add_port(self, shard, port):
        """Another interface of an aggregator's host, called `port` there."""
        linux.enter_network_namespace(self.aggregator_hosts[shard])
        self._link_to_switch(port, f"a{shard}-{port}")

    def let_kernel_speak(self):
        """Gives the workers' addresses to their hosts' kernels, for programs without Sluice. Their
        TCP is Reno, which all kernels have; BBR, the default of some, leaves such links idle."""
        for rank, host in enumerate(self.worker_hosts):
            linux.enter_network_namespace(host)
            write(CONGESTION_CONTROL, "reno")
            ip("address", "add", worker_ip(rank), "dev", self._port(rank))
            ip("link", "set", "lo", "up")
        linux.enter_network_namespace(self.switch)

    def _link_to_switch(self, port, name):
        """From the namespace that this process is in; it is in the switch's afterwards."""
        ip("link", "add", port, "mtu", self.mtu, "type", "veth", "peer", "name", name,
           "mtu", self.mtu, "netns", f"/proc/{os.getpid()}/fd/{self.switch}")
        ip("link", "set", port, "up")
        if self.rate is not None:
            self._shape_what_leaves_the_host(port)
        linux.enter_network_namespace(self.switch)
        ip("link", "set", name, "master", "switch0", "up")
        if self.rate is not None:
            self._shape_what_leaves_the_switch(name)

    def _shape_what_leaves_the_host(self, port):
        self._shape(port)

    def _shape_what_leaves_the_switch(self, name):
        self._shape(name)

    def _shape(self, interface):
        frame = self.mtu + ETHERNET_HEADER
        burst = max(4 * frame, self.rate * 1_000_000 // 8 // 250)
        waiting = ["latency", "50ms"] if self.queue is None else ["limit", self.queue * frame]
        run("tc", "qdisc", "add", "dev", interface, "root", "tbf", "rate", f"{self.rate}mbit",
            "burst", burst, *waiting)

    def aggregators(self):
        """SLUICE_AGGREGATORS: one address per shard."""
        return ",".join(f"{aggregator_ip(m)}:{UDP_PORT}" for m in range(len(self.aggregator_hosts)))

    def aggregator_arguments(self, shard):
        return ["--port", f"{self.driver},iface={PORT}", "--address", f"{aggregator_ip(shard)}/16",
                "--port-mtu", str(self.mtu), "--udp-port", str(UDP_PORT)]

    def aggregator_namespace(self, shard):
        return self.aggregator_hosts[shard]

    def worker_environment(self, rank):
        return {"SLUICE_MTU": str(self.mtu), "SLUICE_ADDRESS": worker_ip(rank),
                "SLUICE_PORT": f"{self.driver},iface={self._port(rank)}",
                "SLUICE_HOST": host_name(rank, self.ranks_per_host)}

    def worker_namespace(self, rank):
        return self.worker_hosts[rank]


def aggregator_ip(shard):
    return f"10.77.0.{1 + shard}"


def worker_ip(rank):
    return f"10.77.{1 + rank // 200}.{1 + rank % 200}/16"


def own_network_namespace():
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def silence_kernel():
    """Prevents router solicitations and the like on Sluice's links."""
    if os.path.exists(QUIET_IPV6):
        write(QUIET_IPV6, "1")


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def ip(*arguments):
    run("ip", *arguments)


def run(*command):
    command = [str(word) for word in command]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        raise OSError(f"{' '.join(command)}: {result.stderr.strip()}")
