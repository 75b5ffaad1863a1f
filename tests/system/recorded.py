"""The output of the processes of each passed case, for `troubleshooting_holds`: scripts/test names
a directory for it in TESTS_RECORDED, which lasts for one run of the tests of one build. Without
that variable nothing is recorded."""
import os
import sys


def _path(file, case):
    """The path for a case "Class.method" of a test file; None: nothing is recorded."""
    directory = os.environ.get("TESTS_RECORDED")
    return directory and os.path.join(directory, f"{file}.{case}")


def keep(test):
    """`test` has passed; its `said` is all output."""
    file = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    path = _path(file, f"{type(test).__name__}.{test.id().rpartition('.')[2]}")
    if path:
        with open(path, "w", encoding="utf-8") as record:
            record.write(test.said)


def said_by(file, case):
    """None: the case was not run in this run, or not passed."""
    try:
        with open(_path(file, case) or "", encoding="utf-8") as record:
            return record.read()
    except FileNotFoundError:
        return None
