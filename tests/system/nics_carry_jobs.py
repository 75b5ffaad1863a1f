"""Jobs over NICs of PCI, of each model that QEMU emulates and DPDK drives. A guest has four of one,
and runs a class of inside_a_guest.py on them. Needs Debian's kernel unpacked in the build directory
(scripts/emulated-nics does that)."""
import os
import shlex
import unittest

import guests
import harness
from harness import af_packet, linux

INSIDE = os.path.join(harness.HERE, "inside_a_guest.py")
LIMIT = 900  # seconds


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Nics(harness.SystemTest):
    def run_inside(self, driver, tests, queues=1, iommu=True):
        kernel = os.path.join(harness.checkout.build, "guest-kernel")
        files = os.path.join(self.place, "start-files")
        command = shlex.join(["python3", "-B", INSIDE, harness.checkout.build, tests])
        with open(files, "wb") as file:
            file.write(guests.start_files(kernel, driver, command))
        home = af_packet.own_network_namespace()
        self.addCleanup(os.close, home)
        self.addCleanup(linux.enter_network_namespace, home)
        linux.enter_new_network_namespace()
        taps = guests.make_bridge(queues)
        guest = self.start("guest", *guests.qemu(kernel, files, driver, taps, queues, iommu))
        ended = guest.wait_to_say(guests.ENDED + r"(\d+)", LIMIT)
        self.assertEqual(ended.group(1), "0")

    def test_vmxnet3(self):
        self.run_inside("vmxnet3", "Vmxnet3")

    def test_virtio(self):
        self.run_inside("virtio_net", "VirtioNet", queues=2)

    def test_e1000e(self):
        self.run_inside("e1000e", "E1000e")

    def test_e1000(self):
        self.run_inside("e1000", "E1000")

    def test_without_an_iommu(self):
        self.run_inside("e1000", "WithoutIommu", iommu=False)


if __name__ == "__main__":
    harness.main()
