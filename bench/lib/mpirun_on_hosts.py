#!/usr/bin/env python3
"""Runs PROGRAM over Open MPI, each rank on a host of its own: a network namespace behind a bridge,
as of `local-cluster --transport af_packet`, whose link is shaped. Its kernel speaks TCP. Ends with
the status of mpirun; all is removed then, also after Ctrl-C. For root.
"""
import argparse
import os
import shlex
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts", "lib"))

import mpirun  # noqa: E402
from local_cluster import af_packet, arguments, guard, run  # noqa: E402
from local_cluster.children import Children, Interrupted  # noqa: E402

# What mpirun runs a daemon by, and what runs mpirun: HOST COMMAND, in a shell. Open MPI tells hosts
# apart by their names.
AGENT = """\
#!/bin/sh
host=$1
shift
case "$*" in *';'*) run="$*" ;; *) run="exec $*" ;; esac  # Open MPI 5 exports variables first
exec nsenter --net={hosts}/$host unshare --uts sh -c "hostname $host && $run"
"""


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, usage="mpirun_on_hosts.py [options] -- PROGRAM [ARGS...]",
        allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_workers(parser)
    arguments.add_rate(parser)
    parser.add_argument("command", nargs="+", help=argparse.SUPPRESS)
    parser.set_defaults(aggregators=0, transport="af_packet", mtu=None, ranks_per_host=1)
    options = parser.parse_args()
    arguments.refuse_transport(parser, options)
    return options


def make_hosts(options, directory):
    """Their names, and the path of the agent."""
    network = af_packet.AfPacket(options, directory)
    network.let_kernel_speak()
    hosts = [f"w{rank}" for rank in range(options.workers)]
    for rank, host in enumerate(hosts):
        os.symlink(f"/proc/{os.getpid()}/fd/{network.worker_namespace(rank)}",
                   os.path.join(directory, host))
    agent = os.path.join(directory, "agent")
    with open(os.open(agent, os.O_WRONLY | os.O_CREAT, 0o700), "w", encoding="ascii") as file:
        file.write(AGENT.format(hosts=directory))
    return hosts, agent


def run_mpi(options, directory):
    """The exit status."""
    hosts, agent = make_hosts(options, directory)
    command = mpirun.command(directory, mpirun.over_hosts(agent, af_packet.PORT), "--bind-to",
                             "none", "--host", ",".join(hosts), *options.command)
    children = Children()
    first = children.start("mpirun", [agent, hosts[0], shlex.join(map(str, command))],
                           dict(os.environ), show)
    try:
        children.serve(lambda: first.poll() is not None)
    except Interrupted as end:
        children.stop([first], run.STOP_SECONDS)
        return 128 + end.signum
    except BrokenPipeError:
        return 141
    return first.poll()


def show(stream, line):
    run.write(getattr(sys, stream), None, line)


if __name__ == "__main__":
    chosen = parse_arguments()
    sys.exit(guard.run_guarded(lambda directory: run_mpi(chosen, directory)))
