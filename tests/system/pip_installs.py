"""The results of scripts/wheel: the wheel has all that it needs on bare Debian 12 and 13, and keeps
the rules of its name; the backend for PyTorch is built from its sdist beside it."""
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import unittest
import zipfile

import debian
import documents
import harness
import wheel

SETTING_UP = 900  # seconds, at most
# NumPy comes from Debian, which has no index for pip.
BARE = "python3-venv,python3-numpy"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root",
               "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
SUM = "the ranks' sum is 10; this one sent"


def run(*command, ok=True, **options):
    """Returns its output on both streams; it must succeed, or must fail."""
    done = subprocess.run(
        command, text=True, check=False, timeout=SETTING_UP, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if (done.returncode == 0) != ok:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


@functools.cache
def make():
    """The wheel and the sdist; once for all cases."""
    out = os.path.join(harness.build, "wheel")
    run(os.path.join(harness.ROOT, "scripts", "wheel"), out)
    return [path for ending in ("whl", "tar.gz") for path in glob.glob(f"{out}/*.{ending}")]


class Made(harness.SystemTest):
    @classmethod
    def setUpClass(cls):
        cls.wheel, cls.sdist = make()

    def venv(self, name):
        """Of Debian's Python, with its packages; the wheel is installed."""
        place = self.directory(name)
        run(harness.DEBIAN_PYTHON, "-m", "venv", "--system-site-packages", place)
        self.pip(place, self.wheel)
        return place

    @staticmethod
    def pip(venv, *what, ok=True):
        return run(os.path.join(venv, "bin", "pip"), "install", *what, ok=ok, env=ENVIRONMENT)


class Rules(Made):
    def changed(self, name, change):
        """A copy of the wheel, unpacked, changed and packed again."""
        place = self.directory("unpacked")
        with zipfile.ZipFile(self.wheel) as file:
            file.extractall(place)
        change(os.path.join(place, "sluice"))
        copy = self.directory(name)
        with zipfile.ZipFile(copy, "w") as file:
            for path in glob.glob(os.path.join(place, "**"), recursive=True):
                file.write(path, os.path.relpath(path, place))
        shutil.rmtree(place)
        return copy

    def test_the_name_tells_the_oldest_glibc(self):
        tag = wheel.check(self.wheel)
        self.assertRegex(tag, r"^manylinux_2_3[4569]_x86_64$")
        older = self.directory("sluice-0.1.0-py3-none-manylinux_2_28_x86_64.whl")
        shutil.copy(self.wheel, older)
        with self.assertRaisesRegex(wheel.Refused, f"its platform is {tag}"):
            wheel.check(older)

    def test_a_library_that_is_missing_is_found(self):
        def lose_one(package):
            os.remove(glob.glob(os.path.join(package, "lib", "librte_net_vhost-*"))[0])

        with self.assertRaisesRegex(wheel.Refused, r"needs \['librte_net_vhost-"):
            wheel.check(self.changed(os.path.basename(self.wheel), lose_one))

    def test_a_search_outside_is_found(self):
        def look_outside(package):
            run("patchelf", "--set-rpath", "/opt/lib", os.path.join(package, "lib", wheel.SONAME))

        with self.assertRaisesRegex(wheel.Refused, r"looks for libraries in \['/opt/lib'\]"):
            wheel.check(self.changed(os.path.basename(self.wheel), look_outside))

    def test_pip_refuses_it_for_an_older_glibc(self):
        place = self.venv("venv")
        said = self.pip(place, "--target", self.directory("target"), "--no-deps", "--platform",
                        "manylinux_2_28_x86_64", "--only-binary=:all:", self.wheel, ok=False)
        self.assertIn("is not a supported wheel on this platform", said)


@unittest.skipUnless(os.geteuid() == 0, "needs root: root directories of other systems")
class BareSystems(Made):
    def make_root(self, codename):
        self.root = self.directory(codename)
        run("mmdebstrap", "--quiet", "--variant=minbase", "--include=" + BARE, codename, self.root,
            debian.mirror())
        here = os.path.join(self.root, "here")
        os.mkdir(here)
        shutil.copy(self.wheel, here)
        shutil.copy(os.path.join(harness.ROOT, "examples", "first_program.py"), here)

    def typed(self, *lines, ok=True):
        mounts = ("cd $0; mount -t proc proc proc; mount -t sysfs -o ro sysfs sys; mount --rbind "
                  "/dev dev; mount -t tmpfs tmpfs tmp; exec chroot . bash -euc \"$1\"")
        return run("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", mounts,
                   self.root, "\n".join(["cd /here", *lines]), ok=ok, env=ENVIRONMENT)

    @staticmethod
    def installing():
        return [line.replace("-m venv", "-m venv --system-site-packages")
                for line in documents.commands("docs/python.md", "python3 -m venv")]

    def serves(self, codename):
        self.make_root(codename)
        first_sum = documents.commands("docs/python.md", "sluice-aggregator")
        said = self.typed(*self.installing(), *first_sum, "kill %1; wait")
        self.assertEqual(said.count(SUM), 4, said)
        self.assertEqual(run("chroot", self.root, "dpkg-query", "--show").count("librte"), 0)
        self.names_a_processor_without("sse4_2")
        said = self.typed("sluice-venv/bin/sluice-perf --version")
        self.assertRegex(said, r"^sluice-perf \S+ \(build \S+\)$")

    def names_a_processor_without(self, flag):
        with open(os.path.join(self.root, "here", "cpuinfo"), "w", encoding="ascii") as file:
            file.write("flags\t\t: fpu sse sse2 ssse3 sse4_1 popcnt\n")
        said = self.typed("mount --bind cpuinfo /proc/cpuinfo",
                          "sluice-venv/bin/python -c 'import sluice'", ok=False)
        self.assertIn(f"the processor lacks {flag}; x86_64 of 2009 or later", said)

    def test_of_debian_12(self):
        """A wheel that was made on Debian 13 needs its glibc."""
        if re.search(r"manylinux_2_3[456]_", self.wheel):
            return self.serves("bookworm")
        self.make_root("bookworm")
        self.assertIn("is not a supported wheel on this platform",
                      self.typed(*self.installing(), ok=False))

    def test_of_debian_13(self):
        self.serves("trixie")


@unittest.skipUnless(subprocess.run([harness.DEBIAN_PYTHON, "-c", "import torch"], check=False,
                                    stderr=subprocess.DEVNULL).returncode == 0, "needs PyTorch")
class Sources(Made):
    def unpacked(self):
        place = self.directory("sdist")
        with tarfile.open(self.sdist) as file:
            file.extractall(place)
        return glob.glob(os.path.join(place, "*"))[0]

    def refusal(self, torch=None, **settings):
        """The error of setup.py, with such a module in place of PyTorch."""
        place = self.directory("modules")
        if torch is not None:
            os.makedirs(place)
            with open(os.path.join(place, "torch.py"), "w", encoding="ascii") as file:
                file.write(torch)
        return run(harness.DEBIAN_PYTHON, "setup.py", "build_ext", ok=False, cwd=self.unpacked(),
                   env={**ENVIRONMENT, "PYTHONPATH": place, **settings})

    def test_it_is_built_beside_the_wheel(self):
        place = self.venv("venv")
        self.pip(place, "--no-deps", "--no-build-isolation", self.sdist)
        said = run(os.path.join(place, "bin", "python"), "-c",
                   "import sluice_torch\nfor line in open('/proc/self/maps'): print(line)")
        self.assertEqual(set(re.findall(r"\S+/libsluice\S*", said)), {os.path.join(
            glob.glob(os.path.join(os.path.realpath(place), "lib", "python3*"))[0],
            "site-packages", "sluice", "lib", wheel.SONAME)})

    def test_a_pytorch_that_is_not_known(self):
        said = self.refusal("__version__ = '3.0.1'")
        self.assertIn("PyTorch 3.0.1 is not known; 1.13, and 2.6 or later below 3 expected", said)

    def test_a_pytorch_of_another_binary_interface(self):
        said = self.refusal("class _C: _GLIBCXX_USE_CXX11_ABI = False\n__version__ = '2.6.0+cpu'")
        self.assertIn("binary interface of before C++11", said)

    def test_without_the_library(self):
        said = self.refusal(PKG_CONFIG_LIBDIR=self.directory("nothing"))
        self.assertIn("Sluice's library is not found", said)
        said = self.refusal(PKG_CONFIG=os.path.join(self.directory("nothing"), "pkg-config"))
        self.assertIn("Sluice's library is not found", said)


if __name__ == "__main__":
    sys.exit(harness.main())
