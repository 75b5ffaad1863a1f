"""What benchmarks run: the project's own programs, small ones compiled when first needed, and those
of Debian's packages."""
import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys

import checkout

LIBRARY = os.path.dirname(os.path.realpath(__file__))
COMPILERS = {".c": ["mpicc", "-std=gnu17"], ".cpp": ["g++", "-std=c++20", "-pthread"],
             # For a directory; without MPI's old interface for C++, which causes warnings.
             "": ["mpicxx", "-std=c++20", "-DOMPI_SKIP_MPICXX", "-I", checkout.ROOT]}
FLAGS = ["-O3", "-march=native", "-Wall", "-Wextra", "-Werror"]


class Missing(Exception):
    """Something that scripts/setup --bench installs is missing."""

    def __init__(self, what):
        super().__init__(f"{what} is missing; run: scripts/setup --bench")


def built(name, build=None):
    """The path of a program of a build, by default of the one in use."""
    path = checkout.find_program(build or checkout.build, name)
    if path is None:
        raise Missing(f"{name} below {build or checkout.build}")
    return path


def need(*names):
    """Checks that these commands exist."""
    for name in names:
        if shutil.which(name) is None:
            raise Missing(name)


def need_modules(*names):
    """Checks that Debian's Python has these modules."""
    find = "from importlib.util import find_spec; import sys"
    code = f"{find}; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    if subprocess.run([checkout.DEBIAN_PYTHON, "-c", code, *names], check=False).returncode != 0:
        raise Missing(" or ".join(names) + " of Debian's Python")


def compiled(source, compiler=None):
    """The program made of a source of this directory, or of all in a directory of it; compiled
    again when one of them, or a file beside it, is newer. By another compiler than what is for
    such sources: a name and flags."""
    path = os.path.join(LIBRARY, source)
    name, suffix = os.path.splitext(os.path.basename(source))
    directory, sources = os.path.dirname(path), [path]
    if os.path.isdir(path):
        directory, sources = path, sorted(glob.glob(os.path.join(path, "*.cpp")))
    if compiler is not None:
        name += "-" + compiler[0]
    compiler = compiler or COMPILERS[suffix]
    program = os.path.join(checkout.build, "bench-programs", name)
    if not os.path.exists(program) or os.path.getmtime(program) < newest(directory):
        os.makedirs(os.path.dirname(program), exist_ok=True)
        need(compiler[0])
        subprocess.run([*compiler, *FLAGS, "-o", program, *sources], check=True)
    return program


def newest(directory):
    """When the newest of its files was changed."""
    return max(entry.stat().st_mtime for entry in os.scandir(directory) if entry.is_file())


def run(*command):
    """Runs what must succeed; its output is shown if it fails."""
    run_with(None, *command)


def run_with(environment, *command):
    """The same in another environment; returns its output, standard output first."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout + done.stderr


@contextlib.contextmanager
def of_build(directory):
    """Within it, another build is in use."""
    present = checkout.build
    checkout.use_build(directory or present)
    try:
        yield
    finally:
        checkout.use_build(present)


def draw(what, directory):
    """The charts of a directory's CSV files."""
    need_modules("matplotlib")
    plots = os.path.join(LIBRARY, "plots.py")
    subprocess.run([checkout.DEBIAN_PYTHON, plots, what, directory], check=True)


def run_main(main):
    """Ends the process as a command does, and always what it has started."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    name = os.path.basename(sys.argv[0])
    try:
        sys.exit(main())
    except Missing as missing:
        sys.exit(f"{name}: {missing}")
    except KeyboardInterrupt:
        sys.exit(130)
