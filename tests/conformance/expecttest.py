"""In place of the module of this name, which Debian lacks: PyTorch derives from its class."""
import unittest

ACCEPT = False


class TestCase(unittest.TestCase):
    pass
