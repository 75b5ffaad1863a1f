"""Ranges of values that several command lines accept."""
import argparse

LARGEST_AF_XDP_MTU = 2798  # buffers must fit into one page, and the kernel keeps a part


def whole_number(least, most):
    """For `type=` of argparse."""
    def parse(text):
        if not text.isdecimal() or not least <= int(text) <= most:
            allowed = f"a whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
        return int(text)

    return parse
