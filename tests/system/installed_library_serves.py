"""What `meson install` puts down is enough to build programs in C and C++ and to run them, and
libsluice.so exports what its headers declare and nothing else."""
import glob
import os
import re
import subprocess

import harness

EXAMPLE = os.path.join(harness.ROOT, "examples", "first_program")
SAYS = r"the ranks' sum is 6; this one sent \d+ bytes of 4000000"
C_FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
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
        for tool in ("sluice-aggregator", "sluice-perf", "sluice-pktgen"):
            path, = glob.glob(os.path.join(self.root, "**", "bin", tool), recursive=True)
            self.assertIn("--help", output_of(path, "--help"))

    def test_python_package_is_installed(self):
        module, = glob.glob(os.path.join(self.root, "**", "sluice", "__init__.py"), recursive=True)
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(module), "py.typed")))
        said = output_of(harness.PYTHON_WITH_NUMPY, "-B", "-c",
                         "import sluice; print(sluice.__file__, sluice.__version__)",
                         PYTHONPATH=os.path.dirname(os.path.dirname(module)),
                         SLUICE_LIBRARY=os.path.realpath(self.library)).split()
        with open(os.path.join(harness.ROOT, "bindings", "python", "pyproject.toml"),
                  encoding="utf-8") as file:
            version = re.search(r'version = "(.*)"', file.read()).group(1)
        self.assertEqual(said, [module, version])

    def test_headers_stand_alone(self):
        headers = glob.glob(os.path.join(self.root, "**", "include", "sluice", "*"), recursive=True)
        self.assertEqual(sorted(os.path.basename(h) for h in headers),
                         ["error.hpp", "sluice.h", "sluice.hpp", "statistics.hpp", "types.hpp"])
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
        public = re.compile(r"sluice_\w+|SLUICE_0"
                            r"|sluice::(ContextOptions|JobOptions)::(from_environment|has|set)\(.*"
                            r"|sluice::(Work|Context|Communicator)::~?\w+[=(].*"
                            r"|sluice::(allocate|deallocate|name|parse_\w+)\(.*"
                            r"|(typeinfo|typeinfo name|vtable) for sluice::Error")
        self.assertEqual([n for n in self.exported() if not public.fullmatch(n)], [])
        self.assertFalse([n for n in self.exported() if "Impl" in n or "std::shared_ptr" in n])


if __name__ == "__main__":
    harness.main()
