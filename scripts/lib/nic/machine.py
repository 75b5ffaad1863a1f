"""The machine's files (sysfs, procfs), below a root directory that tests replace."""
import ctypes
import errno
import fcntl
import os
import re
import socket
import struct
import sys

# The name by which it was called: the package's has another one.
INSTALLED = "sluice-nic"
PROGRAM = INSTALLED if os.path.basename(sys.argv[0]) == INSTALLED else "scripts/nic"

SIOCGIFADDR = 0x8915
# <linux/ethtool.h>
SIOCETHTOOL, GET_STRINGS, GET_SET_INFO, GET_FEATURES = 0x8946, 0x1b, 0x37, 0x3a
SET_OF_FEATURES, NAME_BYTES = 4, 32
BLOCK = struct.Struct("=IIII")  # of 32 features: available, requested, active, never changed
# sysfs's error for a value that does not exist, such as the speed of a link that is down.
NOTHING_TO_TELL = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOENT, errno.ENOTDIR,
                   errno.ESRCH)


class Failure(Exception):
    """A failure: a text for a person, and the exit status."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


class Machine:
    def __init__(self, root="/"):
        self.root = root
        self.is_real = os.path.realpath(root) == "/"

    def path(self, name):
        return os.path.join(self.root, name)

    def read(self, name):
        """The text without blanks around it; None if there is none."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError as error:
            if error.errno in NOTHING_TO_TELL:
                return None
            raise self._unreadable(name, "file", error) from None

    def number(self, name):
        text = self.read(name)
        if not text:
            return None
        if not re.fullmatch(r"-?\d+", text):
            raise Failure(f"{self.path(name)} has {text!r}: a whole number expected")
        return int(text)

    def cpus(self, name):
        """The numbers in a list such as 0-3,8; empty if there is none."""
        text = self.read(name)
        if not text or text == "(null)":
            return []
        if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
            raise Failure(f"{self.path(name)} has {text!r}: a list of CPUs expected, as 0-3,8")
        ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
        return [cpu for ends in ranges for cpu in range(ends[0], ends[-1] + 1)]

    def lines(self, name):
        return [line.split() for line in (self.read(name) or "").splitlines()]

    def names(self, directory):
        try:
            return sorted(os.listdir(self.path(directory)))
        except OSError as error:
            if error.errno in NOTHING_TO_TELL:
                return []
            raise self._unreadable(directory, "directory", error) from None

    def target(self, link):
        """The last part of what a link points to; None if there is none."""
        try:
            return os.path.basename(os.readlink(self.path(link)))
        except OSError:
            return None

    def has(self, name):
        return os.path.exists(self.path(name))

    def may_write(self, name):
        return os.access(self.path(name), os.W_OK)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(text + "\n")

    def ipv4_address(self, interface):
        """No file has it, so the kernel is asked. None if there is none."""
        if not self.is_real:
            return None
        request = struct.pack("256s", interface.encode()[:15])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                return socket.inet_ntoa(fcntl.ioctl(asking, SIOCGIFADDR, request)[20:24])
            except OSError:
                return None

    def features(self, interface):
        """The kernel's names of the features that are on, from the kernel, too. None: it does not
        say."""
        if not self.is_real:
            return None
        try:
            info = ask_ethtool(interface, 4, "=IIQ", GET_SET_INFO, 0, 1 << SET_OF_FEATURES)
            count = int.from_bytes(info, sys.byteorder)
            names = ask_ethtool(interface, count * NAME_BYTES, "=III", GET_STRINGS,
                                SET_OF_FEATURES, count)
            blocks = (count + 31) // 32
            states = ask_ethtool(interface, blocks * BLOCK.size, "=II", GET_FEATURES, blocks)
        except OSError:
            return None
        active = [block[2] for block in BLOCK.iter_unpack(states)]
        return {names[i * NAME_BYTES:][:NAME_BYTES].rstrip(b"\0").decode()
                for i in range(count) if active[i // 32] >> i % 32 & 1}

    def refuse_other_namespace(self):
        """/sys shows the interfaces of the network namespace in which it was mounted."""
        if not self.is_real:
            return
        shown = {(self.number(f"sys/class/net/{name}/ifindex"), name)
                 for name in self.names("sys/class/net")}
        if {(index, name) for index, name in shown if index} != set(socket.if_nameindex()):
            raise Failure("/sys shows the interfaces of another network namespace; use `ip netns "
                          "exec NAME`, or `unshare --mount sh -c 'mount -t sysfs sysfs /sys && "
                          f"{PROGRAM} ...'`")

    def _unreadable(self, name, kind, error):
        return Failure(f"cannot read {self.path(name)}: {error.strerror}; a readable {kind} "
                       "expected")


def ask_ethtool(interface, room, form, *question):
    """The bytes that the kernel writes behind the request. Raises OSError."""
    head = struct.calcsize(form)
    buffer = ctypes.create_string_buffer(head + room)
    struct.pack_into(form, buffer, 0, *question)
    request = struct.pack("16sP16x", interface.encode()[:15], ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, SIOCETHTOOL, request)
    return buffer.raw[head:]
