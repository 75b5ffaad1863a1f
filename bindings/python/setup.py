"""With the library in it, as scripts/wheel puts it there, the package is for one platform, and has
programs, too. Without, it is for all."""
import glob
import os

import setuptools

options = {}
if os.path.exists(os.path.join("sluice", "lib")):
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:  # before setuptools 70.1
        from wheel.bdist_wheel import bdist_wheel

    class WithLibrary(setuptools.Distribution):
        def has_ext_modules(self):
            return True

    class PlatformWheel(bdist_wheel):
        """ctypes loads the library, so one wheel serves every Python."""

        def get_tag(self):
            return "py3", "none", super().get_tag()[2]

    options = {"distclass": WithLibrary, "cmdclass": {"bdist_wheel": PlatformWheel},
               "scripts": glob.glob("sluice-*")}
setuptools.setup(**options)
