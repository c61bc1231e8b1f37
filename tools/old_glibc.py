#!/usr/bin/env python3
"""Makes stub libraries of an older glibc to link against, so that what is linked runs with that one and all later ones.

    tools/old_glibc.py DIRECTORY VERSION        linker: -L DIRECTORY

A linker takes the newest version of each symbol that this machine's glibc has, and the result runs with no older glibc.
A stub library has symbols and no code: each symbol in the newest version that VERSION had, in the library that had it
then. glibc keeps old versions, so the stubs are made from its own tables. Symbols that VERSION lacks stay undefined: a
weak reference to one is null at run time, and tools/check_wheel.py finds any other.
"""

import pathlib
import subprocess
import sys
from collections import defaultdict

# The first glibc that moved symbols of other libraries into libc.so.6. They have a second version since.
MOVED = (2, 32)

# Functions that glibc has exported since 2.33. Before, a static library turned them into calls of these.
STAT = """
#ifdef __x86_64__
enum { STAT_VERSION = 1 };
#else
enum { STAT_VERSION = 0 };
#endif
int __xstat64(int, const char *, void *);
int __lxstat64(int, const char *, void *);
int __fxstat64(int, int, void *);
int __fxstatat64(int, int, const char *, void *, int);
int stat64(const char *path, void *to) { return __xstat64(STAT_VERSION, path, to); }
int lstat64(const char *path, void *to) { return __lxstat64(STAT_VERSION, path, to); }
int fstat64(int file, void *to) { return __fxstat64(STAT_VERSION, file, to); }
int fstatat64(int at, const char *path, void *to, int flags) {
    return __fxstatat64(STAT_VERSION, at, path, to, flags);
}
"""


def number(version):
    return tuple(int(part) for part in version.removeprefix("GLIBC_").split("."))


def found(name):
    """The file that the compiler links for a name."""
    return subprocess.check_output(["cc", f"-print-file-name={name}"], text=True).strip()


def symbols(library, newest):
    """Symbols of a library: name, version, kind, and whether glibc has moved it here from another library."""
    versions = defaultdict(dict)
    table = subprocess.check_output(["readelf", "--wide", "--dyn-syms", found(library)], text=True)
    for line in table.splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[6] != "UND" and "@GLIBC_2" in fields[7]:
            name, version = fields[7].split("@", 1)
            versions[name][number(version.lstrip("@"))] = "object" if fields[3] == "OBJECT" else "function"
    for name, kinds in versions.items():
        old = [version for version in kinds if version <= newest]
        if old:
            yield name, max(old), kinds[max(old)], max(kinds) >= MOVED


def home(library, name, moved):
    """The library that had a symbol before glibc moved it."""
    if library != "libc.so.6" or not moved:
        return library
    if name.startswith("dl"):
        return "libdl.so.2"
    return "libpthread.so.0" if name.startswith(("pthread_", "sem_")) else library


def write_library(directory, library, entries):
    """Writes a stub library; `entries` are (name, version, kind)."""
    nodes = defaultdict(list)
    source = [".text"]
    for name, version, kind in entries:
        nodes[version].append(name)
        source += [f".globl {name}", f".type {name}, @{kind}", f".size {name}, 8", f"{name}:", ".zero 8"]
    script = "".join(
        f"GLIBC_{'.'.join(map(str, version))} {{ global: {' '.join(f'{name};' for name in names)} }};\n"
        for version, names in sorted(nodes.items())
    )
    (directory / "stub.s").write_text("\n".join(source) + "\n")
    (directory / "stub.map").write_text(script)
    subprocess.check_call(
        ["cc", "-shared", "-nostdlib", f"-Wl,-soname,{library},--version-script,{directory / 'stub.map'}"]
        + ["-o", directory / library, directory / "stub.s"]
    )


def main(directory, newest):
    directory = pathlib.Path(directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    libraries = defaultdict(list)
    for library in ["libc.so.6", "libm.so.6"]:
        for name, version, kind, moved in symbols(library, number(newest)):
            libraries[home(library, name, moved)].append((name, version, kind))
    for library, entries in libraries.items():
        write_library(directory, library, entries)
        name = library.split(".so")[0] + ".so"
        (directory / name).write_text(f"INPUT ( {directory / library} )\n")
    (directory / "stat.c").write_text(STAT)
    stat = directory / "stat.o"
    subprocess.check_call(["cc", "-c", "-O2", "-fPIC", "-fvisibility=hidden", "-o", stat, directory / "stat.c"])
    archive = directory / "libstat.a"
    archive.unlink(missing_ok=True)
    subprocess.check_call(["ar", "rcs", archive, stat])
    loader = found("ld-linux-x86-64.so.2")
    members = f"{directory / 'libc.so.6'} {archive} {found('libc_nonshared.a')} AS_NEEDED ( {loader} )"
    (directory / "libc.so").write_text(f"GROUP ( {members} )\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
