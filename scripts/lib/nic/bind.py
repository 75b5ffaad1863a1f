"""Another driver for a PCI device: by driver_override, which says which driver may have it, and
drivers_probe, which offers it. A step that fails is undone."""
import os
import re
import shutil

from . import devices
from .machine import Failure

PROBE = "sys/bus/pci/drivers_probe"


def bind(machine, name, driver, dry_run=False):
    """Returns lines that say what was done. `driver` None: any of the kernel's drivers."""
    found = devices.find(machine, name)
    address, former = found[0].address, found[0].driver
    if address is None:
        raise Failure(f"{name} is no PCI device, and only those change their drivers", 2)
    if former == driver or (driver is None and former and former not in devices.LEAVE):
        return [f"{address} is bound to {former} already"]
    refuse(machine, devices.find(machine, address), driver)  # with all of its interfaces
    if dry_run:
        return [f"echo '{text}' > /{file}" for file, text in steps(address, former, driver)]
    refuse_without_privilege(machine, steps(address, former, driver))
    refuse_while_open(machine, found[0])
    return [f"{address} is bound to {change(machine, address, driver)} now, was to {former}"]


def give(machine, name, owner, dry_run=False):
    """Makes the file of a vfio device the owner's; returns lines that say so."""
    device = devices.find(machine, name)[0]
    group = machine.target(f"{device.pci}/iommu_group")
    file = next((f"dev/vfio/{file}" for file in (group, f"noiommu-{group}")
                 if file in machine.names("dev/vfio")), None)
    if dry_run:
        return [f"chown {owner} /{file or f'dev/vfio/{group}'}"]
    if file is None:
        raise Failure(f"{device.name} has no file in /dev/vfio: vfio-pci expected as its driver")
    try:
        shutil.chown(machine.path(file), owner)
    except (LookupError, OSError) as error:
        raise Failure(f"/{file} does not become {owner}'s: {error}") from None
    return [f"/{file} belongs to {owner} now"]


def refuse(machine, found, driver):
    for device in found:
        if device.uses:
            raise Failure(f"{device.name} is in use ({', '.join(device.uses)}): it keeps its "
                          "driver; flush its addresses and routes first")
    if driver is None:
        return
    if not re.fullmatch(r"[\w-]+", driver):
        raise Failure(f"{driver!r} is no driver: a name expected, such as vfio-pci", 2)
    if found[0].driver in devices.SHARE and driver in devices.LEAVE:
        raise Failure(f"{found[0].name} is bound to {found[0].driver}, which shares it with DPDK: "
                      f"use it as it is, --port {found[0].address}")
    if not machine.has(f"sys/bus/pci/drivers/{driver}"):
        raise Failure(f"driver {driver} is not loaded: /sys/bus/pci/drivers/{driver} expected "
                      f"(modprobe {driver})")


def refuse_without_privilege(machine, wanted):
    for file, _ in wanted:
        if not machine.may_write(file):
            raise Failure(f"the privilege is missing: write access to {machine.path(file)} "
                          "expected, which root has")


def refuse_while_open(machine, device):
    """The kernel would wait for that process, for ever."""
    group = machine.target(f"{device.pci}/iommu_group")
    files = (f"/dev/vfio/{group}", f"/dev/vfio/noiommu-{group}")
    if group is None or device.driver != "vfio-pci":
        return
    for pid in filter(str.isdecimal, machine.names("proc")):
        for fd in machine.names(f"proc/{pid}/fd"):
            try:
                target = os.readlink(machine.path(f"proc/{pid}/fd/{fd}"))
            except OSError:  # it was closed meanwhile
                continue
            if target in files:
                raise Failure(f"{device.name} is in use: process {pid} has {target} open")


def steps(address, former, driver):
    """The writes, in this order: (file, text)."""
    leave = [(f"sys/bus/pci/drivers/{former}/unbind", address)] if former else []
    return [(override_file(address), driver or ""), *leave, (PROBE, address)]


def override_file(address):
    return f"sys/bus/pci/devices/{address}/driver_override"


def driver_of(machine, address):
    return machine.target(f"sys/bus/pci/devices/{address}/driver")


def change(machine, address, driver):
    """The new driver."""
    former = driver_of(machine, address)
    override = (machine.read(override_file(address)) or "").replace("(null)", "")
    try:
        for file, text in steps(address, former, driver):
            machine.write(file, text)
        now = driver_of(machine, address)
        if now is None or now == former or driver not in (None, now):
            raise Failure(f"{driver or 'the kernel'} did not take it: a driver that supports it "
                          "expected, dmesg may tell more")
        return now
    except (OSError, Failure) as error:
        raise Failure(f"{address}: {error}; "
                      f"{put_back(machine, address, former, override)}") from None


def put_back(machine, address, former, override):
    """Returns whether that succeeded."""
    try:
        now = driver_of(machine, address)
        if now != former:
            undo = steps(address, now, former)
            for file, text in undo if former else undo[:-1]:
                machine.write(file, text)
        machine.write(override_file(address), override)
    except OSError as error:
        return f"its driver {former} could not be put back: {error}"
    now = driver_of(machine, address)
    if now != former:
        return f"{former} did not take it back, its driver is {now or 'none'}"
    return f"its driver is {now or 'none'}, as before"
