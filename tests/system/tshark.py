"""tshark, which reads Sluice's packets by configs/wireshark/sluice.lua."""
import os
import shutil
import subprocess
import unittest

import harness

SCRIPT = os.path.join(harness.ROOT, "configs", "wireshark", "sluice.lua")
NOBODY = 65534
WHAT_IS_NEEDED = "needs tshark"

needed = unittest.skipUnless(shutil.which("tshark"), WHAT_IS_NEEDED)


def lines(test, capture, *arguments):
    """The lines that it prints for the file `capture`. It does not run as root: for root, tshark
    4.4 runs no scripts. Skips the test where there is none."""
    if not shutil.which("tshark"):
        test.skipTest(WHAT_IS_NEEDED)
    script = shutil.copy(SCRIPT, test.place)
    somebody = {}
    if os.geteuid() == 0:
        somebody = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
        os.chmod(test.place, 0o755)
        os.chmod(capture, 0o644)
    result = subprocess.run(["tshark", "-r", capture, "-X", f"lua_script:{script}", *arguments],
                            env=test.environment(WIRESHARK_CONFIG_DIR=test.place),
                            capture_output=True, text=True, **somebody)
    test.assertEqual(result.returncode, 0, result.stderr)
    test.assertNotIn("Lua", result.stderr)
    return result.stdout.splitlines()
