"""small_pages.py COMMAND...: the command gets no huge pages except those that it maps as such."""
import ctypes
import os
import sys

PR_SET_THP_DISABLE = 41

if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
    sys.exit("small_pages: " + os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
