# SPDX-License-Identifier: MIT
"""`aiter-like sim compile`: HIP sources to a code object, a library or a program that runs on the simulated MI300X; and
`sim library`, `sim include`, `sim rocm`: where the parts are, for other build systems.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from aiter_like import paths
from aiter_like.cli.outputs import require_writable
from aiter_like.errors import BuildError, did_you_mean
from aiter_like.modules import processes, toolchain
from aiter_like.sim import rocm

HIP_SUFFIXES = (".hip", ".cpp", ".cc", ".cxx", ".cu", ".C")
"""Suffixes of sources that are compiled as HIP."""
ASSEMBLY = {".s": "assembler", ".S": "assembler-with-cpp"}
"""Sources in gfx942's assembly: suffix → clang's name of the language; one with a capital S is preprocessed."""
_OTHER_SUFFIXES = (".c", ".o", ".a", ".so")  # clang takes these files as they are.
_DEVICE_KINDS = {".co": ("-c", "--no-gpu-bundle-output"), ".hsaco": ("-c", "--no-gpu-bundle-output"),
                 ".s": ("-S",), ".ll": ("-S", "-emit-llvm")}
_HOST_KINDS = {".so": ("-shared", "-fPIC"), ".o": ("-c",)}
_MOST_ERROR_LINES = 60
_DIAGNOSIS = re.compile(r"^(?:In file included from .*\n(?: +from .*\n)*)*\S.*: (?:warning|error|fatal error): ",
                        re.MULTILINE)

_DESCRIPTION = """Compiles HIP sources, or assembles one, for gfx942 with clang alone: the headers (hip/hip_runtime.h,
hip_fp16.h, hip_bf16.h, hip_cooperative_groups.h, …) are this package's, as are those that its kernels share
(aiter_like/tile/, …); mathematical functions come from the device library of Triton's wheel.
What the output is, its name says:
  x.co, x.hsaco   a code object with all kernels: sim run, sim profile, sim debug, hipModuleLoad; the only output that
                  is made of assembly
  x.so            a library of both halves          x.o   an object of both halves
  x.s, x.ll       the device's half as text         else  a program, linked to the simulator
Libraries and programs find the simulator where it was built; AITER_LIKE_SIM=check switches its checkers on. Lines for
reports are always in; -g adds names of variables. What follows -- goes to clang as it is."""


def add_compile(actions: argparse._SubParsersAction) -> None:
    """Adds `compile`, `library`, `include` and `rocm`; each of their parsers sets `run`."""
    command = actions.add_parser("compile", help="compile HIP sources or assembly for it", description=_DESCRIPTION,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("sources", nargs="+", metavar="SOURCE", help=f"HIP: {' '.join(HIP_SUFFIXES)}; "
                         f"assembly: {' '.join(ASSEMBLY)}; and {' '.join(_OTHER_SUFFIXES)} for libraries and programs")
    command.add_argument("-o", dest="output", type=Path, required=True, metavar="OUT", help="what is made, see above")
    command.add_argument("-D", action="append", default=[], dest="defines", metavar="NAME[=VALUE]", help="a macro")
    command.add_argument("-I", action="append", default=[], dest="includes", metavar="DIR", help="folder of headers")
    command.add_argument("-O", default="3", dest="optimise", metavar="LEVEL", help="0 to 3 (default: %(default)s)")
    command.add_argument("-std", default="c++17", metavar="LANGUAGE", help="(default: %(default)s)")
    command.add_argument("-g", action="store_true", dest="debug", help="names and types of variables, too")
    command.add_argument("--show", action="store_true", help="print the command line")
    command.set_defaults(run=_compile)
    for name, what, find in (
            ("library", "path of the simulator, libamdhip64.so, built when necessary", rocm.library_path),
            ("include", "folder of hip/hip_runtime.h", rocm.include_folder),
            ("rocm", "folder that is laid out as ROCm's, for ROCM_PATH, CMake, clang --rocm-path", rocm.folder)):
        action = actions.add_parser(name, help=f"print the {what}")
        action.set_defaults(run=lambda _, find=find: print(find()) or 0)


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line's words before `--`, and clang's own options after it."""
    words = list(words)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1:]


def command_line(sources: Sequence[Path], output: Path, options: Sequence[str], debug: bool = False) -> list[str]:
    """The command that compiles HIP sources to `output`, whose suffix says what it is.

    Args:
        options: clang's, after those that are always there.
        debug: with names and types of variables, not lines alone.
    """
    if any(source.suffix in ASSEMBLY for source in sources):
        return _assembling(sources, output, options)
    device, folder = _DEVICE_KINDS.get(output.suffix), rocm.folder()
    if device and (len(sources) != 1 or sources[0].suffix not in HIP_SUFFIXES):
        raise ValueError(f"{output}: a {output.suffix} file is made of one HIP source ({' '.join(HIP_SUFFIXES)}), got "
                         f"{', '.join(map(str, sources))}")
    command = [toolchain.find("hip").host_compiler, f"--rocm-path={folder}", f"--offload-arch={rocm.ARCH}",
               "-Wno-unused-command-line-argument", "-g" if debug else "-gline-tables-only",
               "-fno-discard-value-names"]  # the metadata has the arguments' names
    command += ["-idirafter", str(paths.csrc() / "include")]  # aiter_like/tile/ and what else kernels share
    if rocm.device_libraries()[0] is None:
        command.append("-nogpulib")
    if device:
        command += ["--offload-device-only", *device]
    else:
        links = output.suffix != ".o"
        command += [*_HOST_KINDS.get(output.suffix, ()), *(["--hip-link"] if links else [])]
        command += [f"-Wl,-rpath,{rocm.run_path()}"] if links else []
    command += options
    for source in sources:
        command += ["-x", "hip" if source.suffix in HIP_SUFFIXES else "c" if source.suffix == ".c" else "none",
                    str(source)]
    if output.suffix not in (*_DEVICE_KINDS, ".o"):  # programs of hipRTC, and of no other
        command += ["-x", "none", f"-L{folder}/lib", "-Wl,--push-state,--as-needed", "-lhiprtc", "-Wl,--pop-state"]
    return [*command, "-o", str(output)]


def _assembling(sources: Sequence[Path], output: Path, options: Sequence[str]) -> list[str]:
    """The command that assembles; -g: reports name the lines."""
    if len(sources) != 1 or output.suffix not in (".co", ".hsaco"):
        raise ValueError(f"{output}: assembly makes a code object, .co or .hsaco, of one source, got "
                         f"{', '.join(map(str, sources))}")
    return [toolchain.find("hip").host_compiler, "-x", ASSEMBLY[sources[0].suffix], "--target=amdgcn-amd-amdhsa",
            f"-mcpu={rocm.ARCH}", "-nogpulib", "-g", "-Wno-unused-command-line-argument", *options, str(sources[0]),
            "-o", str(output)]


def compile_program(sources: Sequence[Path], output: Path, options: Sequence[str] = (), debug: bool = False,
                    show: bool = False) -> None:
    """Runs the command of `command_line`; the compiler's warnings go to stderr."""
    for source in sources:
        if source.suffix not in (*HIP_SUFFIXES, *ASSEMBLY, *_OTHER_SUFFIXES):
            raise ValueError(f"{source}: not a kind of source that is known; there are: "
                             f"{' '.join((*HIP_SUFFIXES, *ASSEMBLY, *_OTHER_SUFFIXES))}")
        if not source.is_file():
            raise ValueError(f"{source}: {'is a folder' if source.is_dir() else 'no such file'}")
    for option in options:
        if (asked := re.match(r"--(?:offload-arch|amdgpu-target)=(\w+)", option)) and asked[1] != rocm.ARCH:
            raise ValueError(f"the simulated device is {rocm.ARCH}, got {option}")
    require_writable(output, "-o")
    command = command_line(sources, output, options, debug)
    if show:
        print(" ".join(command))
    with processes.child(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, errors="replace") as run:
        said = once(run.communicate()[0])
    if run.returncode:
        names = ", ".join(map(str, sources))
        raise BuildError(f"{names}: does not compile{hint(said)}", command=" ".join(command), output=_first_lines(said))
    if said:
        print(said, end="", file=sys.stderr)


def _compile(args: argparse.Namespace) -> int:
    options = [f"-O{args.optimise}", f"-std={args.std}", *(f"-D{name}" for name in args.defines),
               *(f"-I{folder}" for folder in args.includes), *getattr(args, "clang_options", [])]
    sources = [Path(name) for name in args.sources]
    compile_program(sources, args.output, options, args.debug, args.show)
    print(f"{args.output}: {args.output.stat().st_size} bytes")
    return 0


def once(said: str) -> str:
    """Drops clang's repetitions: it reads a HIP source for the device and for the host."""
    said = re.sub(r"^(?:\d+ (?:warning|error)s?(?: and )?)+ generated(?: when compiling for [\w.:+-]+)?\.\n", "", said,
                  flags=re.MULTILINE)
    starts = [found.start() for found in _DIAGNOSIS.finditer(said)]
    parts = [said[begin:end] for begin, end in zip([0, *starts], [*starts, len(said)])]
    return "".join(dict.fromkeys(parts))


def _first_lines(said: str) -> str:
    lines = said.splitlines()
    more = f"\n… {len(lines) - _MOST_ERROR_LINES} lines more" if len(lines) > _MOST_ERROR_LINES else ""
    return "\n".join(lines[:_MOST_ERROR_LINES]) + more


def hint(said: str) -> str:
    """Explains a message of the compiler, to follow "does not compile"; "" where it says all itself."""
    if missing := re.search(r"'((?:hip|roc|hipcub|thrust|rocprim)[\w/]*\.h(?:pp)?)' file not found", said):
        known = [str(path.relative_to(rocm.include_folder())) for path in sorted(rocm.include_folder().glob("hip/*.h"))]
        like = did_you_mean(missing[1], known) if missing[1].startswith("hip/") else ""
        return (f": there is no {missing[1]} here{like}; headers of HIP: {', '.join(known)}; ROCm's libraries are not "
                "part of the simulator")
    if missing := re.search(r"(?:undeclared identifier|unknown type name) '(hip[A-Z]\w+)'", said):
        return f": there is no {missing[1]} here; csrc/sim/hip/README.md lists the functions of HIP that are simulated"
    place, reason = rocm.device_libraries()
    if place is None and (function := re.search(r"undefined.*?(__oc[km]l_\w+)", said)):
        return f": it needs {function[1]} of the device library. {reason}"
    return ""
