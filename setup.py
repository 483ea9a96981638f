"""Build the C extension of iglu-torch; everything else is in pyproject.toml.

It is optional.  Without a compiler the install succeeds with a message, and iglu runs its formulas in torch;
unless IGLU_REQUIRE_LOOPS is set, as it is where the wheel is built and tested.
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

CSRC = "iglu/kernels/csrc"
# The limited API of 3.10: one binary for every later Python.  Free-threaded Python has no limited API: there
# the binary is for that version, and declares that it needs no GIL.
WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
MACROS = [("Py_GIL_DISABLED", "1")] if WITHOUT_GIL else [("Py_LIMITED_API", "0x030A0000")]

# Not -ffast-math, which breaks NaN, infinities and the order of operations; not -march=native, since the
# instruction set is chosen at run time.  No contraction: fused multiply-adds are explicit in the source.
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
    FLAGS.append("-mprefer-vector-width=512")  # for the functions that target AVX-512

kernels = Extension(
    "iglu._kernels",
    sources=[f"{CSRC}/{name}.c" for name in ("module", "run", "baseline", "avx2", "avx512")],
    depends=[f"{CSRC}/{name}" for name in ("loops.c", "loops.h", "run.h")]
    + [f"{CSRC}/{name}.h" for name in ("operations", "formulas", "polynomials", "avx512", "tables")],
    define_macros=MACROS,
    extra_compile_args=FLAGS,
    libraries=[] if sys.platform == "win32" else ["m"],
    py_limited_api=not WITHOUT_GIL,
    optional=not os.environ.get("IGLU_REQUIRE_LOOPS"),
)


class BuildOptional(build_ext):
    def build_extension(self, ext: Extension) -> None:
        try:
            if sys.platform == "win32":
                self.build_by_gcc(ext)
            else:
                super().build_extension(ext)
        except Exception as error:
            if not ext.optional:
                raise
            print(f"iglu-torch: {ext.name} was not built ({error}); iglu will run its formulas in torch.")

    def build_by_gcc(self, ext: Extension) -> None:
        """Build with MinGW's gcc, since MSVC does not support GNU C; python3.dll fits every Python 3."""
        gcc = shutil.which("gcc")
        if gcc is None:
            raise CompileError("gcc of MinGW-w64 is not on the PATH, and MSVC does not support GNU C")
        if WITHOUT_GIL:
            raise CompileError("free-threaded Python is not supported on Windows")
        target = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # On Windows the stack is aligned to 16 bytes, but gcc would use aligned moves of wider vectors.
        flags = [*FLAGS, "-Wa,-muse-unaligned-vector-move", "-shared", "-static-libgcc"]
        flags += [f"-D{name}={value}" for name, value in MACROS] + ["-I" + sysconfig.get_path("include")]
        self.spawn([gcc, *flags, "-o", target, *ext.sources, os.path.join(sys.base_prefix, "python3.dll")])


class OneWheelForEveryPython(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        if not WITHOUT_GIL:
            self.py_limited_api = "cp310"


setup(
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildOptional, "bdist_wheel": OneWheelForEveryPython},
)
