"""What Meson must know of this Python's PyTorch, a line each: include directories, the directory of
the libraries, the macros by which extensions of equal binary interfaces know each other."""
import os

import torch
from torch.utils import cpp_extension

directories = [path for path in cpp_extension.include_paths() if os.path.isdir(path)]
kinds = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
values = {kind: getattr(torch._C, "_PYBIND11_" + kind, None) for kind in kinds}  # of some versions
macros = [f'-DPYBIND11_{kind}="{value}"' for kind, value in values.items() if value is not None]
print(":".join(directories))
print(cpp_extension.library_paths()[0])
print(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", *macros)
