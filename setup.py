"""The compiled part of iglu-torch; everything else is said in pyproject.toml.

It is optional.  Without a compiler the install succeeds, says so, and the formulas in plain torch serve;
unless IGLU_REQUIRE_LOOPS is set, as where the wheel is built and tested.
"""

import os
import platform
import shutil
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import address

CPU = "iglu/kernels/cpu"
# The limited API of 3.10 makes one binary for every later Python.  A Python without a GIL has no limited API:
# there the binary is for that one, and says that it needs no GIL.
WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
MACROS = [("Py_GIL_DISABLED", "1")] if WITHOUT_GIL else [("Py_LIMITED_API", "0x030A0000")]

# Not -ffast-math, which gives up NaN, infinities and the order of operations; not -march=native, since the
# instruction set is chosen at run time.  Nothing is contracted to a fused multiply-add unless asked for.
FLAGS = [
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-g0",
]
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS.append("-mprefer-vector-width=512")  # where there are 512 bits, use them

kernels = Extension(
    "iglu._kernels",
    sources=[f"{CPU}/{name}.c" for name in ("module", "run", "baseline", "avx2", "avx512")],
    depends=[f"{CPU}/{name}" for name in ("loops.c", "loops.h", "run.h")]
    + [f"{CPU}/{name}.h" for name in ("operations", "formulas", "polynomials", "wide", "tables")],
    define_macros=MACROS,
    extra_compile_args=FLAGS,
    libraries=[] if sys.platform == "win32" else ["m"],
    py_limited_api=not WITHOUT_GIL,
    optional=not os.environ.get("IGLU_REQUIRE_LOOPS"),
)


class BuildWhatCanBeBuilt(build_ext):
    def build_extension(self, ext: Extension) -> None:
        try:
            if sys.platform == "win32":
                self.build_by_gcc(ext)
            else:
                super().build_extension(ext)
        except Exception as error:
            if not ext.optional:
                raise
            print(f"iglu-torch: {ext.name} was not built ({error}); plain torch will serve in its place.")

    def build_by_gcc(self, ext: Extension) -> None:
        """By MinGW's gcc, since MSVC does not know the loops' GNU C; python3.dll serves every Python 3."""
        gcc = shutil.which("gcc")
        if gcc is None:
            raise CompileError("there is no gcc, of MinGW-w64, on the path, and MSVC does not know GNU C")
        if WITHOUT_GIL:
            raise CompileError("on Windows not for a Python without a GIL")
        target = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # The stack of Windows is aligned to 16 bytes, and gcc would move wider vectors as if it were to more.
        flags = [*FLAGS, "-Wa,-muse-unaligned-vector-move", "-shared", "-static-libgcc"]
        flags += [f"-D{name}={value}" for name, value in MACROS] + ["-I" + sysconfig.get_path("include")]
        self.spawn([gcc, *flags, "-o", target, *ext.sources, os.path.join(sys.base_prefix, "python3.dll")])


class OneWheelForEveryPython(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        if not WITHOUT_GIL:
            self.py_limited_api = "cp310"


setup(
    **address.described(),
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildWhatCanBeBuilt, "bdist_wheel": OneWheelForEveryPython},
)
