"""A build whose aggregator adds contributions in the order in which they come; sums in rank
order are compared with it. It is made of a copy of the sources, with the mutation by which the
simulator is tested. It is in the build directory."""
import os
import pathlib
import shutil

import checkout
import patches
import programs

PATCH = "first-come-order.patch"


def not_copied(directory, names):
    """Build directories, and the files that git and Python make."""
    at_root = os.path.samefile(directory, checkout.ROOT)
    return [name for name in names if name in (".git", "__pycache__")
            or at_root and name.startswith("build")]


def make():
    """The build directory; it is built again if the sources are newer."""
    place = os.path.join(checkout.build, "arrival-order")
    source, build = os.path.join(place, "source"), os.path.join(place, "build")
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(checkout.ROOT, source, ignore=not_copied)
    patches.apply(patches.DIRECTORY / PATCH, pathlib.Path(source))
    if not os.path.exists(os.path.join(build, "build.ninja")):
        programs.run("meson", "setup", build, source, "-Dtests=false")
    programs.run("ninja", "-C", build, "aggregator/sluice-aggregator")
    return build
