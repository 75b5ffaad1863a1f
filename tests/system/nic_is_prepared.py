"""scripts/nic: its output for simulated machines (a directory each), how it binds a device when
this test acts as the kernel, and its output for a veth pair of this machine."""
import json
import os
import pwd
import shutil
import subprocess
import unittest

import harness
from nic import bind, check, devices
from nic.machine import Failure, Machine

NIC = os.path.join(harness.ROOT, "scripts", "nic")
PCI = "sys/bus/pci"
ALL_CAPABILITIES = f"{(1 << 41) - 1:016x}"
# eth1 is a NIC of the kernel's driver, 02:00.0 one of vfio-pci, eth2 an mlx5, 04:00.0 a disk.
PLAIN, FREE, SHARED, DISK = (f"0000:{bus}:00.0" for bus in ("01", "02", "03", "04"))
NAMES = """8086  Intel Corporation
\t10fb  82599ES 10-Gigabit
\t\t8086 0003  X520
15b3  Mellanox
\t1017  ConnectX-5
"""
PROTOCOLS = "protocol  size\nXDP  1088\n"
ROUTE_HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"


class Tree:
    """A machine with nothing missing on 02:00.0: one node of eight cores, of which four are kept,
    2 GiB of hugepages, an IOMMU."""

    def __init__(self, root):
        self.root = root
        self.write("proc/net/route", ROUTE_HEAD)
        self.write("proc/net/protocols", PROTOCOLS)
        self.write("proc/self/status", f"Name: nic\nCapEff: {ALL_CAPABILITIES}\n")
        self.write("proc/self/limits", "Max locked memory 8388608 8388608 bytes\n")
        self.write(f"{PCI}/drivers_probe", "")
        self.write("sys/devices/system/node/node0/cpulist", "0-7")
        self.write("sys/devices/system/cpu/online", "0-7")
        self.write("sys/devices/system/cpu/isolated", "4-7")
        self.write("sys/devices/system/cpu/nohz_full", "4-7")
        for cpu in range(8):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance")
        self.write_hugepages(1024)
        for driver in ("ixgbe", "vfio-pci", "mlx5_core", "nvme"):
            self.write(f"{PCI}/drivers/{driver}/unbind", "")
        for name in ("mlx5_ib", "ib_uverbs"):
            self.make(f"sys/module/{name}")
        self.add_pci(PLAIN, "ixgbe", 11)
        self.add_pci(FREE, "vfio-pci", 12)
        self.add_pci(SHARED, "mlx5_core", 13, ids=("0x15b3", "0x1017"))
        self.add_pci(DISK, "nvme", 14, kind="0x010802")
        self.add_interface("eth1", PLAIN, queues=4)
        self.add_interface("eth2", SHARED, queues=8, mtu="9000")
        self.add_interface("veth0")
        self.add_interface("lo")
        self.write("sys/class/net/bonding_masters", "")  # a file among the interfaces
        self.write("dev/vfio/12", "")

    def make(self, name):
        path = os.path.join(self.root, name)
        os.makedirs(path, exist_ok=True)
        return path

    def write(self, name, text):
        self.make(os.path.dirname(name))
        with open(os.path.join(self.root, name), "w", encoding="ascii") as file:
            file.write(text + "\n")

    def link(self, name, target):
        """Relative, as sysfs has it."""
        place = self.make(os.path.dirname(name))
        os.symlink(os.path.relpath(os.path.join(self.root, target), place),
                   os.path.join(self.root, name))

    def remove(self, name):
        path = os.path.join(self.root, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def write_hugepages(self, count):
        for place in ("sys/kernel/mm/hugepages", "sys/devices/system/node/node0/hugepages"):
            for file in ("nr_hugepages", "free_hugepages"):
                self.write(f"{place}/hugepages-2048kB/{file}", str(count))

    def add_pci(self, address, driver, group, ids=("0x8086", "0x10fb"), kind="0x020000"):
        real = f"sys/devices/pci0000:00/{address}"
        for name, text in (("class", kind), ("vendor", ids[0]), ("device", ids[1]),
                           ("numa_node", "0"), ("driver_override", "(null)")):
            self.write(f"{real}/{name}", text)
        self.link(f"{PCI}/devices/{address}", real)
        self.link(f"{real}/driver", f"{PCI}/drivers/{driver}")
        self.link(f"{real}/iommu_group", f"sys/kernel/iommu_groups/{group}")
        self.link(f"sys/kernel/iommu_groups/{group}/devices/{address}", real)

    def add_interface(self, name, address=None, queues=1, mtu="1500"):
        real = f"sys/devices/pci0000:00/{address}" if address else "sys/devices/virtual"
        for file, text in (("ifindex", "7"), ("flags", "0x1003"), ("carrier", "1"), ("mtu", mtu),
                           ("speed", "10000")):
            self.write(f"{real}/net/{name}/{file}", text)
        for queue in range(queues):
            self.make(f"{real}/net/{name}/queues/rx-{queue}")
            self.make(f"{real}/net/{name}/queues/tx-{queue}")
        self.link(f"sys/class/net/{name}", f"{real}/net/{name}")

    def of_interface(self, name, file, text):
        self.write(f"sys/class/net/{name}/{file}", text)

    def rebind(self, address, driver):
        """Binds as the kernel does; None: no driver."""
        self.remove(f"{PCI}/devices/{address}/driver")
        if driver:
            self.link(f"sys/devices/pci0000:00/{address}/driver", f"{PCI}/drivers/{driver}")


class Kernel(Machine):
    """Handles writes as the kernel does. `accepting`: the drivers that accept devices."""

    def __init__(self, tree, accepting):
        super().__init__(tree.root)
        self.accepting = accepting
        self.written = []

    def write(self, name, text):
        self.written.append((name, text))
        if name.endswith("driver_override"):
            super().write(name, text or "(null)")
        elif name.endswith("/unbind"):
            os.unlink(self.path(f"{PCI}/devices/{text}/driver"))
        elif name.endswith("drivers_probe") and not self.has(f"{PCI}/devices/{text}/driver"):
            asked = self.read(f"{PCI}/devices/{text}/driver_override")
            driver = "ixgbe" if asked == "(null)" else asked
            if driver in self.accepting:
                os.symlink(self.path(f"{PCI}/drivers/{driver}"),
                           self.path(f"{PCI}/devices/{text}/driver"))


class MadeUp(harness.SystemTest):
    def setUp(self):
        self.tree = Tree(os.path.join(self.place, "root"))
        os.chmod(self.place, 0o755)  # one test runs as another user
        self.machine = Machine(self.tree.root)

    def nic(self, *words, before_exec=None):
        """Its exit status and its output."""
        done = subprocess.run([NIC, "--root", self.tree.root, *map(str, words)], text=True,
                              check=False, capture_output=True, preexec_fn=before_exec)
        self.assertNotIn("Traceback", done.stderr)
        self.said_by_others.append(done.stdout + done.stderr)
        return done.returncode, done.stdout + done.stderr

    def device(self, name):
        return devices.find(self.machine, name)[0]

    def says(self, status, sayings, *words, **settings):
        ended, said = self.nic(*words, **settings)
        self.assertEqual(ended, status, said)
        for saying in [sayings] if isinstance(sayings, str) else sayings:
            self.assertIn(saying, said)
        return said


class Show(MadeUp):
    def facts(self, *names):
        status, said = self.nic("show", "--json", *names)
        self.assertEqual(status, 0, said)
        return {one["interface"] or one["address"]: one for one in json.loads(said)}

    def test_devices_of_every_kind(self):
        facts = self.facts()
        self.assertEqual(set(facts), {"eth1", FREE, "eth2", "veth0"})
        self.assertEqual(facts["eth1"], {
            "interface": "eth1", "address": PLAIN, "driver": "ixgbe", "model": "8086:10fb",
            "link": "up", "mbit": 10000, "mtu": 1500, "node": 0, "rx_queues": 4, "uses": [],
            "ways": {"af_xdp": "net_af_xdp0,iface=eth1",
                     "af_packet": "net_af_packet0,iface=eth1"}})
        self.assertEqual(facts[FREE]["ways"], {"vfio": FREE})
        self.assertEqual((facts[FREE]["mtu"], facts[FREE]["rx_queues"]), (None, None))
        self.assertEqual(facts["eth2"]["ways"]["bifurcated"], SHARED)
        self.assertEqual((facts["veth0"]["driver"], facts["veth0"]["address"]), ("virtual", None))

    def test_a_device_by_each_of_its_names(self):
        for name in ("eth1", PLAIN, "01:00.0"):
            self.assertEqual(list(self.facts(name)), ["eth1"])

    def test_names_of_models(self):
        self.tree.write("usr/share/misc/pci.ids", NAMES)
        self.assertEqual(self.facts("eth1")["eth1"]["model"],
                         "Intel Corporation 82599ES 10-Gigabit")
        self.assertEqual(self.facts("eth2")["eth2"]["model"], "Mellanox ConnectX-5")

    def test_table(self):
        self.tree.write("proc/net/route", ROUTE_HEAD + "eth1 00000000 0100000A 3 0 0 0 00000000")
        said = self.says(0, ["eth1", "ixgbe", f"--port {FREE}", "af_packet:   --port net_af_packet0"
                             ",iface=veth0", "warning: the kernel uses it: route 0.0.0.0/0"],
                         "show")
        self.assertEqual(said.count("warning"), 1)

    def test_what_is_in_use(self):
        self.tree.write("proc/net/route", ROUTE_HEAD + "eth1 0000000A 00000000 1 0 0 0 000000FF")
        self.tree.write("proc/net/if_inet6",
                        f"fd{2:030x} 04 40 00 82 eth2\nfe80{2:028x} 05 40 20 80 veth0")
        self.tree.write("proc/net/ipv6_route", "\n".join(
            f"{to} 40 {0:032x} 00 {0:032x} 0 1 0 1 {name}"
            for to, name in ((f"fd00{0:028x}", "eth2"), (f"fe80{0:028x}", "veth0"))))
        facts = self.facts()
        self.assertEqual(facts["eth1"]["uses"], ["route 10.0.0.0/8"])
        self.assertEqual(facts["eth2"]["uses"], ["address fd00::2", "route fd00::/64"])
        self.assertEqual(facts["veth0"]["uses"], [])

    def test_a_port_of_a_bridge(self):
        self.tree.make("sys/class/net/eth1/upper_br0")
        self.assertEqual(self.facts("eth1")["eth1"]["uses"], ["part of br0"])

    def test_links_without_carrier(self):
        self.tree.of_interface("eth1", "carrier", "0")
        self.tree.of_interface("eth1", "speed", "-1")
        self.tree.of_interface("eth2", "flags", "0x1002")
        self.assertEqual(self.facts()["eth1"]["link"], "no carrier")
        self.assertIsNone(self.facts()["eth1"]["mbit"])
        self.assertEqual(self.facts()["eth2"]["link"], "down")

    def test_what_is_no_device(self):
        self.says(2, ["'eth9' is no device", "one of: ", "eth1"], "show", "eth9")
        self.says(2, [f"{DISK} is no network device", "0x010802"], "show", DISK)
        self.says(2, "'../lo'", "show", "../lo")

    def test_files_that_are_wrong(self):
        self.tree.of_interface("eth1", "mtu", "many")
        self.says(1, ["eth1/mtu", "'many'", "a whole number expected"], "show")

    def test_a_file_that_cannot_be_read(self):
        path = os.path.join(self.tree.root, "sys/class/net/eth1/mtu")
        os.chmod(path, 0)
        self.says(1, ["cannot read", "eth1/mtu", "Permission denied", "expected"], "show",
                  before_exec=harness.become_nobody if os.geteuid() == 0 else None)


class Check(MadeUp):
    def items(self, name, way=None, mtu=1500, lanes=1, memory=1024, vlan=0):
        device = self.device(name)
        wanted = check.Wanted(device, way or check.default_way(device), mtu, lanes, memory, vlan)
        return {item.what: item for item in check.check(wanted)}

    def is_missing(self, what, command, name, **settings):
        """It prints this and nothing else."""
        items = self.items(name, **settings)
        self.assertEqual([i.what for i in items.values() if i.state == check.MISSING], [what])
        self.assertIn(command, items[what].command or items[what].saying)

    def test_nothing_is_missing(self):
        for name, way in ((FREE, None), ("eth2", None), ("veth0", None), ("eth1", "af_xdp"),
                          ("eth1", "af_packet"), ("eth2", "af_packet")):
            with self.subTest(name=name, way=way):
                lanes = {"af_xdp": 4}.get(way, 2)
                words = ["--way", way] if way else []
                said = self.says(0, "OK", "check", name, "--lanes", lanes, *words)
                self.assertNotIn("MISSING", said)

    def test_a_device_of_the_kernels_driver(self):
        self.is_missing("driver", f"scripts/nic bind {PLAIN} vfio-pci", "eth1")
        self.says(1, f"scripts/nic bind {PLAIN} vfio-pci", "check", "eth1")

    def test_the_way_and_the_driver(self):
        self.assertEqual(self.items(FREE, way="af_packet")["driver"].command,
                         f"scripts/nic unbind {FREE}")
        self.assertEqual(self.items("eth2", way="vfio")["driver"].state, check.MISSING)
        self.says(2, ["veth0 is no PCI device", "af_packet"], "check", "veth0", "--way", "vfio")

    def test_in_use(self):
        self.tree.write("proc/net/route", ROUTE_HEAD + "eth2 00000000 0100000A 3 0 0 0 00000000")
        self.is_missing("not in use", "ip address flush dev eth2", "eth2")
        self.assertNotIn("not in use", self.items("eth2", way="af_packet"))

    def test_hugepages(self):
        at = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
        self.is_missing("hugepages", f"echo 2048 > {at}", FREE, memory=4096)
        self.is_missing("hugepages", f"echo 1025 > {at}", FREE, memory=2049)
        self.tree.write_hugepages(0)
        self.is_missing("hugepages", f"echo 512 > {at}", FREE)
        self.assertNotIn("hugepages", self.items("eth1", way="af_packet"))
        pages = "sys/devices/system/node/node0/hugepages"
        self.tree.write(f"{pages}/hugepages-1048576kB/free_hugepages", "1")
        self.assertIn("1 of 1024 MiB", self.items(FREE)["hugepages"].saying)
        self.assertEqual(self.items(FREE)["hugepages"].state, check.OK)
        self.tree.remove(pages)
        self.is_missing("hugepages", "none of 2 MiB", FREE)

    def test_a_device_of_no_node(self):
        self.tree.write(f"{PCI}/devices/{FREE}/numa_node", "-1")
        self.tree.remove("sys/devices/system/node")
        self.assertEqual(self.items(FREE)["hugepages"].state, check.OK)
        self.is_missing("hugepages", "/sys/kernel/mm/hugepages", FREE, memory=4096)

    def test_no_iommu(self):
        self.tree.remove(f"{PCI}/devices/{PLAIN}/iommu_group")
        items = self.items("eth1")
        self.assertEqual(items["IOMMU"].state, check.MISSING)
        self.assertIn("intel_iommu=on", items["IOMMU"].command)
        self.assertIn(f"echo 1 > /{check.UNSAFE}", items["IOMMU"].saying)
        self.tree.make("sys/module/vfio")
        self.assertIn("lacks CONFIG_VFIO_NOIOMMU", self.items("eth1")["IOMMU"].saying)
        self.tree.write(check.UNSAFE, "Y")
        self.assertEqual(self.items("eth1")["IOMMU"].state, check.OK)
        self.tree.write(check.UNSAFE, "N")
        self.assertEqual(self.items("eth1")["IOMMU"].state, check.MISSING)

    def test_a_group_without_protection(self):
        self.tree.write("sys/kernel/iommu_groups/12/name", "vfio-noiommu")
        self.tree.write(check.UNSAFE, "Y")
        os.rename(os.path.join(self.tree.root, "dev/vfio/12"),
                  os.path.join(self.tree.root, "dev/vfio/noiommu-12"))
        items = self.items(FREE)
        self.assertEqual((items["IOMMU"].state, items["access"].state), (check.OK, check.OK))
        self.assertEqual(items["privilege"].saying, "CAP_SYS_RAWIO")

    def test_a_group_of_two(self):
        self.tree.link(f"sys/kernel/iommu_groups/12/devices/{PLAIN}",
                       f"sys/devices/pci0000:00/{PLAIN}")
        self.is_missing("IOMMU", f"echo {PLAIN} > /{PCI}/devices/{PLAIN}/driver/unbind", FREE)
        self.tree.rebind(PLAIN, "vfio-pci")
        self.assertEqual(self.items(FREE)["IOMMU"].state, check.OK)

    def test_modules(self):
        self.tree.remove(f"{PCI}/drivers/vfio-pci")
        self.assertEqual(self.items("eth1")["module"].command, "modprobe vfio-pci")
        self.tree.remove("sys/module/mlx5_ib")
        self.is_missing("module", "modprobe -a mlx5_ib", "eth2")

    def test_capabilities(self):
        self.tree.write("proc/self/status", "CapEff: 0000000000000000")
        limit = "locked memory"
        for name, way, what, command in (
                ("veth0", "af_packet", ["privilege"], "setcap cap_net_raw+ep "),
                ("eth2", "bifurcated", ["privilege", limit], "setcap cap_net_admin,cap_net_raw+ep"),
                ("eth1", "af_xdp", ["privilege", limit],
                 "setcap cap_net_admin,cap_net_raw,cap_bpf+ep"),
                (FREE, "vfio", [limit], "ulimit -l unlimited")):
            items = self.items(name, way=way, lanes=4)
            self.assertEqual([i.what for i in items.values() if i.state == check.MISSING], what)
            self.assertIn(command, items[what[0]].command)
        self.tree.write("proc/self/limits", "Max locked memory unlimited unlimited bytes")
        self.assertEqual(self.items(FREE)[limit].state, check.OK)
        self.tree.write("proc/self/limits", f"Max locked memory {1 << 30} {1 << 30} bytes")
        self.assertEqual(self.items(FREE)[limit].state, check.OK)
        self.is_missing(limit, "ulimit", FREE, memory=1025)
        self.tree.remove("proc/self/limits")
        self.assertEqual(self.items(FREE)[limit].state, check.UNKNOWN)

    def test_cores(self):
        self.assertEqual(self.items(FREE, lanes=4)["isolcpus"].state, check.OK)
        items = self.items(FREE, lanes=5)
        for what in ("isolcpus", "nohz_full"):
            self.assertEqual(items[what].state, check.MISSING)
            self.assertIn("isolcpus=3,4,5,6,7 nohz_full=3,4,5,6,7", items[what].command)
        self.tree.write("sys/devices/system/cpu/nohz_full", "(null)")
        self.is_missing("nohz_full", "nohz_full=7", FREE)
        self.tree.write("sys/devices/system/node/node0/cpulist", "6-7")
        self.assertEqual(self.items(FREE, lanes=3)["cores"].state, check.MISSING)
        self.assertEqual(self.items(FREE, lanes=2)["cores"].state, check.OK)
        self.assertEqual(self.items(FREE, lanes=2)["isolcpus"].state, check.OK)
        self.tree.write("sys/devices/system/cpu/isolated", "0-5")  # on another node
        items = self.items(FREE, lanes=2)
        self.assertEqual(items["isolcpus"].state, check.MISSING)
        self.assertEqual(items["isolcpus"].command, "")  # no core would be left
        self.assertIn("isolcpus=7 ", self.items(FREE, lanes=1)["isolcpus"].command)

    def test_sockets_need_no_isolated_cores(self):
        for file in ("isolated", "nohz_full"):
            self.tree.write(f"sys/devices/system/cpu/{file}", "")
        said = self.says(0, "OK", "check", "veth0", "--lanes", 2)
        for unwanted in ("MISSING", "isolcpus", "nohz_full", "reboot"):
            self.assertNotIn(unwanted, said)
        self.is_missing("cores", "8 for 9 lanes", "veth0", lanes=9)
        self.assertEqual(self.items("eth1", way="af_xdp")["isolcpus"].state, check.MISSING)

    def test_governor(self):
        place = "sys/devices/system/cpu"
        self.tree.write(f"{place}/cpu3/cpufreq/scaling_governor", "powersave")
        self.is_missing("governor", "echo performance | tee", FREE)
        for cpu in range(8):
            self.tree.remove(f"{place}/cpu{cpu}/cpufreq")
        self.assertEqual(self.items(FREE)["governor"].state, check.UNKNOWN)

    def test_fewer_queues_than_lanes(self):
        self.is_missing("queues", "ethtool -L veth0 combined 2", "veth0", way="af_xdp", lanes=2)
        self.assertEqual(self.items("veth0", lanes=2)["queues"].state, check.OK)  # af_packet
        self.assertEqual(self.items("eth1", lanes=8)["queues"].state, check.UNKNOWN)
        self.assertEqual(self.items(FREE, lanes=2)["queues"].state, check.UNKNOWN)

    def test_more_queues_than_lanes(self):
        """Frames of a queue without a socket would go to the kernel and be lost."""
        self.is_missing("queues", "ethtool -L eth1 combined 2", "eth1", way="af_xdp", lanes=2)
        self.assertEqual(self.items("eth2", lanes=2)["queues"].state, check.OK)

    def test_mtu(self):
        self.is_missing("MTU", "ip link set dev veth0 mtu 1501", "veth0", mtu=1501)
        self.assertEqual(self.items("eth2", mtu=9000)["MTU"].state, check.OK)
        self.assertEqual(self.items(FREE, mtu=9000)["MTU"].state, check.UNKNOWN)

    def test_mtu_of_af_xdp(self):
        most = check.LARGEST_AF_XDP_MTU
        self.tree.of_interface("veth0", "mtu", str(most))
        self.assertEqual(self.items("veth0", way="af_xdp", mtu=most)["MTU"].state, check.OK)
        self.is_missing("MTU", f"{most} at most", "veth0", way="af_xdp", mtu=most + 1)
        self.tree.of_interface("veth0", "mtu", str(most + 1))
        self.is_missing("MTU", "mtu 1500", "veth0", way="af_xdp")

    def test_vlan(self):
        """Only the kernel knows features."""
        self.assertEqual(self.items("veth0", vlan=7)["VLAN"].state, check.UNKNOWN)
        on = {"eth1": set()}
        self.machine.features = on.get
        self.assertNotIn("VLAN", self.items("eth1", way="af_xdp", lanes=4))
        items = self.items("eth1", way="af_xdp", lanes=4, vlan=7, mtu=1501)
        self.assertEqual((items["VLAN"].state, items["tags"].state), (check.OK, check.OK))
        self.assertEqual(items["switch"].state, check.UNKNOWN)
        self.assertIn("VLAN 7 tagged, and frames 4 bytes longer than without: of 1519",
                      items["switch"].saying)
        self.assertNotIn("other end", items)
        on["eth1"] = {"rx-vlan-hw-parse"}
        self.is_missing("tags", "ethtool -K eth1 rxvlan off", "eth1", way="af_xdp", lanes=4, vlan=7)
        self.assertNotIn("tags", self.items("eth1", way="af_packet", vlan=7))
        on["eth1"] = {"rx-vlan-filter"}
        for way, lanes in (("af_xdp", 4), ("af_packet", 1)):
            self.is_missing("VLAN", "ethtool -K eth1 rx-vlan-filter off", "eth1", way=way,
                            lanes=lanes, vlan=7)
        on["eth1"] = {"vlan-challenged"}
        self.is_missing("VLAN", "eth1 takes no tagged frames", "eth1", way="af_packet", vlan=7)
        self.assertEqual(self.items(FREE, vlan=7)["switch"].state, check.UNKNOWN)

    def test_vlan_of_a_veth_link(self):
        on = {"veth0": set(), "veth1": set()}
        self.machine.features = on.get
        self.tree.add_interface("veth1")
        for name, own, other in (("veth0", 8, 9), ("veth1", 9, 8)):
            self.tree.of_interface(name, "ifindex", str(own))
            self.tree.of_interface(name, "iflink", str(other))
        asked = {"way": "af_xdp", "vlan": 7}
        self.assertEqual(self.items("veth0", **asked)["other end"].state, check.OK)
        on["veth1"] = {"tx-vlan-hw-insert"}
        self.is_missing("other end", "ethtool -K veth1 txvlan off", "veth0", **asked)
        self.assertNotIn("other end", self.items("veth0", way="af_packet", vlan=7))
        self.tree.of_interface("veth1", "iflink", "1")  # of another interface
        self.assertEqual(self.items("veth0", **asked)["other end"].state, check.UNKNOWN)

    def test_vlan_of_a_vlan(self):
        self.machine.features = {"veth0": set()}.get
        self.tree.of_interface("veth0", "uevent", "DEVTYPE=vlan")
        self.tree.make("sys/class/net/veth0/lower_eth1")
        self.is_missing("VLAN", "scripts/nic check eth1 --vlan 7", "veth0", vlan=7)

    def test_link(self):
        self.tree.of_interface("veth0", "carrier", "0")
        self.is_missing("link", "no carrier", "veth0")
        self.tree.of_interface("veth0", "flags", "0x1002")
        self.is_missing("link", "ip link set dev veth0 up", "veth0")

    def test_a_kernel_without_af_xdp(self):
        self.tree.write("proc/net/protocols", "protocol  size\nUDP  1088")
        self.is_missing("AF_XDP", "CONFIG_XDP_SOCKETS", "veth0", way="af_xdp")
        self.tree.remove("proc/net/protocols")
        self.assertEqual(self.items("veth0", way="af_xdp")["AF_XDP"].state, check.UNKNOWN)

    def test_wrong_usage(self):
        for words, saying in (
                (["eth1", "--mtu", 575], "'575' is not a whole number from 576 to 9698"),
                (["eth1", "--mtu", 9699], "from 576 to 9698"),
                (["eth1", "--vlan", 4095], "from 1 to 4094"),
                (["eth1", "--lanes", 9], "'9' is not a whole number from 1 to 8"),
                (["eth1", "--memory", "1G"], "'1G' is not a whole number"),
                (["eth1", "--way", "dpdk"], "'dpdk'"),
                (["eth9"], "'eth9' is no device"), ([], "DEVICE")):
            self.says(2, saying, "check", *words)
        self.says(2, "COMMAND")


class Bind(MadeUp):
    def setUp(self):
        super().setUp()
        self.kernel = Kernel(self.tree, ["ixgbe", "vfio-pci"])

    def refuses(self, sayings, *words, status=1):
        with self.assertRaises(Failure) as caught:
            bind.bind(self.kernel, *words)
        self.assertEqual(caught.exception.status, status, caught.exception)
        for saying in [sayings] if isinstance(sayings, str) else sayings:
            self.assertIn(saying, str(caught.exception))

    def refuses_and_writes_nothing(self, sayings, *words, status=1):
        self.refuses(sayings, *words, status=status)
        self.assertEqual(self.kernel.written, [])

    def state_of(self, address):
        """Driver, override."""
        place = f"{PCI}/devices/{address}"
        return (self.kernel.target(f"{place}/driver"), self.kernel.read(f"{place}/driver_override"))

    def test_there_and_back(self):
        said, = bind.bind(self.kernel, "eth1", "vfio-pci")
        self.assertIn(f"{PLAIN} is bound to vfio-pci now", said)
        self.assertEqual(self.state_of(PLAIN), ("vfio-pci", "vfio-pci"))
        bind.bind(self.kernel, PLAIN, None)
        self.assertEqual(self.state_of(PLAIN), ("ixgbe", "(null)"))

    def test_without_a_driver_before(self):
        self.tree.rebind(PLAIN, None)
        bind.bind(self.kernel, PLAIN, "vfio-pci")
        self.assertEqual(self.state_of(PLAIN)[0], "vfio-pci")

    def test_what_is_so_already(self):
        for name, driver in ((FREE, "vfio-pci"), ("eth1", "ixgbe"), ("eth1", None)):
            self.assertIn("already", bind.bind(self.kernel, name, driver)[0])
        self.assertEqual(self.kernel.written, [])

    def test_dry_run(self):
        said = bind.bind(self.kernel, PLAIN, "vfio-pci", dry_run=True)
        self.assertEqual(said, [
            f"echo 'vfio-pci' > /{PCI}/devices/{PLAIN}/driver_override",
            f"echo '{PLAIN}' > /{PCI}/drivers/ixgbe/unbind",
            f"echo '{PLAIN}' > /{PCI}/drivers_probe"])
        self.assertEqual(self.kernel.written, [])
        bind.bind(self.kernel, PLAIN, "vfio-pci")
        self.assertEqual([f"echo '{text}' > /{name}" for name, text in self.kernel.written], said)
        self.says(0, f"echo '' > /{PCI}/devices/{FREE}/driver_override", "unbind", "--dry-run",
                  FREE)

    def test_the_driver_refuses(self):
        self.kernel.accepting = ["ixgbe"]
        self.refuses(["vfio-pci did not take it", "its driver is ixgbe, as before"], PLAIN,
                     "vfio-pci")
        self.assertEqual(self.state_of(PLAIN), ("ixgbe", "(null)"))

    def test_no_driver_of_the_kernel(self):
        self.tree.write(f"{PCI}/devices/{FREE}/driver_override", "vfio-pci")
        self.kernel.accepting = ["vfio-pci"]
        self.refuses(["the kernel did not take it", "vfio-pci, as before"], FREE, None)
        self.assertEqual(self.state_of(FREE), ("vfio-pci", "vfio-pci"))

    def test_a_write_that_fails(self):
        for failing in ("driver_override", "unbind", "drivers_probe"):
            with self.subTest(failing):
                kernel = Kernel(self.tree, ["ixgbe", "vfio-pci"])
                write, failures = kernel.write, [failing]

                def fail_once(name, text, write=write, failures=failures):
                    if failures and name.endswith(failures[0]):
                        failures.clear()
                        raise OSError(16, "Device or resource busy")
                    write(name, text)

                kernel.write = fail_once
                self.kernel = kernel
                self.refuses(["busy", "ixgbe, as before"], PLAIN, "vfio-pci")
                self.assertEqual(self.state_of(PLAIN), ("ixgbe", "(null)"))

    def test_the_former_driver_does_not_come_back(self):
        self.kernel.accepting = []
        self.refuses(["ixgbe did not take it back", "is none"], PLAIN, "vfio-pci")

    def test_in_use(self):
        self.tree.write("proc/net/route", ROUTE_HEAD + "eth1 0000000A 00000000 1 0 0 0 000000FF")
        self.refuses_and_writes_nothing(["eth1 is in use", "route 10.0.0.0/8"], PLAIN, "vfio-pci")

    def test_any_interface_of_the_function_is_in_use(self):
        self.tree.add_interface("eth1b", PLAIN)
        self.tree.write("proc/net/if_inet6", f"fd{2:030x} 04 40 00 82 eth1b")
        self.refuses_and_writes_nothing(["eth1b is in use", "fd00::2"], PLAIN, "vfio-pci")
        self.refuses_and_writes_nothing("eth1b is in use", "eth1", "vfio-pci")

    def test_open(self):
        self.tree.make("proc/1234/fd")
        os.symlink("/dev/vfio/12", os.path.join(self.tree.root, "proc/1234/fd/5"))
        self.refuses_and_writes_nothing("process 1234 has /dev/vfio/12 open", FREE, None)

    def test_what_is_no_device_or_driver(self):
        self.refuses_and_writes_nothing("'eth9'", "eth9", "vfio-pci", status=2)
        self.refuses_and_writes_nothing("no network device", DISK, "vfio-pci", status=2)
        self.refuses_and_writes_nothing("no PCI device", "veth0", "vfio-pci", status=2)
        self.refuses_and_writes_nothing("'../x' is no driver", PLAIN, "../x", status=2)
        self.refuses_and_writes_nothing("modprobe igb_uio", PLAIN, "igb_uio")
        self.refuses_and_writes_nothing(["mlx5_core", f"--port {SHARED}"], SHARED, "vfio-pci")

    def test_owner(self):
        nobody = pwd.getpwuid(65534).pw_name
        self.assertEqual(bind.give(self.kernel, PLAIN, nobody, dry_run=True),
                         [f"chown {nobody} /dev/vfio/11"])
        with self.assertRaisesRegex(Failure, "eth1 has no file in /dev/vfio"):
            bind.give(self.kernel, PLAIN, nobody)
        self.tree.write("dev/vfio/12", "")
        self.says(1, "/dev/vfio/12 does not become nobody-of-this-name's", "bind", FREE, "vfio-pci",
                  "--owner", "nobody-of-this-name")
        if os.geteuid() != 0:
            self.skipTest(harness.NEEDS_ROOT)
        self.says(0, f"/dev/vfio/12 belongs to {nobody} now", "bind", FREE, "vfio-pci", "--owner",
                  nobody)
        self.assertEqual(os.stat(self.tree.root + "/dev/vfio/12").st_uid, 65534)

    def test_without_privilege(self):
        os.chmod(os.path.join(self.tree.root, PCI, "drivers_probe"), 0o444)
        self.says(1, ["the privilege is missing", "write access to", "root"], "bind", PLAIN,
                  "vfio-pci", before_exec=harness.become_nobody if os.geteuid() == 0 else None)
        self.assertEqual(self.state_of(PLAIN), ("ixgbe", "(null)"))


class Help(MadeUp):
    def test_is_complete(self):
        self.says(0, ["show", "check", "bind", "unbind", "Examples"], "--help")
        for command, sayings in {"show": ["DEVICE", "--json", "af_xdp"],
                                 "check": ["--mtu", "--vlan", "--lanes", "--memory", "--way",
                                           "Exit status"],
                                 "bind": ["DRIVER", "--owner", "--dry-run", "Exit status"],
                                 "unbind": ["--dry-run", "Exit status"]}.items():
            self.says(0, sayings, command, "--help")


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Veth(harness.SystemTest):
    """In a new network namespace, with its /sys or without it."""

    def said(self, command, mounts):
        mount = "mount -t sysfs sysfs /sys && " if mounts else ""
        done = subprocess.run(
            ["unshare", "--net", "--mount", "sh", "-c",
             "ip link add left mtu 2000 numrxqueues 2 type veth peer name right && "
             f"ip link set left up && ip link set right up && {mount}{command}"],
            text=True, check=False, capture_output=True)
        self.assertNotIn("Traceback", done.stderr)
        self.said_by_others.append(done.stdout + done.stderr)
        return done.returncode, done.stdout + done.stderr

    def test_show(self):
        status, said = self.said(f"{NIC} show --json", mounts=True)
        self.assertEqual(status, 0, said)
        facts = {one["interface"]: one for one in json.loads(said)}
        self.assertLessEqual({"left", "right"}, set(facts))
        left = facts["left"]
        self.assertEqual((left["mtu"], left["link"], left["address"], left["rx_queues"]),
                         (2000, "up", None, 2))
        self.assertEqual(left["uses"], [])
        self.assertEqual(left["ways"]["af_packet"], "net_af_packet0,iface=left")

    def test_an_address_without_a_route(self):
        _, said = self.said(f"ip address add 10.9.9.9/32 dev left && {NIC} show left", mounts=True)
        self.assertIn("address 10.9.9.9", said)
        self.assertNotIn("right", said)

    def test_check(self):
        _, said = self.said(f"{NIC} check left --mtu 2001", mounts=True)
        self.assertIn("ip link set dev left mtu 2001", said)
        self.assertIn("OK       link", said)

    def test_check_of_a_vlan(self):
        """veth interfaces keep tags outside of frames, which is the kernel's default."""
        status, said = self.said(f"{NIC} check left --way af_xdp --vlan 7 --lanes 2", mounts=True)
        self.assertEqual(status, 1, said)
        self.assertIn("ethtool -K left rxvlan off", said)
        self.assertIn("ethtool -K right txvlan off", said)
        self.assertIn("OK       VLAN", said)

    def test_another_namespaces_sys(self):
        status, said = self.said(f"{NIC} show", mounts=False)
        self.assertEqual(status, 1)
        self.assertIn("another network namespace", said)


if __name__ == "__main__":
    harness.main()
