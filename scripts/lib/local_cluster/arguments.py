"""The command line: checked in full before anything starts."""
import argparse
import os

import checkout
from ranges import LARGEST_AF_XDP_MTU, whole_number

DESCRIPTION = """\
Starts fresh aggregators on this machine, runs PROGRAM once per rank against them, and stops and
removes everything when the last rank ends, when one fails, or when interrupted."""

EPILOG = """\
PROGRAM is a path, or the name of an executable anywhere below the build directory, or one in PATH.
Every rank finds in its environment: SLUICE_RANK, SLUICE_WORLD_SIZE, SLUICE_AGGREGATORS, SLUICE_MTU
and, over a network port, SLUICE_PORT and SLUICE_ADDRESS; for `import sluice` and
`import sluice_torch` in Python, SLUICE_LIBRARY and PYTHONPATH, which lead to this checkout; for
init_process_group of PyTorch, as torchrun sets them, RANK, LOCAL_RANK, WORLD_SIZE and
LOCAL_WORLD_SIZE and, over vhost, MASTER_ADDR, MASTER_PORT and USE_LIBUV=0 if it is not set.

Exit status: 0 when every rank ended with 0, else that of the first that did not (128 + n for
signal n); 1 when an aggregator failed or a rank lost packet buffers; 2 for a wrong command line;
130, 143 when interrupted.

Examples:
  scripts/local-cluster --workers 4 -- first-program
  scripts/local-cluster --workers 8 --aggregators 2 --only-rank 0 -- sluice-perf -b 4 -e 64M
  sudo scripts/local-cluster --transport af_packet --rate 1000 -- sluice-perf"""

# The daemon's default of vhost-max-ports: DPDK has 32 ports in a process.
LOCAL_WORKERS_MAX = 31


def make_parser():
    parser = argparse.ArgumentParser(
        prog="local-cluster", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="local-cluster [options] -- PROGRAM [ARGS...]")
    add = parser.add_argument
    add_workers(parser)
    add("--aggregators", type=whole_number(0, 64), default=1, metavar="M",
        help="aggregator daemons that share the streams, 1 to 64 (default 1); 0: none, and the "
             "ranks sum among themselves in memory that they share")
    add("--ranks-per-host", type=whole_number(1, 256), metavar="L",
        help="ranks that are on a host together, 1 to 256, and sum among themselves; the last host "
             "may have fewer (default 1; all, where there are no aggregators)")
    add("--transport", choices=["vhost", "af_packet", "af_xdp"], default="vhost",
        help="vhost: vhost-user sockets, for any user (default); af_packet: one network namespace "
             "per host behind a bridge, for root; af_xdp: the same hosts, through AF_XDP sockets")
    add("--mtu", type=whole_number(576, 9698), metavar="BYTES",
        help="largest IP packet, 576 to 9698 (default 9000 over vhost, else 1500)")
    add_rate(parser)
    add("--only-rank", type=whole_number(0, 255), metavar="R",
        help="show standard output of this rank alone, without the \"[R] \" before each line")
    add("--quiet-ranks", action="store_true", help="show no rank's standard output")
    add("--show-aggregators", action="store_true",
        help="show what the aggregators log as it comes, not only when they fail")
    add("--aggregator-arg", action="append", default=[], metavar="ARG",
        help="further argument of every aggregator, e.g. --aggregator-arg=--log-level=debug")
    add("--grace", type=whole_number(0, 3600), default=3, metavar="SECONDS",
        help="after a rank failed, how long the others may go on before they are stopped, so that "
             "they can say what they saw (default 3)")
    checkout.add_build_option(parser)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def add_workers(parser):
    parser.add_argument("--workers", type=whole_number(1, 256), default=2, metavar="N",
                        help="ranks to run, 1 to 256 (default 2)")


def add_rate(parser):
    parser.add_argument("--rate", type=whole_number(1, 100_000), metavar="MBIT",
                        help="Mbit/s of every host's link, each way (default unlimited; not "
                             "over vhost)")
    parser.add_argument("--queue", type=whole_number(2, 100_000), metavar="PACKETS",
                        help="full packets that wait for a link of a --rate, each way; what comes "
                             "when so many do is dropped (default: as many as last 50 ms)")


def parse(argv):
    """Returns options with `command` (absolute program first) and `aggregator`, or exits with 2."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("which program? local-cluster [options] -- PROGRAM [ARGS...]")
    refuse_what_cannot_work(parser, options)
    if options.ranks_per_host is None:
        options.ranks_per_host = 1 if options.aggregators else options.workers
    checkout.use_build(options.build)
    options.aggregator = checkout.find_program(checkout.build, "sluice-aggregator")
    if options.aggregator is None:
        parser.error(f"no sluice-aggregator below {checkout.build}: run ./scripts/setup first")
    program = checkout.find_program(checkout.build, options.command[0])
    if program is None:
        parser.error(f"no executable {options.command[0]!r} below {checkout.build} or in PATH")
    options.command[0] = program
    return options


def refuse_what_cannot_work(parser, options):
    refuse_transport(parser, options)
    if options.aggregators == 0 and (options.transport != "vhost" or options.mtu is not None):
        parser.error("--aggregators 0: there is no packet, and so no --transport and no --mtu")
    if options.aggregators == 0 and (options.ranks_per_host or options.workers) < options.workers:
        parser.error(f"--ranks-per-host {options.ranks_per_host}: ranks of several hosts need "
                     "aggregators")
    if options.transport == "af_xdp" and (options.ranks_per_host or 1) > 1:
        parser.error(f"--ranks-per-host {options.ranks_per_host}: the ranks of a host share its "
                     "link, which --transport af_xdp cannot")
    if options.transport == "vhost" and options.workers > LOCAL_WORKERS_MAX and options.aggregators:
        parser.error(f"--workers {options.workers}: over vhost each aggregator has ports for "
                     f"{LOCAL_WORKERS_MAX} ranks, and every rank needs one at each; more ranks "
                     "need --transport af_packet, as root")
    if options.only_rank is not None and options.only_rank >= options.workers:
        parser.error(f"--only-rank {options.only_rank}: ranks are 0 to {options.workers - 1}")


def refuse_transport(parser, options):
    if options.transport == "af_xdp" and (options.mtu or 0) > LARGEST_AF_XDP_MTU:
        parser.error(f"--mtu {options.mtu}: frames of af_xdp stay under one memory page: at most "
                     f"{LARGEST_AF_XDP_MTU}")
    if options.transport == "vhost" and options.rate is not None:
        parser.error("--rate needs --transport af_packet or af_xdp: a vhost-user socket has no "
                     "link to shape")
    if options.queue is not None and options.rate is None:
        parser.error("--queue needs --rate: no packet waits for a link that has no rate")
    if options.transport != "vhost" and os.geteuid() != 0:
        parser.error(f"--transport {options.transport} makes network namespaces and raw "
                     "sockets, which only root may (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW); "
                     "use sudo, or vhost")
