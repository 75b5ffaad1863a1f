"""A build of a former commit, for comparison with the present one, in the build directory."""
import os
import shutil

import checkout
import programs

BEFORE_REFERENCES = "8daf527"  # the last commit before blocks could go by reference
TARGETS = ["aggregator/sluice-aggregator", "bench/sluice-perf", "bench/sluice-pktgen"]


def make(commit):
    """The build directory, which is made once."""
    place = os.path.join(checkout.build, "former", commit)
    source, build = os.path.join(place, "source"), os.path.join(place, "build")
    if not os.path.exists(source):
        os.makedirs(f"{source}.part", exist_ok=True)
        archive = os.path.join(place, "source.tar")
        programs.run("git", "-C", checkout.ROOT, "archive", "--output", archive, commit)
        programs.run("tar", "-xf", archive, "-C", f"{source}.part")
        os.unlink(archive)
        os.rename(f"{source}.part", source)
    if not os.path.exists(os.path.join(build, "build.ninja")):
        shutil.rmtree(build, ignore_errors=True)
        programs.run("meson", "setup", build, source, "-Dtests=false")
    programs.run("ninja", "-C", build, *TARGETS)
    return build
