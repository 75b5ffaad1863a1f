"""DPDK's testpmd on the ports that Sluice has on one machine: net_vhost in one process, forwarding
with swapped MAC addresses in the aggregator's place, and net_virtio_user in another, which keeps
a window of frames in flight."""
import os
import re
import time

import processes
import programs

BURST = 32
ETHERNET_BYTES = 14
MBUFS = 4096
MBUF_BYTES = 9728  # headroom, and the longest frame in one piece
MEMORY_MB = 256
LINK_S = 30
ATTEMPTS = 5  # to get the frames in flight
RATE = re.compile(r"Rx-pps:\s+(\d+).*?\n\s*Tx-pps:\s+(\d+)", re.DOTALL)


class Testpmd:
    """One process that forwards on one core and takes commands."""

    def __init__(self, stage, name, core, device, mode):
        programs.need("dpdk-testpmd")
        fifo = stage.directory(f"{name}.commands")
        os.mkfifo(fifo)
        self.commands = os.open(fifo, os.O_RDWR)
        eal = ["--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "-m", str(MEMORY_MB),
               "--lcores", f"0@{core},1@{core}", "--file-prefix", name, "--vdev", device]
        own = ["--interactive", "--total-num-mbufs", str(MBUFS), "--mbuf-size", str(MBUF_BYTES),
               "--max-pkt-len", "9018", "--forward-mode", mode]
        self.process = stage.start(name, "sh", "-c", 'exec stdbuf -oL "$@" <"$0"', fifo,
                                   "dpdk-testpmd", *eal, "--", *own)

    def tell(self, *lines):
        os.write(self.commands, "".join(line + "\n" for line in lines).encode())

    def wait_for_link(self):
        def is_up():
            self.tell("show port info 0")
            time.sleep(0.2)
            return "Link status: up" in self.process.out

        processes.wait_until(is_up, f"{self.process.name} has a link", LINK_S)

    def rates(self, seconds):
        """(received, sent) frames per second."""
        before = len(RATE.findall(self.process.out))
        self.tell("show port stats 0")
        self.wait_for_rates(before + 1)
        time.sleep(seconds)
        self.tell("show port stats 0")
        received, sent = self.wait_for_rates(before + 2)
        return int(received), int(sent)

    def wait_for_rates(self, count):
        processes.wait_until(lambda: len(RATE.findall(self.process.out)) >= count,
                             f"{self.process.name} tells statistics", LINK_S)
        return RATE.findall(self.process.out)[count - 1]

    def end(self):
        self.process.kill()
        os.close(self.commands)


def macswap(stage, ip_bytes, window, seconds, cores):
    """Frames per second that the net_vhost side receives and sends, with `window` frames in flight;
    `ip_bytes` is a frame's length without its Ethernet header."""
    path = stage.directory("testpmd.sock")
    device = f"net_virtio_user0,path={path},server=1,queue_size=256"
    peer = Testpmd(stage, "testpmd-peer", cores[1], device, "io")
    peer.process.wait_to_say("waiting for client")
    forwarder = Testpmd(stage, "testpmd", cores[0], f"net_vhost0,iface={path},client=1", "macswap")
    try:
        forwarder.process.wait_to_say("testpmd>")
        peer.process.wait_to_say("testpmd>")
        forwarder.wait_for_link()
        peer.wait_for_link()
        forwarder.tell("start")
        peer.tell(f"set txpkts {ip_bytes + ETHERNET_BYTES}", f"set burst {min(window, BURST)}")
        for _ in range(ATTEMPTS):
            peer.tell(f"start tx_first {max(1, window // BURST)}")
            if all(forwarder.rates(0.2)):
                return forwarder.rates(seconds)
            peer.tell("stop")  # the first frames were lost, so none is in flight
        raise AssertionError(f"no frames go round\n{peer.process.report()}")
    finally:
        peer.end()
        forwarder.end()
        stage.forget([peer.process, forwarder.process])
        for name in ("testpmd.sock", "testpmd-peer.commands", "testpmd.commands"):
            if os.path.exists(stage.directory(name)):
                os.unlink(stage.directory(name))
