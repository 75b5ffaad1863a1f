"""The hosts of af_packet, whose Sluice uses their interfaces through AF_XDP sockets.

Such packets leave a host past its queueing discipline, so the switch shapes both ways: what comes
from a host waits at an intermediate device (ifb) of its own.
"""
from .af_packet import PORT, AfPacket, ip, run

DRIVER = "net_af_xdp0"
DEVICE = f"{DRIVER},iface={PORT}"


class AfXdp(AfPacket):
    driver = DRIVER

    def _shape_what_leaves_the_host(self, port):
        pass

    def _shape_what_leaves_the_switch(self, name):
        super()._shape_what_leaves_the_switch(name)
        waiting = f"{name}-in"
        ip("link", "add", "name", waiting, "mtu", self.mtu, "type", "ifb")
        ip("link", "set", waiting, "up")
        self._shape(waiting)
        run("tc", "qdisc", "add", "dev", name, "ingress")
        run("tc", "filter", "add", "dev", name, "parent", "ffff:", "protocol", "all", "u32",
            "match", "u32", 0, 0, "action", "mirred", "egress", "redirect", "dev", waiting)
