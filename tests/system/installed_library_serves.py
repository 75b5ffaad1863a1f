"""The files that `meson install` installs are enough to build and run programs in C and C++, and
libsluice.so exports what its headers declare and nothing else."""
import glob
import json
import os
import re
import shutil
import subprocess
import unittest

import documents
import harness

EXAMPLE = os.path.join(harness.ROOT, "examples", "first_program")
PROGRAMS = ("sluice-aggregator", "sluice-perf", "sluice-pktgen")
TOOLS = ("sluice-ctl", "sluice-nic", "sluice-top")
SAYS = r"the ranks' sum is 6; this one sent \d+ bytes of 4000000"
# -Wpadded: a new member in former padding would be read from memory that an older program did not
# set.
C_FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wpadded", "-Werror"]
CPP_FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def output_of(*command, **settings):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, **settings}).stdout


class Installed(harness.SystemTest):
    def setUp(self):
        self.root = self.directory("root")
        output_of("meson", "install", "-C", harness.build, "--no-rebuild", DESTDIR=self.root)
        pc_file, = glob.glob(os.path.join(self.root, "**", "sluice.pc"), recursive=True)
        self.library, = glob.glob(os.path.join(self.root, "**", "libsluice.so"), recursive=True)
        self.found = {"PKG_CONFIG_PATH": os.path.dirname(pc_file),
                      "PKG_CONFIG_SYSROOT_DIR": self.root}

    def flags(self, *what):
        return output_of("pkg-config", *what, "sluice", **self.found).split()

    def run_on_three_ranks(self, path):
        daemon = self.start_daemon()
        job = self.start_job(3, daemon, path, LD_LIBRARY_PATH=os.path.dirname(self.library))
        self.all_end_well(job)
        self.assertRegex(job[0].out, SAYS)

    def test_program_in_cpp(self):
        path = self.directory("program")
        flags = self.flags("--cflags", "--libs")
        output_of("g++", *CPP_FLAGS, EXAMPLE + ".cpp", "-o", path, *flags)
        self.run_on_three_ranks(path)

    def test_program_in_c(self):
        path = self.directory("program")
        flags = self.flags("--cflags", "--libs")
        output_of("gcc", *C_FLAGS, EXAMPLE + ".c", "-o", path, *flags)
        self.run_on_three_ranks(path)

    def test_daemon_and_tools_are_installed(self):
        built = re.fullmatch(r"sluice-perf (.*)\n",
                             output_of(harness.program("sluice-perf"), "--version"))[1]
        for tool in PROGRAMS + TOOLS:
            path, = glob.glob(os.path.join(self.root, "**", "bin", tool), recursive=True)
            self.assertIn("--help", output_of(path, "--help"))
            self.assertEqual(output_of(path, "--version"), f"{tool} {built}\n")

    def test_manual_pages_and_completion_are_installed(self):
        tools = PROGRAMS + TOOLS
        for path in ("man/man8/sluice-aggregator.8", "man/man5/sluice-aggregator.conf.5",
                     "man/man1/sluice-perf.1", "man/man1/sluice-pktgen.1",
                     "man/man8/sluice-ctl.8", "man/man8/sluice-nic.8", "man/man1/sluice-top.1",
                     *("bash-completion/completions/" + tool for tool in tools),
                     *("zsh/site-functions/_" + tool for tool in tools)):
            found = glob.glob(os.path.join(self.root, "**", "share", path), recursive=True)
            self.assertEqual(len(found), 1, path)

    def as_if_installed(self, python):
        """An environment in which this Python finds its modules below the root."""
        looks = output_of(python, "-c", "import sys; print(*sys.path[1:], sep='\\n')").splitlines()
        return {"PYTHONPATH": ":".join(self.root + path for path in looks),
                "SLUICE_LIBRARY": os.path.realpath(self.library),
                "LD_LIBRARY_PATH": os.path.dirname(self.library)}

    def test_python_package_is_found(self):
        said = output_of(harness.DEBIAN_PYTHON, "-B", "-c",
                         "import sluice as s; print(s.__file__, s.__version__, s.__build__)",
                         **self.as_if_installed(harness.DEBIAN_PYTHON)).split()
        with open(os.path.join(harness.ROOT, "bindings", "python", "pyproject.toml"),
                  encoding="utf-8") as file:
            version = re.search(r'version = "(.*)"', file.read()).group(1)
        self.assertTrue(said[0].startswith(self.root + os.sep), said)
        self.assertEqual(said[1], version)
        self.assertIn(f"(build {said[2]})", output_of(harness.program("sluice-perf"), "--version"))
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(said[0]), "py.typed")))

    def test_package_for_pytorch_is_found(self):
        if not glob.glob(os.path.join(self.root, "**", "_backend*.so"), recursive=True):
            self.skipTest("this build has no PyTorch")
        environment = self.as_if_installed(harness.DEBIAN_PYTHON)
        said = output_of(harness.DEBIAN_PYTHON, "-B", "-c",
                         "import sluice_torch; print(sluice_torch.__file__)", **environment)
        self.assertTrue(said.startswith(self.root + os.sep), said)
        inspect, = glob.glob(os.path.join(self.root, "**", "bin", "sluice-inspect"), recursive=True)
        self.assertIn("Recorder.save", output_of(inspect, "--help", **environment))
        said = output_of(harness.program("sluice-perf"), "--version")
        self.assertEqual(output_of(inspect, "--version", **environment),
                         said.replace("sluice-perf", "sluice-inspect"))
        for path in ("man/man1/sluice-inspect.1", "bash-completion/completions/sluice-inspect",
                     "zsh/site-functions/_sluice-inspect"):
            found = glob.glob(os.path.join(self.root, "**", "share", path), recursive=True)
            self.assertEqual(len(found), 1, path)

    def test_packages_are_found_with_another_python_first_in_path(self):
        other, build = self.directory("other"), self.directory("build")
        output_of(harness.DEBIAN_PYTHON, "-m", "venv", "--without-pip", other)
        path = os.path.join(other, "bin") + ":" + os.environ["PATH"]
        output_of("meson", "setup", "-Dtests=false", build, harness.ROOT, PATH=path)
        placed = json.loads(output_of("meson", "introspect", "--installed", build)).values()
        show = "import sys; print(*sys.path, sep='\\n')"
        looks = output_of(harness.DEBIAN_PYTHON, "-c", show).split()
        packages = {os.path.dirname(place) for place in placed if place.endswith("/__init__.py")
                    and "/share/sluice/" not in place}  # where sluice-nic finds its own
        self.assertIn("sluice", map(os.path.basename, packages))
        self.assertEqual([p for p in packages if os.path.dirname(p) not in looks], [])

    def test_headers_stand_alone(self):
        headers = glob.glob(os.path.join(self.root, "**", "include", "sluice", "*"), recursive=True)
        self.assertEqual(sorted(os.path.basename(h) for h in headers),
                         ["compress.hpp", "device.hpp", "error.hpp", "global_top_k.hpp",
                          "memory.hpp", "sluice.h", "sluice.hpp", "statistics.hpp", "types.hpp"])
        for header in headers:
            include = f"#include <sluice/{os.path.basename(header)}>\n"
            for language in ["c++", "c"] if header.endswith(".h") else ["c++"]:
                with self.subTest(header=header, language=language):
                    flags = CPP_FLAGS if language == "c++" else C_FLAGS
                    subprocess.run(["gcc", "-x", language, *flags, *self.flags("--cflags"),
                                    "-fsyntax-only", "-"], input=include, text=True, check=True)

    def exported(self):
        lines = output_of("nm", "-DC", "--defined-only", self.library).splitlines()
        return {line.split(" ", 2)[2].split("@@")[0] for line in lines}

    def versions(self):
        """The version of each exported name."""
        lines = output_of("nm", "-D", "--defined-only", self.library).splitlines()
        names = (line.split()[-1].split("@@") for line in lines)
        return {name[0]: name[1] for name in names if not name[0].startswith("SLUICE_")}

    def test_c_has_the_sonames_version_and_cpp_the_releases(self):
        release = output_of("pkg-config", "--modversion", "sluice", **self.found).strip()
        for name, version in self.versions().items():
            self.assertEqual(version, "SLUICE_0" if name.startswith("sluice_")
                             else f"SLUICE_CPP_{release}", name)

    def test_library_of_another_release_runs_programs_in_c_alone(self):
        release = output_of("pkg-config", "--modversion", "sluice", **self.found).strip()
        other = self.directory("other")
        os.makedirs(other)
        with open(self.library, "rb") as ours, \
                open(os.path.join(other, "libsluice.so.0"), "wb") as theirs:
            name = f"SLUICE_CPP_{release}".encode() + b"\0"
            theirs.write(ours.read().replace(name, name[:-2] + b"~\0"))
        said = {}
        for language, compiler in (("c", "gcc"), ("cpp", "g++")):
            path = self.directory(language)
            output_of(compiler, f"{EXAMPLE}.{language}", "-o", path, "-std=c++20" if
                      language == "cpp" else "-std=c99", *self.flags("--cflags", "--libs"))
            said[language] = subprocess.run(
                [path], text=True,
                env={**os.environ, "LD_LIBRARY_PATH": other, "SLUICE_HOST_LEVEL": "0"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
        self.assertIn(f"version `SLUICE_CPP_{release}' not found", said["cpp"])
        self.assertIn("SLUICE_AGGREGATORS", said["c"])  # it runs, and reports missing settings

    def test_every_declared_c_function_is_exported(self):
        header = os.path.join(harness.ROOT, "bindings", "c", "include", "sluice", "sluice.h")
        with open(header, encoding="utf-8") as file:
            code = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
        declared = set(re.findall(r"\b(sluice_\w+)\(", code))
        self.assertGreater(len(declared), 25)
        self.assertEqual(declared, {name for name in self.exported() if name.startswith("sluice_")})

    def test_every_declared_cpp_function_is_exported(self):
        source = os.path.join(harness.ROOT, "tests", "system", "installed", "every_function.cpp")
        path = self.directory("program")
        output_of("g++", *CPP_FLAGS, source, "-o", path, *self.flags("--cflags", "--libs"))
        subprocess.run([path], check=True,
                       env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(self.library)})

    def test_nothing_else_is_exported(self):
        public = re.compile(r"sluice_\w+|SLUICE_0|SLUICE_CPP_[\d.]+"
                            r"|sluice::(ContextOptions|JobOptions)::(from_environment|has|set)\(.*"
                            r"|sluice::(Work|SparseWork|SplitWork|Context|Communicator|JobId"
                            r"|CompletionQueue)::~?\w+[=(].*"
                            r"|sluice::(ElementTopK|GlobalTopK|UnionTarget)::~?\w+\(.*"
                            r"|sluice::(share_of|compress_\w+)\(.*"
                            r"|sluice::(allocate|deallocate|is_allocated|name|parse_\w+)\(.*"
                            r"|(typeinfo|typeinfo name|vtable) for sluice::Error")
        self.assertEqual([n for n in self.exported() if not public.fullmatch(n)], [])
        self.assertFalse([n for n in self.exported() if "Impl" in n or "std::shared_ptr" in n])


@unittest.skipUnless(os.geteuid() == 0, "needs root: a /usr/local of its own")
class InstalledInPlace(harness.SystemTest):
    """The commands in the documents, as they are written there, in a mount namespace in which
    /usr/local is empty and /etc, where the loader's cache is, a copy."""

    def typed(self, *lines):
        """Runs the lines in a new directory with program.cpp in it."""
        place = self.directory("place")
        os.makedirs(place)
        shutil.copy(EXAMPLE + ".cpp", os.path.join(place, "program.cpp"))
        copy = self.directory("etc")
        private = ["mount -t tmpfs none /usr/local", f"cp -a /etc {copy}",
                   f"mount --bind {copy} /etc", f"cd {place}"]
        # The build is there; packages that are not installed may be missing.
        script = "\n".join([*private, *lines]).replace(
            "meson install -C build", f"meson install -C {harness.build} --no-rebuild --quiet")
        unset = ("LD_LIBRARY_PATH", "PYTHONPATH", "PKG_CONFIG_PATH", "SLUICE_LIBRARY", "DESTDIR")
        return subprocess.run(
            ["unshare", "--mount", "bash", "-euxc", script], text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name not in unset}).stdout

    def on_ranks(self, program):
        return (f"{harness.LOCAL_CLUSTER} --build {harness.build} --workers 3"
                f" --only-rank 0 -- {program}")

    def test_program_that_the_readme_builds_runs(self):
        for first in ("meson install", "DESTDIR=$PWD/stage"):
            with self.subTest(first), harness.Stage() as stage:
                self.place = stage.place
                said = self.typed(*documents.commands("README.md", first), self.on_ranks("./a.out"))
                self.assertRegex(said, SAYS)

    def test_packages_are_found_in_place(self):
        python = harness.DEBIAN_PYTHON + " -B -c"
        said = self.typed(*documents.commands("README.md", "meson install")[:1], "cd /",
                          f"{python} 'import sluice; print(sluice.__file__)'",
                          f"{python} 'import sluice_torch' && sluice-inspect --help")
        self.assertRegex(said, r"\n/usr/local/\S+/sluice/__init__\.py\n")
        if "sluice_torch" in os.listdir(harness.torch_package()):
            self.assertIn("Recorder.save", said)


if __name__ == "__main__":
    harness.main()
