"""What pip installs: `wheel.py BUILD OUT` packs a wheel of `sluice` and an sdist of `sluice_torch`
from a build directory; `wheel.py --check WHEEL` tells whether a wheel keeps the rules of manylinux.

As auditwheel does, every library that a system need not have comes along, under a name that no
other one has, and finds the others beside itself ($ORIGIN). DPDK loads its drivers from a directory
of the system, which may hold those of another DPDK: here the library and the programs need them as
libraries. Because DPDK's own library is not found under its usual name, it looks in no directory.
"""
import argparse
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True

import checkout  # noqa: E402

SONAME = "libsluice.so.0"
PROGRAMS = ("sluice-aggregator", "sluice-perf")
# Workers of one machine, and interfaces of the kernel. NICs of their own take an operator, and
# Debian's packages; AF_XDP takes files of libxdp at places of their own.
DRIVERS = ("mempool_ring", "net_af_packet", "net_ring", "net_vhost", "net_virtio")
# Libraries of every system on which the wheel's name permits it (PEP 600).
SYSTEM = re.compile(r"(ld-linux-x86-64\.so\.2|lib(c|m|dl|rt|pthread)\.so\.\d+|libgcc_s\.so\.1"
                    r"|libstdc\+\+\.so\.6)")
# The newest versions of symbols that a platform tag admits: of glibc, as the tag says, and of GCC's
# libraries, as auditwheel's policies have them for it.
GCC_OF = {(2, 34): "11", (2, 35): "12", (2, 36): "12", (2, 38): "13", (2, 39): "14", (2, 41): "14"}
NEWEST = {"11": {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)},
          "12": {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
          "13": {"GLIBCXX": (3, 4, 32), "CXXABI": (1, 3, 14), "GCC": (13, 0, 0)},
          "14": {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)}}
DRIVER_NAMES = {"librte_" + name for name in DRIVERS}
NEEDED = re.compile(r"^\s*NEEDED\s+(\S+)$", re.M)
SEARCHED = re.compile(r"^\s*(?:RPATH|RUNPATH)\s+(\S+)$", re.M)
VERSION = re.compile(r"\b(GLIBCXX|CXXABI|GLIBC|GCC)_([\d.]+)$", re.M)


class Refused(Exception):
    """A rule of manylinux is broken, or what is to be packed is not there."""


def output_of(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)} ended with {done.returncode}: {done.stdout.strip()}")
    return done.stdout


# ---------------------------------------------------------------------------------------- the rules
def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def platform_of(package):
    """The oldest platform tag whose rules all libraries and programs of the package keep."""
    objects = [path for path in glob.glob(os.path.join(package, "**"), recursive=True)
               if os.path.isfile(path) and is_elf(path)]
    if not objects:
        raise Refused(f"{package} has no library")
    newest = {}
    for path in objects:
        headers = output_of("objdump", "--private-headers", path)
        check_needs(path, headers)
        for kind, version in VERSION.findall(headers):
            newest[kind] = max(newest.get(kind, ()), tuple(map(int, version.split("."))))
    for glibc, gcc in GCC_OF.items():
        limits = {"GLIBC": glibc, **NEWEST[gcc]}
        if all(version <= limits[kind] for kind, version in newest.items()):
            return f"manylinux_{glibc[0]}_{glibc[1]}_x86_64"
    raise Refused(f"{package} needs {newest}, which no platform of {list(GCC_OF)} has")


def check_needs(path, headers):
    """Checks that it finds what it needs, and looks nowhere outside of the package."""
    places = [place for found in SEARCHED.findall(headers) for place in found.split(":")]
    outside = [place for place in places if not place.startswith("$ORIGIN")]
    if outside:
        raise Refused(f"{path} looks for libraries in {outside}")
    own = [place.replace("$ORIGIN", os.path.dirname(path)) for place in places]
    lost = [name for name in NEEDED.findall(headers) if not SYSTEM.fullmatch(name)
            and not any(os.path.exists(os.path.join(place, name)) for place in own)]
    if lost:
        raise Refused(f"{path} needs {lost}, which are neither in the wheel nor on every system")


def check(wheel):
    """Checks the wheel. Returns its platform tag, or raises Refused."""
    named = re.search(r"-py3-none-(\w+)\.whl$", wheel)
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(place)
        fits = platform_of(place)
    if named is None or named[1] != fits:
        raise Refused(f"{wheel}: its platform is {fits}")
    return fits


# ---------------------------------------------------------------------------------------- the wheel
def driver_paths():
    places = glob.glob("/usr/lib/*/dpdk/pmds-*")
    if len(places) != 1:
        raise Refused(f"DPDK's drivers: one directory expected, and found are {places}")
    return [os.path.realpath(os.path.join(places[0], f"librte_{name}.so")) for name in DRIVERS]


def libraries_of(*paths):
    """The libraries that they need and that a system may lack: paths by name."""
    found = {}
    for path in paths:
        for name, place in re.findall(r"^\s*(\S+) => (\S.*?)(?: \(0x\w+\))?$",
                                      output_of("ldd", path), re.M):
            if place == "not found":
                raise Refused(f"{path} needs {name}, which is not found")
            if not SYSTEM.fullmatch(name):
                found[name] = os.path.realpath(place)
    return found


def own_name(name, path):
    """A name that no other library has: with a hash of its contents in it."""
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()[:8]
    stem, suffix = name.split(".so", 1)
    return f"{stem}-{digest}.so{suffix}"


def put(path, to):
    shutil.copyfile(path, to)
    os.chmod(to, 0o755)
    output_of("strip", "--strip-unneeded", to)


def bundle(package, build):
    """Puts the library, the programs and all that they need into the package."""
    lib, programs = os.path.join(package, "lib"), os.path.join(package, "bin")
    licenses = os.path.join(lib, "licenses")
    for directory in (lib, programs, licenses):
        os.makedirs(directory)
    put(os.path.join(build, "bindings", "c", SONAME), os.path.join(lib, SONAME))
    for name in PROGRAMS:
        path = checkout.find_program(build, name)
        put(path, os.path.join(programs, name))
    roots = [os.path.join(lib, SONAME), *(os.path.join(programs, name) for name in PROGRAMS)]
    drivers = driver_paths()
    found = {**libraries_of(*roots, *drivers),
             **{re.sub(r"(\.so\.\d+)\.\d+$", r"\1", os.path.basename(path)): path
                for path in drivers}}
    names = {name: own_name(name, path) for name, path in found.items()}
    for name, path in found.items():
        put(path, os.path.join(lib, names[name]))
        keep_license(path, licenses)
    for path in [*roots, *(os.path.join(lib, name) for name in names.values())]:
        lead(path, names, needs_drivers=path in roots)


def lead(path, names, needs_drivers):
    """Lets it find the others beside itself, by their new names. patchelf 0.14 writes wrong
    names where one call makes changes of several kinds."""
    needed = NEEDED.findall(output_of("objdump", "--private-headers", path))
    renamed = [word for name in needed if name in names
               for word in ("--replace-needed", name, names[name])]
    if renamed:
        output_of("patchelf", *renamed, path)
    if needs_drivers:
        added = [word for name, own in names.items() if name.split(".")[0] in DRIVER_NAMES
                 for word in ("--add-needed", own)]
        output_of("patchelf", *added, path)
    else:
        output_of("patchelf", "--set-soname", os.path.basename(path), path)
    place = "$ORIGIN" if os.path.basename(os.path.dirname(path)) == "lib" else "$ORIGIN/../lib"
    output_of("patchelf", "--set-rpath", place, path)


def keep_license(path, licenses):
    """Its license in Debian's files, which may have /lib for /usr/lib."""
    package = output_of("dpkg-query", "--search", "*/" + os.path.basename(path)).split(":")[0]
    shutil.copyfile(f"/usr/share/doc/{package}/copyright",
                    os.path.join(licenses, package + ".txt"))


def headers():
    """The library's headers, for programs and extensions that are built with the wheel."""
    for part in ("common", "worker", "bindings/c"):
        yield from glob.glob(os.path.join(checkout.ROOT, part, "include", "sluice", "*"))


def make_wheel(stage, build, out):
    shutil.copytree(os.path.join(checkout.ROOT, "bindings", "python"), stage,
                    ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    package = os.path.join(stage, "sluice")
    bundle(package, build)
    os.makedirs(os.path.join(package, "include", "sluice"))
    for path in headers():
        shutil.copy(path, os.path.join(package, "include", "sluice"))
    for name in PROGRAMS:
        shutil.copyfile(os.path.join(stage, "program.py"), os.path.join(stage, name))
    settings = {"--build-option": ["--plat-name=" + platform_of(package)]}
    return run_setuptools(stage, f"build_wheel({out!r}, {settings!r})")


def run_setuptools(stage, call):
    """Builds in the stage, as pip would. Returns the path of the result."""
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as m; print('made', m.{call})"],
        cwd=stage, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode != 0:
        raise Refused(f"setuptools ended with {done.returncode}")
    return re.search(r"^made (\S+)$", done.stdout, re.M)[1]


# ---------------------------------------------------------------------------------------- the sdist
def make_sdist(stage, out):
    """Of the package in bindings/torch, with those files of this tree that its sources include."""
    source = os.path.join("bindings", "torch")
    shutil.copytree(os.path.join(checkout.ROOT, source), stage, ignore=shutil.ignore_patterns(
        "__pycache__", "build", "csrc", "*.egg-info", "meson.build", "*-inspect.in"))
    unread = [os.path.relpath(path, checkout.ROOT) for path in
              glob.glob(os.path.join(checkout.ROOT, source, "csrc", "*"))]
    done = set()
    while unread:
        path = unread.pop()
        if path in done or not os.path.exists(os.path.join(checkout.ROOT, path)):
            continue  # PyTorch's are not here
        done.add(path)
        to = os.path.join(stage, "tree", path)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(os.path.join(checkout.ROOT, path), to)
        with open(to, encoding="utf-8") as file:
            unread += re.findall(r'^#include "([^"]+)"', file.read(), re.M)
    return run_setuptools(stage, f"build_sdist({out!r})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", metavar="WHEEL", help="check this wheel, and print its platform")
    parser.add_argument("build", nargs="?")
    parser.add_argument("out", nargs="?")
    options = parser.parse_args()
    try:
        if options.check:
            print(check(options.check))
            return
        if options.out is None:
            parser.error("BUILD and OUT expected")
        out = os.path.abspath(options.out)
        with tempfile.TemporaryDirectory() as place:
            wheel = make_wheel(os.path.join(place, "sluice"), os.path.abspath(options.build), out)
            check(os.path.join(out, wheel))
            make_sdist(os.path.join(place, "torch"), out)
    except Refused as refused:
        sys.exit(f"wheel: {refused}")


if __name__ == "__main__":
    main()
