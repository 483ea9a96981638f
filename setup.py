"""The compiled part of iglu-torch; everything else is said in pyproject.toml.

It is optional.  Without a compiler the install succeeds, says so, and the formulas in plain torch serve;
unless IGLU_REQUIRE_LOOPS is set, as where the wheel is built and tested.
"""

import os
import platform
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

CPU = "iglu/kernels/cpu"
PYTHON = 0x030A0000  # the limited API of 3.10: one binary for every later Python

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
    depends=[f"{CPU}/{name}" for name in ("loops.c", "loops.h", "spans.h", "run.h")]
    + [f"{CPU}/{name}.h" for name in ("operations", "formulas", "polynomials", "wide", "tables")],
    define_macros=[("Py_LIMITED_API", hex(PYTHON))],
    extra_compile_args=FLAGS,
    libraries=[] if sys.platform == "win32" else ["m"],
    py_limited_api=True,
    optional=not os.environ.get("IGLU_REQUIRE_LOOPS"),
)


class BuildWhatCanBeBuilt(build_ext):
    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            if not ext.optional:
                raise
            print(f"iglu-torch: {ext.name} was not built ({error}); plain torch will serve in its place.")


class OneWheelForEveryPython(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.py_limited_api = "cp310"


setup(
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildWhatCanBeBuilt, "bdist_wheel": OneWheelForEveryPython},
)
