"""The machine's network devices, and the ways in which a daemon can use each.

A device is a PCI function, an interface of the kernel, or both. A function may have several
interfaces; each then is a device.
"""
import dataclasses
import ipaddress
import os
import re
import sys

from .machine import Failure, Machine

# Drivers that leave a device to DPDK, and that share it, as in common/config/pci_device.cpp.
LEAVE = ("vfio-pci", "uio_pci_generic", "igb_uio")
SHARE = ("mlx4_core", "mlx5_core", "mana")
PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PCI_NAMES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")  # lspci's
IS_UP = 1  # of an interface's flags


@dataclasses.dataclass(frozen=True)
class Device:
    machine: Machine
    address: str | None  # of PCI
    interface: str | None

    @property
    def name(self):
        return self.interface or self.address

    @property
    def pci(self):
        return f"sys/bus/pci/devices/{self.address}"

    @property
    def driver(self):
        """The PCI function's driver, or None. For an interface alone "virtual", or its kind."""
        if self.address:
            return self.machine.target(f"{self.pci}/driver")
        kind = re.search(r"^DEVTYPE=(.*)", self.interface_file("uevent") or "", re.MULTILINE)
        return kind.group(1) if kind else "virtual"

    @property
    def model(self):
        if not self.address:
            return None
        ids = [(self.machine.read(f"{self.pci}/{part}") or "unknown").removeprefix("0x")
               for part in ("vendor", "device")]
        return model_name(self.machine, *ids) or ":".join(ids)

    @property
    def node(self):
        """The NUMA node; None if the machine does not say."""
        node = self.machine.number(f"{self.pci}/numa_node") if self.address else None
        return None if node == -1 else node

    def interface_file(self, name):
        return self.machine.read(f"sys/class/net/{self.interface}/{name}")

    @property
    def is_up(self):
        return bool(int(self.interface_file("flags") or "0", 16) & IS_UP)

    @property
    def has_carrier(self):
        return self.is_up and self.interface_file("carrier") == "1"

    @property
    def link(self):
        if not self.interface:
            return "unknown"
        return "up" if self.has_carrier else "no carrier" if self.is_up else "down"

    @property
    def mbit(self):
        speed = self.machine.number(f"sys/class/net/{self.interface}/speed")
        return speed if speed and speed > 0 else None

    @property
    def mtu(self):
        return self.machine.number(f"sys/class/net/{self.interface}/mtu")

    @property
    def below(self):
        """The interface of which this is a VLAN; None if it is not a VLAN."""
        if self.driver != "vlan":
            return None
        names = self.machine.names(f"sys/class/net/{self.interface}")
        return next((name.removeprefix("lower_") for name in names if name.startswith("lower_")),
                    "the one below")

    @property
    def features(self):
        return self.machine.features(self.interface)

    @property
    def has_peer(self):
        """Of a veth pair, as far as the kernel tells: it leads to another interface, and lies on
        none."""
        names = self.machine.names(f"sys/class/net/{self.interface}")
        return self.interface_file("iflink") not in (None, self.interface_file("ifindex")) \
            and not any(name.startswith("lower_") for name in names)

    @property
    def peer(self):
        """The pair's other interface; None where it is in another network namespace."""
        leads_to, own = self.interface_file("iflink"), self.interface_file("ifindex")
        for other in every(self.machine):
            if (other.interface_file("ifindex"), other.interface_file("iflink")) == (leads_to, own):
                return other
        return None

    @property
    def rx_queues(self):
        names = self.machine.names(f"sys/class/net/{self.interface}/queues")
        return len([name for name in names if name.startswith("rx-")]) if self.interface else None

    @property
    def uses(self):
        """How the kernel uses the interface."""
        if not self.interface:
            return []
        above = [name.removeprefix("upper_")
                 for name in self.machine.names(f"sys/class/net/{self.interface}")
                 if name.startswith("upper_")]
        return [*(f"address {address}" for address in addresses(self.machine, self.interface)),
                *(f"route {route}" for route in routes(self.machine, self.interface)),
                *(f"part of {name}" for name in above)]

    @property
    def ways(self):
        """The ways in which a daemon can use it as it is, with the value of the setting `port`."""
        found = {}
        if self.driver in LEAVE:
            found["vfio"] = self.address
        if self.driver in SHARE:
            found["bifurcated"] = self.address
        if self.interface:
            found["af_xdp"] = f"net_af_xdp0,iface={self.interface}"
            found["af_packet"] = f"net_af_packet0,iface={self.interface}"
        return found

    def facts(self):
        names = ("interface", "address", "driver", "model", "link", "mbit", "mtu", "node",
                 "rx_queues", "uses", "ways")
        return {name: getattr(self, name) for name in names}


def model_name(machine, vendor, device):
    """The name in lspci's file; None if the file is missing or does not have it."""
    text = next(filter(None, map(machine.read, PCI_NAMES)), "") + "\n"
    of_vendor = re.search(rf"^{vendor}  (.*)\n((?:[\t#].*\n)*)", text, re.MULTILINE)
    named = of_vendor and re.search(rf"^\t{device}  (.*)", of_vendor.group(2), re.MULTILINE)
    return f"{of_vendor.group(1)} {named.group(1)}" if named else None


def addresses(machine, interface):
    """Without link-local addresses, which every interface has that is up."""
    first = machine.ipv4_address(interface)
    found = [ipaddress.IPv6Address(int(line[0], 16))
             for line in machine.lines("proc/net/if_inet6") if line[-1] == interface]
    return [*filter(None, [first]), *(str(a) for a in found if not a.is_link_local)]


def routes(machine, interface):
    found = []
    for line in machine.lines("proc/net/route")[1:]:
        if line[0] == interface:
            to, mask = (int(line[i], 16).to_bytes(4, sys.byteorder) for i in (1, 7))
            found.append(ipaddress.IPv4Network((to, str(ipaddress.IPv4Address(mask)))))
    for line in machine.lines("proc/net/ipv6_route"):
        to = ipaddress.IPv6Address(int(line[0], 16))
        if line[-1] == interface and not to.is_link_local and not to.is_multicast:
            found.append(ipaddress.IPv6Network((to, int(line[1], 16))))
    return [str(network) for network in found]


def address_of(machine, interface):
    """The PCI function of the interface; for virtio it is one directory deeper."""
    place = os.path.realpath(machine.path(f"sys/class/net/{interface}"))
    found = [part for part in place.split("/") if PCI.fullmatch(part)]
    return found[-1] if found else None


def is_network(machine, address):
    return (machine.read(f"sys/bus/pci/devices/{address}/class") or "").startswith("0x02")


def every(machine):
    """All devices except the loopback."""
    found = [Device(machine, address_of(machine, name), name)
             for name in machine.names("sys/class/net")
             if name != "lo" and machine.has(f"sys/class/net/{name}/ifindex")]
    with_interface = {device.address for device in found}
    return found + [Device(machine, address, None)
                    for address in machine.names("sys/bus/pci/devices")
                    if is_network(machine, address) and address not in with_interface]


def find(machine, name):
    """The devices that are meant: by an interface, or by a PCI address with or without domain."""
    address = name.lower() if name.count(":") == 2 else f"0000:{name.lower()}"
    known = every(machine)
    found = [device for device in known if device.interface == name] \
        or [device for device in known if device.address == address]
    if found:
        return found
    if PCI.fullmatch(address) and machine.has(f"sys/bus/pci/devices/{address}"):
        kind = machine.read(f"sys/bus/pci/devices/{address}/class")
        raise Failure(f"{name} is no network device: its class is {kind}, 0x02.... expected", 2)
    names = ", ".join(sorted({text for d in known for text in (d.interface, d.address) if text}))
    raise Failure(f"{name!r} is no device of this machine: an interface or a PCI address "
                  f"expected, one of: {names or 'none'}", 2)
