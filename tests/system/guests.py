"""Guests: virtual machines with emulated NICs behind a bridge. QEMU interprets their instructions,
so they run on any machine. Their kernel is one of Debian's; they see this machine's files, which
they cannot write."""
import glob
import os
import re

from harness import af_packet

CPUS = 4
LANE_CPUS = (2, 3)  # the guest's kernel runs nothing else on them
MEMORY_MIB = 2048
NICS_OF_A_GUEST = 4
FIRST_SLOT = 4  # of the PCI bus, for NICs
ENDED = "the guest's command has ended with "
# QEMU's names, and the options that each needs for the IOMMU and for its queues.
NICS = {
    "vmxnet3": "vmxnet3",
    "e1000": "e1000",
    "e1000e": "e1000e",
    "virtio_net": "virtio-net-pci,disable-legacy=on,iommu_platform=on,mq=on,rss=on,vectors=10",
}
MODULES = ("virtio_pci", "9p", "9pnet_virtio", "vfio-pci", "vfio_iommu_type1")
# Its own are what the kernel makes, /run and /dev/shm.
INIT = """#!/bin/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /bin
./busybox mount -t devtmpfs devtmpfs /dev
exec >/dev/console 2>&1
for module in {modules}; do ./busybox insmod /$module || ./busybox poweroff -f; done
./busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose files /files
for kind in proc:proc sysfs:sys devtmpfs:dev tmpfs:run; do
  ./busybox mount -t ${{kind%:*}} ${{kind%:*}} /files/${{kind#*:}}
done
./busybox mkdir -p /files/dev/shm
./busybox mount -t tmpfs tmpfs /files/dev/shm
export XDG_RUNTIME_DIR=/run
./busybox chroot /files {command}
echo "{ended}$?"
./busybox poweroff -f
"""


def modules_of(tree, names):
    """The files of these kernel modules and of all that they need, in the order of loading."""
    files = {os.path.basename(path).removesuffix(".ko").replace("-", "_"): path
             for path in glob.glob(f"{tree}/lib/modules/*/**/*.ko", recursive=True)}
    found = {}

    def add(name):
        if name in found or name not in files:  # the latter are built in
            return
        with open(files[name], "rb") as file:
            needed = re.search(rb"\0depends=([^\0]*)", file.read()).group(1).decode()
        for other in filter(None, needed.split(",")):
            add(other.replace("-", "_"))
        found[name] = files[name]

    for name in names:
        add(name.replace("-", "_"))
    return list(found.values())


def archive(entries):
    """An archive that the kernel can unpack (cpio, "newc"); `entries` are (name, mode, bytes)."""
    packed = bytearray()
    for number, (name, mode, data) in enumerate((*entries, ("TRAILER!!!", 0, b"")), 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        packed += b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (name.encode() + b"\0", data):
            packed += part + bytes(-(len(packed) + len(part)) % 4)
    return bytes(packed)


def start_files(tree, driver, command):
    """The archive from which the guest starts: it loads modules, mounts files, runs a command."""
    modules = modules_of(tree, (*MODULES, driver))
    with open("/bin/busybox", "rb") as file:
        busybox = file.read()
    init = INIT.format(modules=" ".join(map(os.path.basename, modules)), command=command,
                       ended=ENDED)
    entries = [(name, 0o40755, b"") for name in ("bin", "dev", "files")]
    entries += [("init", 0o100755, init.encode()), ("bin/busybox", 0o100755, busybox)]
    for path in modules:
        with open(path, "rb") as file:
            entries.append((os.path.basename(path), 0o100644, file.read()))
    return archive(entries)


def make_bridge(queues):
    """In this process's network namespace; the interfaces behind which the guest's NICs are."""
    af_packet.silence_kernel()
    af_packet.ip("link", "add", "bridge0", "mtu", 9000, "type", "bridge", "mcast_snooping", 0)
    af_packet.ip("link", "set", "bridge0", "up")
    names = [f"tap{nic}" for nic in range(NICS_OF_A_GUEST)]
    for name in names:
        several = ["multi_queue"] if queues > 1 else []
        af_packet.ip("tuntap", "add", "dev", name, "mode", "tap", "vnet_hdr", *several)
        af_packet.ip("link", "set", name, "mtu", 9000, "master", "bridge0", "up")
    return names


def qemu(tree, files, driver, taps, queues, iommu):
    """The command that runs such a guest; the guest's output is its standard output."""
    lanes = ",".join(map(str, LANE_CPUS))
    kernel = glob.glob(f"{tree}/boot/vmlinuz-*")[0]
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
        "-serial", "stdio", "-no-reboot", "-accel", "tcg", "-cpu", "max", "-machine", "q35",
        "-smp", CPUS, "-m", MEMORY_MIB, "-kernel", kernel, "-initrd", files,
        "-append", "console=ttyS0 quiet panic=-1 no_timer_check intel_iommu=on iommu=pt "
                   f"isolcpus={lanes} nohz_full={lanes} rcu_nocbs={lanes}",
        *(("-device", "intel-iommu,intremap=on,caching-mode=on") if iommu else ()),
        "-virtfs", "local,path=/,mount_tag=files,security_model=none,readonly=on,multidevs=remap"]
    for number, tap in enumerate(taps):
        command += [
            "-netdev", f"tap,id={tap},ifname={tap},script=no,downscript=no,queues={queues}",
            "-device", f"{NICS[driver]},netdev={tap},mac=52:54:00:00:00:{number + 1:02x},"
                       f"addr={FIRST_SLOT + number:#x}"]
    return command
