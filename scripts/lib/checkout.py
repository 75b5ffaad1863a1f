"""Where things are: this checkout, a build directory with its programs, and Debian's Python."""
import functools
import importlib.util
import os
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
LOCAL_CLUSTER = os.path.join(ROOT, "scripts", "local-cluster")
DEBIAN_PYTHON = "/usr/bin/python3"  # whose modules Debian's packages are
# The current Python if it has NumPy, otherwise Debian's, for which python3-numpy is.
PYTHON_WITH_NUMPY = sys.executable if importlib.util.find_spec("numpy") else DEBIAN_PYTHON
build = None  # the build directory in use, an absolute path


def use_build(directory):
    """Uses the programs of this build directory from now on."""
    global build
    build = os.path.abspath(directory)


def add_build_option(parser):
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), metavar="DIR",
                        help="build directory (default: build/ of this checkout)")


def program(name):
    """The path of a program of the build in use."""
    path = find_program(build, name)
    if path is None:
        raise FileNotFoundError(f"no {name} below {build}")
    return path


def find_program(directory, name):
    """A path as it is; a name below `directory` (the topmost of several), else in PATH; else
    None."""
    if "/" in name:
        return os.path.abspath(name) if is_program(name) else None
    for place, below, files in os.walk(directory):
        below[:] = sorted(d for d in below if not d.endswith(".p") and not d.startswith("meson-"))
        if name in files and is_program(os.path.join(place, name)):
            return os.path.join(place, name)
    return shutil.which(name)


def is_program(path):
    return os.path.isfile(path) and os.access(path, os.X_OK)


# The directory that has `sluice_contrib`.
TORCH_CONTRIB = os.path.join(ROOT, "contrib", "torch")


def torch_package():
    """The directory in which the build in use has `sluice_torch`."""
    return os.path.join(build, "bindings", "torch")


@functools.cache
def torch_version():
    """The version of Debian's Python; empty if it has none."""
    version = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([DEBIAN_PYTHON, "-c", version], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=False, text=True).stdout.strip()


def torchrun_works():
    """Debian 13's does not: it requires libuv, without which PyTorch is built there."""
    listens = "import torch.distributed as d; d.TCPStore('localhost', 0, 1, True)"
    return subprocess.run([DEBIAN_PYTHON, "-c", listens], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def mpi_library():
    """The library of the build in use that is preloaded into MPI programs."""
    return os.path.join(build, "bindings", "mpi", "libsluice-mpi.so")


def python_environment():
    """With it, `import sluice` takes this checkout's package and the build's library, and
    `import sluice_torch` the build's package, where there is one."""
    paths = [os.path.join(ROOT, "bindings", "python"), torch_package(),
             os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SLUICE_LIBRARY": os.path.join(build, "bindings", "c", "libsluice.so.0")}
