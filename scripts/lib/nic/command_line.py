"""Arguments, what is printed, the exit status."""
import argparse
import json
import os
import sys

from ranges import whole_number
from version import ShowVersion

from . import bind, check, devices
from .machine import PROGRAM, Failure, Machine

DESCRIPTION = f"""\
Shows this machine's network devices, tells what sluice-aggregator misses on one of them, and
changes the driver of a PCI device.

Examples:
  {PROGRAM} show
  {PROGRAM} check eth1 --lanes 2 --mtu 9000
  {PROGRAM} bind 0000:01:00.0 vfio-pci"""

A_DEVICE = "an interface, as eth1, or a PCI address, as 0000:01:00.0 or 01:00.0"

SHOW = """\
Shows network devices: driver, model, link, MTU, NUMA node, receive queues, and for what the kernel
uses each. Below are the values of --port with which the daemon can use it as it is:

  vfio        the device is DPDK's alone; the daemon needs pci = on and hugepages = on
  bifurcated  the kernel's driver shares it (mlx5): the same settings
  af_xdp      through the kernel's driver, past most of its network stack
  af_packet   through the kernel's network stack: any interface"""

CHECK = """\
Checks what a daemon of some lanes misses on DEVICE. A line per item: OK, MISSING or UNKNOWN, and
below what is missing the command that fixes it. Privileges and limits are those of this command, so
run it as the user of the daemon.

Exit status: 0 when nothing is missing, 1 when something is, 2 for a wrong command line."""

BIND = """\
Binds a PCI device to DRIVER, as vfio-pci, which must be loaded. A device with addresses or routes
is refused. If DRIVER does not take the device, it gets its former driver again.

Exit status: 0 when the device has the driver, 1 when not, 2 for a wrong command line."""

UNBIND = """\
Gives a PCI device back to the kernel's driver. If there is none that takes it, it keeps the driver
that it has.

Exit status: 0 when a kernel's driver has the device, 1 when not, 2 for a wrong command line."""


def make_parser():
    parser = argparse.ArgumentParser(
        prog=os.path.basename(PROGRAM), description=DESCRIPTION, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="/", help=argparse.SUPPRESS)  # of a simulated machine
    parser.add_argument("--version", action=ShowVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_show(commands)
    add_check(commands)
    add_bind(commands, "bind", BIND, "bind a PCI device to a driver, as vfio-pci")
    add_bind(commands, "unbind", UNBIND, "give a PCI device back to the kernel's driver")
    return parser


def add_command(commands, name, description, summary, run):
    command = commands.add_parser(name, description=description, help=summary, allow_abbrev=False,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    command.set_defaults(run=run)
    return command.add_argument


def add_show(commands):
    add = add_command(commands, "show", SHOW, "show network devices", run_show)
    add("devices", nargs="*", metavar="DEVICE", help=f"{A_DEVICE} (default: all)")
    add("--json", action="store_true", help="print the same as JSON")


def add_check(commands):
    add = add_command(commands, "check", CHECK, "tell what a daemon misses", run_check)
    add("device", metavar="DEVICE", help=A_DEVICE)
    add("--way", choices=list(check.CHECKS),
        help="how the daemon is to use it, see `nic show --help` (default: bifurcated for mlx5, "
             "vfio for other PCI devices, else af_packet)")
    add("--mtu", type=whole_number(576, 9698), default=1500, metavar="BYTES",
        help="the daemon's port-mtu, 576 to 9698 (default 1500)")
    add("--vlan", type=whole_number(1, 4094), default=0, metavar="ID",
        help="the daemon's port-vlan, 1 to 4094 (default none)")
    add("--lanes", type=whole_number(1, 8), default=1, metavar="L",
        help="the daemon's lanes, 1 to 8 (default 1)")
    add("--memory", type=whole_number(1, 1 << 20), default=1024, metavar="MIB",
        help="the daemon's memory-mib, 1 to 1048576 (default 1024)")


def add_bind(commands, name, description, summary):
    add = add_command(commands, name, description, summary, run_bind)
    add("device", metavar="DEVICE", help=A_DEVICE)
    if name == "bind":
        add("driver", metavar="DRIVER", help="vfio-pci, or another driver that is loaded")
        add("--owner", metavar="USER",
            help="the daemon's user, who gets the device's file in /dev/vfio")
    add("--dry-run", action="store_true", help="print what would be written, and write nothing")


def run_show(machine, options):
    names = dict.fromkeys(options.devices)
    found = [device for name in names for device in devices.find(machine, name)] \
        if names else devices.every(machine)
    facts = [device.facts() for device in found]
    print(json.dumps(facts, indent=2) if options.json else "\n".join(table(facts)))
    return 0


def table(facts):
    head = ("INTERFACE", "PCI", "DRIVER", "LINK", "MBIT/S", "MTU", "NODE", "QUEUES", "MODEL")
    names = ("interface", "address", "driver", "link", "mbit", "mtu", "node", "rx_queues", "model")
    rows = [head, *([str(shown(one[name])) for name in names] for one in facts)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row, one in zip(rows, [None, *facts]):
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
        if one:
            yield from (f"    {way + ':':12} --port {port}" for way, port in one["ways"].items())
            if one["uses"]:
                yield f"    warning: the kernel uses it: {', '.join(one['uses'])}"


def shown(value):
    return "-" if value is None else value


def run_check(machine, options):
    found = devices.find(machine, options.device)
    if len(found) > 1:
        raise Failure(f"{options.device} has several interfaces: one expected, of "
                      f"{', '.join(device.name for device in found)}", 2)
    way = options.way or check.default_way(found[0])
    items = check.check(check.Wanted(found[0], way, options.mtu, options.lanes, options.memory,
                                     options.vlan))
    print(f"{found[0].name}, --way {way}")
    for item in items:
        print(f"{item.state:8} {item.what:14} {item.saying}")
        if item.command:
            print(f"{'':8} {'':14} {item.command}")
    return 1 if any(item.state == check.MISSING for item in items) else 0


def run_bind(machine, options):
    driver = getattr(options, "driver", None)
    print("\n".join(bind.bind(machine, options.device, driver, options.dry_run)))
    if getattr(options, "owner", None):
        print("\n".join(bind.give(machine, options.device, options.owner, options.dry_run)))
    return 0


def main(argv):
    """The exit status."""
    options = make_parser().parse_args(argv)
    machine = Machine(options.root)
    try:
        machine.refuse_other_namespace()
        return options.run(machine, options)
    except Failure as failure:
        print(f"{os.path.basename(PROGRAM)}: {failure}", file=sys.stderr)
        return failure.status
