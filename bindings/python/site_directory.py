"""`site_directory.py PREFIX`: where packages go that this Python shall find, of an installation
into PREFIX. Meson's own answer is a scheme's directory, in which Debian's Python does not look."""
import os
import site
import sys

DEFAULT_PREFIX = "/usr/local"  # Meson's


def site_directory(prefix):
    own = site.getsitepackages()
    below = [path for path in own if path.startswith(os.path.join(prefix, "lib"))]
    if below:
        return below[0]
    if prefix == DEFAULT_PREFIX:  # nobody has chosen a place: into this Python's, a venv's perhaps
        return own[0]
    # It looks nowhere below the place that was chosen: PYTHONPATH must lead there.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.join(prefix, "lib", version, "site-packages")


print(site_directory(sys.argv[1]))
