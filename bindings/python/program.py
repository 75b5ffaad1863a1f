#!/usr/bin/env python3
"""A program of Sluice's wheel: becomes the one of the same name that lies in the package."""
import importlib.util
import os
import sys

package = importlib.util.find_spec("sluice")  # which is not imported, and so needs no NumPy here
if package is None or not package.submodule_search_locations:
    sys.exit(f"{sys.argv[0]}: {sys.executable} has no package sluice any more: install it again")
name = os.path.basename(sys.argv[0])
path = os.path.join(package.submodule_search_locations[0], "bin", name)
try:
    os.execv(path, [path, *sys.argv[1:]])
except OSError as error:
    sys.exit(f"{sys.argv[0]}: {path}: {error.strerror}")
