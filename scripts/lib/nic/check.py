"""What is missing for a daemon on a device. A check gets the wanted use and yields items, each with
the command that fixes the item, if a command can.

A way is how the daemon reaches the device: `vfio` (the device is DPDK's alone), `bifurcated` (DPDK
shares it with the kernel's driver), `af_xdp` and `af_packet` (through an interface of the kernel).
"""
import dataclasses
import os

from ranges import LARGEST_AF_XDP_MTU

from .devices import LEAVE, SHARE, Device
from .machine import PROGRAM, Failure

OK, MISSING, UNKNOWN = "OK", "MISSING", "UNKNOWN"
CAPABILITIES = {"net_admin": 12, "net_raw": 13, "ipc_lock": 14, "sys_rawio": 17, "sys_admin": 21,
                "bpf": 39}
NEEDED_CAPABILITIES = {"vfio": (), "bifurcated": ("net_admin", "net_raw"),
                       "af_xdp": ("net_admin", "net_raw", "bpf"), "af_packet": ("net_raw",)}
UNSAFE = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
SMALL = "hugepages-2048kB"


@dataclasses.dataclass(frozen=True)
class Item:
    state: str
    what: str
    saying: str
    command: str = ""


@dataclasses.dataclass(frozen=True)
class Wanted:
    device: Device
    way: str
    mtu: int
    lanes: int
    memory_mib: int
    vlan: int = 0  # none

    @property
    def machine(self):
        return self.device.machine


def check(wanted):
    """The items, in the order in which an operator fixes them."""
    if wanted.way in ("vfio", "bifurcated") and not wanted.device.address:
        raise Failure(f"{wanted.device.name} is no PCI device, so no --way {wanted.way}: "
                      "af_packet or af_xdp expected", 2)
    return [item for look in CHECKS[wanted.way] for item in look(wanted)]


def default_way(device):
    """What the device is ready for; a PCI device of the kernel's is to become DPDK's alone."""
    if not device.address:
        return "af_packet"
    return "bifurcated" if device.driver in SHARE else "vfio"


def driver(wanted):
    device = wanted.device
    saying = device.driver or "none"
    if wanted.way in device.ways:
        yield Item(OK, "driver", saying)
    elif wanted.way == "vfio" and device.driver not in SHARE:
        yield Item(MISSING, "driver", f"{saying}; vfio-pci expected",
                   f"{PROGRAM} bind {device.address} vfio-pci")
    elif device.driver in (*LEAVE, None):
        yield Item(MISSING, "driver", f"{saying}; the kernel's driver expected",
                   f"{PROGRAM} unbind {device.address}")
    else:
        yield Item(MISSING, "driver", f"{saying}: --way {wanted.way} is not for it")


def unused(wanted):
    name, uses = wanted.device.interface, wanted.device.uses
    if not uses:
        yield Item(OK, "not in use", "no addresses, no routes")
        return
    commands = [f"ip address flush dev {name}", f"ip route flush dev {name}"]
    if any(use.startswith("part of") for use in uses):
        commands.insert(0, f"ip link set dev {name} nomaster")
    warning = "; you may be logged in through it" if "route 0.0.0.0/0" in uses else ""
    yield Item(MISSING, "not in use", "; ".join(uses) + warning, " && ".join(commands))


def vfio_module(wanted):
    if wanted.device.driver in LEAVE or wanted.machine.has("sys/bus/pci/drivers/vfio-pci"):
        yield Item(OK, "module", "the driver is loaded")
    else:
        yield Item(MISSING, "module", "vfio-pci is not loaded", "modprobe vfio-pci")


def shared_modules(wanted):
    if wanted.device.driver != "mlx5_core":
        return
    missing = [name for name in ("mlx5_ib", "ib_uverbs")
               if not wanted.machine.has(f"sys/module/{name}")]
    if missing:
        yield Item(MISSING, "module", f"{', '.join(missing)} not loaded",
                   f"modprobe -a {' '.join(missing)}")
    else:
        yield Item(OK, "module", "mlx5_ib, ib_uverbs")


def group_of(wanted):
    """The number of the device's IOMMU group; None: none, or one that protects nothing."""
    group = wanted.machine.target(f"{wanted.device.pci}/iommu_group")
    is_unsafe = wanted.machine.read(f"sys/kernel/iommu_groups/{group}/name") == "vfio-noiommu"
    return None if is_unsafe else group


def iommu(wanted):
    machine, group = wanted.machine, group_of(wanted)
    if group:
        yield from group_is_free(wanted, group)
    elif machine.read(UNSAFE) in ("Y", "1"):
        yield Item(OK, "IOMMU", "none; vfio works without its protection (noiommu)")
    else:
        without = f"modprobe vfio && echo 1 > /{UNSAFE}"
        if machine.has("sys/module/vfio") and not machine.has(UNSAFE):
            without = "another kernel, this one lacks CONFIG_VFIO_NOIOMMU (Debian's do)"
        yield Item(MISSING, "IOMMU", "no group: enable it in the firmware, too; a virtual machine "
                   f"without one: {without}", kernel_options("iommu", "intel_iommu=on iommu=pt"))


def group_is_free(wanted, group):
    """vfio gives a whole group to one process; bridges may stay with the kernel."""
    for other in wanted.machine.names(f"sys/kernel/iommu_groups/{group}/devices"):
        name = wanted.machine.target(f"sys/bus/pci/devices/{other}/driver")
        if other != wanted.device.address and name not in (None, "vfio-pci", "pci-stub",
                                                           "pcieport"):
            yield Item(MISSING, "IOMMU", f"group {group} also has {other} ({name})",
                       f"echo {other} > /sys/bus/pci/devices/{other}/driver/unbind")
            return
    yield Item(OK, "IOMMU", f"group {group}")


def group_access(wanted):
    machine, group = wanted.machine, group_of(wanted)
    names = machine.names("dev/vfio") if wanted.device.driver == "vfio-pci" else []
    own = wanted.machine.target(f"{wanted.device.pci}/iommu_group")
    name = next((name for name in (own, f"noiommu-{own}") if name in names), None)
    if name is None:
        yield Item(UNKNOWN, "access", f"/dev/vfio/{group or 'noiommu-N'} comes with vfio-pci")
    elif machine.may_write(f"dev/vfio/{name}"):
        yield Item(OK, "access", f"/dev/vfio/{name}")
    else:
        yield Item(MISSING, "access", f"to /dev/vfio/{name}",
                   f"chown {os.geteuid()} /dev/vfio/{name}")


def hugepages(wanted):
    """Free ones of all sizes on the device's node; of the whole machine where it has none."""
    machine, node = wanted.machine, wanted.device.node
    place = "sys/kernel/mm/hugepages" if node is None else f"{NODES}/node{node}/hugepages"
    where = "machine" if node is None else f"node {node}"
    free = {}
    for name in machine.names(place):
        kib = int(name.removeprefix("hugepages-").removesuffix("kB"))
        free[kib] = machine.number(f"{place}/{name}/free_hugepages") or 0
    told = ", ".join(f"{count} of {kib // 1024} MiB" for kib, count in sorted(free.items()))
    saying = f"{where}: free {told or 'none'}; {wanted.memory_mib} MiB needed"
    lacking = wanted.memory_mib - sum(kib * count for kib, count in free.items()) // 1024
    if lacking <= 0:
        yield Item(OK, "hugepages", saying)
    elif SMALL not in machine.names(place):
        yield Item(MISSING, "hugepages", f"{saying}; this kernel has none of 2 MiB")
    else:
        count = (machine.number(f"{place}/{SMALL}/nr_hugepages") or 0) + (lacking + 1) // 2
        yield Item(MISSING, "hugepages", saying, f"echo {count} > /{place}/{SMALL}/nr_hugepages")


def has_capability(wanted, name):
    """This process, in place of the daemon."""
    for line in wanted.machine.lines("proc/self/status"):
        if line and line[0] == "CapEff:":
            return bool(int(line[1], 16) >> CAPABILITIES[name] & 1)
    return False


def capabilities(wanted):
    needed = NEEDED_CAPABILITIES[wanted.way]
    if wanted.way == "vfio" and wanted.device.driver in LEAVE and not group_of(wanted):
        needed = ("sys_rawio",)
    lacking = [name for name in needed if not has_capability(wanted, name)
               and not (name == "bpf" and has_capability(wanted, "sys_admin"))]
    if lacking:
        names = ",".join(f"cap_{name}" for name in needed)
        yield Item(MISSING, "privilege", ", ".join(f"CAP_{name.upper()}" for name in lacking),
                   f'setcap {names}+ep "$(command -v sluice-aggregator)"')
    else:
        yield Item(OK, "privilege", ", ".join(f"CAP_{name.upper()}" for name in needed)
                   or "no capability needed")


def locked_memory(wanted):
    """Pages that a device reads and writes must stay in memory."""
    limit = next((line[3] for line in wanted.machine.lines("proc/self/limits")
                  if line[:3] == ["Max", "locked", "memory"]), None)
    if has_capability(wanted, "ipc_lock"):
        yield Item(OK, "locked memory", "CAP_IPC_LOCK")
    elif limit is None:
        yield Item(UNKNOWN, "locked memory", "the kernel reports no limit")
    elif limit == "unlimited" or int(limit) >= wanted.memory_mib << 20:
        yield Item(OK, "locked memory", f"{limit} bytes")
    else:
        yield Item(MISSING, "locked memory", f"{limit} bytes, {wanted.memory_mib} MiB needed; in a "
                   "unit: LimitMEMLOCK=infinity", "ulimit -l unlimited")


def cores_near(wanted):
    node = wanted.device.node
    return wanted.machine.cpus(f"{CPUS}/online" if node is None else f"{NODES}/node{node}/cpulist")


def cores(wanted):
    near = cores_near(wanted)
    where = "machine" if wanted.device.node is None else f"node {wanted.device.node}"
    saying = f"{where}: {len(near)} for {wanted.lanes} lanes"
    if not near:
        yield Item(UNKNOWN, "cores", f"{where}: the machine does not tell")
        return
    yield Item(OK if len(near) >= wanted.lanes else MISSING, "cores", saying)
    last = ",".join(map(str, near[-wanted.lanes:]))
    command = ""  # at least one core is left for everything else
    if len(near) > wanted.lanes:
        command = kernel_options("cores", f"isolcpus={last} nohz_full={last} rcu_nocbs={last}")
    for what, file in (("isolcpus", "isolated"), ("nohz_full", "nohz_full")):
        kept = [cpu for cpu in wanted.machine.cpus(f"{CPUS}/{file}") if cpu in near]
        saying = f"{where}: {','.join(map(str, kept)) or 'none'}; {wanted.lanes} needed"
        if len(kept) >= wanted.lanes:
            yield Item(OK, what, saying)
        else:
            yield Item(MISSING, what, saying, command)


def cores_of_sockets(wanted):
    """The kernel's network stack handles sockets on cores of its choice: isolated cores for the
    lanes are not worth a reboot."""
    near = cores_near(wanted)
    if not near:
        yield Item(UNKNOWN, "cores", "the machine does not tell")
        return
    yield Item(OK if len(near) >= wanted.lanes else MISSING, "cores",
               f"{len(near)} for {wanted.lanes} lanes; with af_packet none need be isolated")


def governor(wanted):
    named = [(cpu, wanted.machine.read(f"{CPUS}/cpu{cpu}/cpufreq/scaling_governor"))
             for cpu in cores_near(wanted)]
    slow = [cpu for cpu, name in named if name not in (None, "performance")]
    if slow:
        yield Item(MISSING, "governor", f"not performance on {len(slow)} cores",
                   f"echo performance | tee /{CPUS}/cpu*/cpufreq/scaling_governor")
    elif any(name for _, name in named):
        yield Item(OK, "governor", "performance")
    else:
        yield Item(UNKNOWN, "governor", "the kernel sets no frequencies here")


def queues(wanted):
    has, lanes = wanted.device.rx_queues, wanted.lanes
    if has is None:
        yield Item(UNKNOWN, "queues", f"{lanes} needed: the daemon asks the device at its start")
    elif wanted.way == "af_xdp" and has != lanes:  # others' frames would go to the kernel
        yield Item(MISSING, "queues", f"{has}, {lanes} expected, one for each lane",
                   f"ethtool -L {wanted.device.interface} combined {lanes}")
    elif has < lanes:
        yield Item(UNKNOWN, "queues", f"the kernel's driver uses {has}, {lanes} needed: "
                   "`ethtool -l` tells how many there may be")
    else:
        yield Item(OK, "queues", f"{has} for {lanes} lanes")


def queues_of_sockets(wanted):
    yield Item(OK, "queues", "sockets share frames out among lanes")


def mtu(wanted):
    has, name = wanted.device.mtu, wanted.device.interface
    if wanted.way == "af_xdp" and wanted.mtu > LARGEST_AF_XDP_MTU:
        yield Item(MISSING, "MTU", f"{wanted.mtu} wanted, {LARGEST_AF_XDP_MTU} at most with "
                   "af_xdp: frames stay under one page; set port-mtu so, or take another way")
    elif has is None:
        yield Item(UNKNOWN, "MTU", f"{wanted.mtu} wanted: the daemon sets it at its start")
    elif has < wanted.mtu:
        yield Item(MISSING, "MTU", f"{has}, {wanted.mtu} wanted",
                   f"ip link set dev {name} mtu {wanted.mtu}")
    elif wanted.way == "af_xdp" and has > LARGEST_AF_XDP_MTU:
        yield Item(MISSING, "MTU", f"{has}, {LARGEST_AF_XDP_MTU} at most with af_xdp",
                   f"ip link set dev {name} mtu {wanted.mtu}")
    else:
        yield Item(OK, "MTU", f"{has}, {wanted.mtu} wanted")


def vlan(wanted):
    """Further checks for tagged frames."""
    if not wanted.vlan:
        return
    device = wanted.device
    if device.below:
        yield Item(MISSING, "VLAN", f"{device.name} is a VLAN itself, and frames would have two "
                   "tags: use the interface below it",
                   f"{PROGRAM} check {device.below} --vlan {wanted.vlan}")
    elif wanted.way in ("af_xdp", "af_packet"):
        yield from tags_stay(wanted)
    yield Item(UNKNOWN, "switch", f"its port must carry VLAN {wanted.vlan} tagged, and frames 4 "
               f"bytes longer than without: of {wanted.mtu + 18} bytes, and 4 of the FCS")


def tags_stay(wanted):
    """AF_XDP cannot carry a tag outside of the frame."""
    name, features = wanted.device.interface, wanted.device.features
    if features is None:
        yield Item(UNKNOWN, "VLAN", "the kernel does not tell what the device does with tags: "
                   f"`ethtool -k {name}`")
        return
    if "vlan-challenged" in features:
        yield Item(MISSING, "VLAN", f"{name} takes no tagged frames")
    elif "rx-vlan-filter" in features:
        yield Item(MISSING, "VLAN", "the device drops frames of VLANs that the kernel does not use",
                   f"ethtool -K {name} rx-vlan-filter off")
    else:
        yield Item(OK, "VLAN", "frames of all VLANs come in")
    if wanted.way == "af_xdp":
        yield from tags_stay_in_frames(wanted.device, features)


def tags_stay_in_frames(device, features):
    if "rx-vlan-hw-parse" in features:
        yield Item(MISSING, "tags", "taken off frames, and AF_XDP loses them",
                   f"ethtool -K {device.interface} rxvlan off")
    else:
        yield Item(OK, "tags", "stay in their frames")
    if not device.has_peer:
        return
    peer = device.peer
    if peer is None:
        yield Item(UNKNOWN, "other end", "of the veth link, in another network namespace; there: "
                   "`ethtool -K IT txvlan off`")
    elif "tx-vlan-hw-insert" in (peer.features or ()):
        yield Item(MISSING, "other end", f"{peer.name} keeps tags beside their frames",
                   f"ethtool -K {peer.name} txvlan off")
    else:
        yield Item(OK, "other end", f"{peer.name} puts tags into their frames")


def link(wanted):
    device = wanted.device
    if not device.interface:
        yield Item(UNKNOWN, "link", "the daemon's log tells when it is up")
    elif device.has_carrier:
        yield Item(OK, "link", f"up, {device.mbit or 'unknown'} Mbit/s")
    elif device.is_up:
        yield Item(MISSING, "link", "no carrier: look at the cable and its other end")
    else:
        yield Item(MISSING, "link", "down", f"ip link set dev {device.interface} up")


def xdp_sockets(wanted):
    """The kernel lists its kinds of sockets."""
    if not wanted.machine.has("proc/net/protocols"):
        yield Item(UNKNOWN, "AF_XDP", "the kernel does not list its protocols")
    elif any(line[:1] == ["XDP"] for line in wanted.machine.lines("proc/net/protocols")):
        yield Item(OK, "AF_XDP", "the kernel has its sockets")
    else:
        yield Item(MISSING, "AF_XDP", "this kernel was built without CONFIG_XDP_SOCKETS")


def kernel_options(name, options):
    """The command that adds them for Debian's GRUB."""
    return (f"echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {options}\"' > "
            f"/etc/default/grub.d/sluice-{name}.cfg && update-grub && reboot")


OF_ALL = (governor, mtu, vlan, link)
CHECKS = {
    "vfio": (unused, vfio_module, iommu, driver, group_access, hugepages, capabilities,
             locked_memory, queues, cores, *OF_ALL),
    "bifurcated": (driver, unused, shared_modules, hugepages, capabilities, locked_memory, queues,
                   cores, *OF_ALL),
    "af_xdp": (driver, unused, xdp_sockets, capabilities, locked_memory, queues, cores,
               *OF_ALL),
    "af_packet": (driver, capabilities, queues_of_sockets, cores_of_sockets, *OF_ALL),
}
