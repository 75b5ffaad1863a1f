"""What --version prints of the tools in Python, as the programs in C++ do."""
import argparse
import os
import re
import subprocess

try:
    import built  # made by the build, and installed beside this file
except ImportError:
    built = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def of_checkout():
    """The version and the build: what the build would ask now."""
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
        version = re.search(r"version: '(.*)'", file.read())[1]
    try:
        build = subprocess.run([os.path.join(ROOT, "scripts/lib/build-id")], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return version, version
    return version, build.stdout.strip()


class ShowVersion(argparse.Action):
    """For `action=` of argparse."""

    def __init__(self, option_strings, dest, **more):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS,
                         help="print the version and the build, and exit", **more)

    def __call__(self, parser, *_):
        version, build = (built.VERSION, built.BUILD) if built else of_checkout()
        print(f"{parser.prog} {version} (build {build})")
        parser.exit()
