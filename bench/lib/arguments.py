"""What the command lines of benchmarks share."""
import argparse

import checkout
import placement


def parser(description):
    """Has --build."""
    made = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    checkout.add_build_option(made)
    return made


def add_rounds(to, rounds):
    """For benchmarks whose rounds count or do not: see rounds.py."""
    to.add_argument("--rounds", type=int, default=rounds,
                    help=f"of each point, that count ({rounds})")
    add_placement(to)


def add_placement(to):
    to.add_argument("--placement", type=words, default=placement.ACCEPTED,
                    help="of the cores in rounds that count: same-core, same-socket, other-socket,"
                         " changed (same-core,same-socket)")


def add_out(to, what):
    to.add_argument("--out", metavar="DIR", help=f"write {what} there")


def list_of(convert):
    """The type of an argument that is a list with commas."""
    return lambda text: [convert(word) for word in text.split(",")]


words = list_of(str)
