"""Builds the extension against this Python's PyTorch and its Sluice; see pyproject.toml for the
rest."""
import glob
import importlib.util
import os
import subprocess
import sys

import setuptools
from setuptools.command.build_ext import build_ext

SONAME = "libsluice.so.0"
# Of the checkout, or of an sdist, which has those of its files that are included.
TREE = os.path.abspath("tree" if os.path.isdir("tree") else os.path.join("..", ".."))
SOURCES = os.path.join("bindings", "torch", "csrc", "*.cpp")
UNITY = os.path.join("build", "backend.cpp")
KNOWN = "1.13, and 2.6 or later below 3"


def is_known(version):
    """Whether the extension was built and tried with a PyTorch like that."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    return numbers == (1, 13) or (2, 6) <= numbers < (3, 0)


def check_torch():
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"sluice_torch: {sys.executable} has no PyTorch; install it first, and then this"
                 " with pip install --no-build-isolation")
    import torch
    if not is_known(torch.__version__):
        sys.exit(f"sluice_torch: PyTorch {torch.__version__} is not known; {KNOWN} expected")
    if not torch._C._GLIBCXX_USE_CXX11_ABI:
        sys.exit(f"sluice_torch: PyTorch {torch.__version__} here was built with the C++ library's"
                 " binary interface of before C++11, which Sluice's library does not have; one of"
                 " Debian, or of PyPI from 2.6 on, expected")


def torch_flags():
    """How to compile and to link for it."""
    include, library, macros = subprocess.run(
        [sys.executable, "facts.py"], check=True, stdout=subprocess.PIPE,
        text=True).stdout.splitlines()[:3]
    return ([f"-isystem{path}" for path in include.split(":")] + macros.split(),
            ["-L" + library, "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"])


def sluice_flags():
    """The same for Sluice's library: of the wheel in this Python, else as pkg-config tells."""
    package = importlib.util.find_spec("sluice")
    for place in package.submodule_search_locations or () if package else ():
        library = os.path.join(place, "lib")
        if os.path.exists(os.path.join(library, SONAME)):  # else libsluice is not in the package
            return (["-I" + os.path.join(place, "include")],
                    ["-L" + library, "-l:" + SONAME, "-Wl,-rpath,$ORIGIN/../sluice/lib"])
    try:
        return tuple(subprocess.run(
            [os.environ.get("PKG_CONFIG", "pkg-config"), what, "sluice"], check=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout.split()
            for what in ("--cflags", "--libs"))
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "output", None) or str(error)
        sys.exit(f"sluice_torch: Sluice's library is not found: {sys.executable} has no wheel of"
                 f" sluice, and pkg-config does not know it ({' '.join(said.split())}); install"
                 " the wheel first, or Sluice itself (meson install, or libsluice-dev), and then"
                 " this with pip install --no-build-isolation")


class BuildBackend(build_ext):
    """As one piece: PyTorch's headers take a compiler half a minute each time."""

    def build_extension(self, extension):
        check_torch()
        compile_torch, link_torch = torch_flags()
        compile_sluice, link_sluice = sluice_flags()
        paths = sorted(glob.glob(os.path.join(TREE, SOURCES)))
        os.makedirs(os.path.dirname(UNITY), exist_ok=True)
        with open(UNITY, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{os.path.relpath(path, TREE)}"\n' for path in paths)
        extension.include_dirs = [TREE]
        extension.extra_compile_args = ["-std=c++20", "-fvisibility=hidden", "-g0",
                                        *compile_torch, *compile_sluice]
        extension.extra_link_args = link_torch + link_sluice
        super().build_extension(extension)


setuptools.setup(
    ext_modules=[setuptools.Extension("sluice_torch._backend", [UNITY], language="c++")],
    cmdclass={"build_ext": BuildBackend})
