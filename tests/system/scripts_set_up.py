"""scripts/setup and scripts/test install the right packages, and build the tree to which they
belong."""
import os
import re
import shutil
import subprocess

import harness

# In place of the real programs: no package is installed, and requested packages are printed.
TOOLS = {"dpkg-query": "exit 1", "apt-get": 'echo "asked: $*"', "meson": "exit 0",
         "ninja": "exit 0"}
PROJECT = """project('copied', 'c')
place = '-DPLACE="@0@"'.format(meson.project_source_root())
executable('where', 'where.c', c_args: place)
"""
PROGRAM = """#include <stdio.h>
int main(void) { puts(PLACE); }
"""
BUILD = """source scripts/lib/common.sh
source scripts/lib/build.sh
installed_packages=()
build_tree build gcc ""
"""


class Setup(harness.SystemTest):
    def tree(self, name):
        """A directory with only a copy of scripts/."""
        path = self.directory(name)
        shutil.copytree(os.path.join(harness.ROOT, "scripts"), os.path.join(path, "scripts"))
        return path

    def packages_asked_for(self, *flags, script="setup"):
        tree, tools = self.tree("_".join((script, *flags))), self.directory("tools")
        os.makedirs(tools, exist_ok=True)
        for name, body in TOOLS.items():
            with open(os.path.join(tools, name), "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\n{body}\n")
            os.chmod(file.name, 0o755)
        done = subprocess.run(
            [os.path.join(tree, "scripts", script), *flags], text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": tools + ":" + os.environ["PATH"]})
        log = os.path.join(tree, "build", "install.log")
        said = done.stdout
        if os.path.exists(log):
            with open(log, encoding="utf-8") as file:
                said += file.read()
        asked = re.search(r"(?:asked: install|apt-get install)(.*)", said)
        self.assertTrue(asked, said)
        return set(asked.group(1).split())

    def test_pytorch_alone_needs_nothing_of_the_benchmarks(self):
        plain, torch = self.packages_asked_for(), self.packages_asked_for("--torch")
        self.assertLessEqual({"libdpdk-dev", "python3-numpy"}, plain)  # README.md's examples
        self.assertNotIn("python3-torch", plain)
        self.assertLessEqual(plain | {"python3-torch", "libtorch-dev", "pybind11-dev"}, torch)
        self.assertFalse(torch & {"dpdk-dev", "python3-matplotlib", "libbenchmark-dev"})
        self.assertLess(torch, self.packages_asked_for("--bench"))

    def test_the_quick_level_needs_what_setup_needs(self):
        everything = self.packages_asked_for("--all", script="test")
        self.assertEqual(self.packages_asked_for(script="test"), self.packages_asked_for())
        self.assertLessEqual({"clang", "gfortran", "openmpi-bin", "python3-torch"}, everything)

    def test_a_flag_that_is_none(self):
        done = subprocess.run([os.path.join(self.tree("t"), "scripts", "setup"), "--touch"],
                              text=True, check=False, stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--torch", done.stdout)

    def test_a_copied_tree_is_built_where_it_is(self):
        """The build directory is copied, too, and its files have the paths of the original."""
        first, copy = self.tree("first"), self.directory("copy")
        for name, text in (("meson.build", PROJECT), ("where.c", PROGRAM)):
            with open(os.path.join(first, name), "w", encoding="ascii") as file:
                file.write(text)
        subprocess.run(["bash", "-c", BUILD], cwd=first, check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(first, copy, symlinks=True)
        subprocess.run(["bash", "-c", BUILD], cwd=copy, check=True, stdout=subprocess.DEVNULL)
        for tree in (first, copy):
            said = subprocess.run([os.path.join(tree, "build", "where")], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
            self.assertEqual(said.strip(), os.path.realpath(tree))


if __name__ == "__main__":
    harness.main()
