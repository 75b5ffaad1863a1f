"""MPI programs of Debian, unmodified: BUILD_DIRECTORY [NAME...]. Each runs twice with four ranks,
with MPI alone and with its collectives taken over by Sluice, every one that can be, however small.
Both have to end well and to compute the same; the times that they print are left out."""
import glob
import os
import re
import shutil
import signal
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts", "lib"))

import checkout  # noqa: E402
import mpirun  # noqa: E402
import processes  # noqa: E402

RANKS = 4
LIMIT_S = 900
SCALAPACK = "/usr/lib/*/scalapack/openmpi-tests"
# Argonne's Lennard-Jones liquid: 4,000 atoms, whose energies are summed over all ranks.
MELT = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 10 0 10 0 10
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
compute shape all gyration
thermo_style custom step temp epair etotal press c_shape
thermo 10
run 100
"""
NUMBER = r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"


class Wrong(Exception):
    pass


# ------------------------------------------------------------------- what a run has computed
def lammps(place, said):
    """The rows of its table; a sum in another order differs in no digit that it prints."""
    rows = re.findall(rf"^ +\d+(?: +{NUMBER}){{5}} *$", said, re.MULTILINE)
    if len(rows) != 11:
        raise Wrong(f"{len(rows)} rows in place of 11")
    return rows


def hpcc(place, said):
    """Its own verdicts: residuals below its bounds, no errors. Residuals depend on the order of
    sums, and times are times."""
    with open(os.path.join(place, "hpccoutf.txt"), encoding="ascii") as file:
        report = file.read()
    verdicts = re.findall(r"^(Success=.*|\w+_(?:Errors|failed|Failure)\w*=.*"
                          r"|(?:HPL_N|CommWorldProcs|PTRANS_n|MPIFFT_N|MPIRandomAccess_N)=.*)$",
                          report, re.MULTILINE)
    residuals = re.findall(r"(PASSED|FAILED)", report)
    if "Success=1" not in verdicts or not residuals or "FAILED" in residuals:
        raise Wrong("its report tells of a failure")
    return verdicts + residuals


def scalapack(place, said):
    """The verdicts on every problem, without the times of its tables."""
    verdicts = re.findall(r"\b(PASSED|FAILED|passed|failed)\b", said)
    ended = re.findall(r"^ *(?:Finished +\d+ tests.*|End of tests\..*|\d+ tests .*)$", said,
                       re.MULTILINE | re.IGNORECASE)
    if not verdicts or not ended or "FAILED" in verdicts:
        raise Wrong("it tells of a failure")
    return verdicts + [" ".join(line.split()) for line in ended]


def scalapack_test(name):
    found = glob.glob(os.path.join(SCALAPACK, name))
    if not found:
        raise Wrong(f"no {name} below {SCALAPACK}")
    return found[0]


def copy_data(place, program):
    for path in glob.glob(os.path.join(os.path.dirname(program), "*.dat")):
        shutil.copy(path, place)


def prepare_lammps(place):
    with open(os.path.join(place, "in.melt"), "w", encoding="ascii") as file:
        file.write(MELT)
    return [shutil.which("lmp"), "-in", "in.melt", "-log", "none"]


def prepare_hpcc(place):
    """Debian's example, with a smaller matrix, from which the sizes of all its parts follow."""
    with open("/usr/share/doc/hpcc/examples/_hpccinf.txt", encoding="ascii") as file:
        text, changed = re.subn(r"^1000( +Ns)$", r"400\1", file.read(), flags=re.MULTILINE)
    if changed != 1:
        raise Wrong("its example is another one than expected")
    with open(os.path.join(place, "hpccinf.txt"), "w", encoding="ascii") as file:
        file.write(text)
    return [shutil.which("hpcc")]


def prepare_scalapack(name):
    def prepare(place):
        program = scalapack_test(name)
        copy_data(place, program)
        return [program]
    return prepare


PROGRAMS = {  # how to begin, and what came of it
    "lammps": (prepare_lammps, lammps),
    "hpcc": (prepare_hpcc, hpcc),
    "scalapack-lu": (prepare_scalapack("xdlu"), scalapack),
    "scalapack-schur": (prepare_scalapack("xdnep"), scalapack),
}


# ---------------------------------------------------------------------------------- both runs
def run(stage, name, prepare, *words, **settings):
    """Its process, and the directory that it ran in."""
    place = stage.directory(f"{name}-{next(stage.numbers)}")
    os.makedirs(place)
    parameters = {**mpirun.SHARED_MEMORY, "mpi_yield_when_idle": "1"}
    command = mpirun.command(stage.place, parameters, "-wdir", place, "-n", RANKS, *words,
                             *prepare(place))
    job = stage.start(name, *command, OMP_NUM_THREADS=1, **settings)
    if job.wait(LIMIT_S) != 0:
        raise Wrong(job.report()[-3000:])
    return place, job


def compare(stage, name):
    """The row of the report: how many calls Sluice has taken over."""
    prepare, computed = PROGRAMS[name]
    alone = computed(*told(run(stage, name, prepare)))
    daemon = stage.start_daemon("--memory-mib", 512)
    place, job = run(stage, name, prepare, "-x", f"LD_PRELOAD={checkout.mpi_library()}",
                     SLUICE_AGGREGATORS=daemon.address, SLUICE_MPI_MIN_BYTES=1,
                     SLUICE_MPI_BARRIER="on", SLUICE_MPI_REPORT="on",
                     SLUICE_AGGREGATOR_TIMEOUT_MS=processes.PATIENCE * 1000)
    taken = re.findall(r"^  (MPI_\w+) +([1-9]\d*) ", job.err, re.MULTILINE)
    if not taken:
        raise Wrong(f"Sluice took nothing over\n{job.err[-2000:]}")
    served = computed(place, job.out)
    if served != alone:
        differing = [pair for pair in zip(alone, served) if pair[0] != pair[1]]
        raise Wrong(f"{len(alone)} and {len(served)} results; with MPI alone and with Sluice: "
                    f"{differing[:5]}")
    daemon.send(signal.SIGTERM)
    if daemon.wait() != 0:
        raise Wrong(daemon.report()[-2000:])
    stage.forget([daemon])
    calls = ", ".join(f"{count} {call}" for call, count in taken)
    return f"{len(served)} results are the same; taken over: {calls}"


def told(ran):
    place, job = ran
    return place, job.out


def main():
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} BUILD_DIRECTORY [NAME...], of {' '.join(PROGRAMS)}")
    checkout.use_build(sys.argv[1])
    failures = 0
    names = sys.argv[2:] or list(PROGRAMS)
    for name in names:
        with processes.Stage() as stage:
            try:
                print(f"{name}: {compare(stage, name)}", flush=True)
            except (Wrong, AssertionError) as problem:
                failures += 1
                print(f"{name} FAILED: {problem}", flush=True)
    print(f"{len(names)} programs, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
