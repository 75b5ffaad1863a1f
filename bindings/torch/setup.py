"""Builds the extension against the installed libsluice; see pyproject.toml for the rest."""
import glob
import os
import subprocess

import setuptools
from torch.utils import cpp_extension

CHECKOUT = os.path.abspath(os.path.join("..", ".."))


def flags(what):
    return subprocess.run(["pkg-config", what, "sluice"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout.split()


setuptools.setup(
    ext_modules=[cpp_extension.CppExtension(
        "sluice_torch._backend", sorted(glob.glob(os.path.join("csrc", "*.cpp"))),
        include_dirs=[CHECKOUT],
        extra_compile_args=["-std=c++20", "-fvisibility=hidden", *flags("--cflags")],
        extra_link_args=flags("--libs"))],
    cmdclass={"build_ext": cpp_extension.BuildExtension})
